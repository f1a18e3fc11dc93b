package agent

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"

	"github.com/go-logr/logr"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy"
)

// libraryLevel is the verbosity of the info lines of libraries: log level debug. Package logs decides which of their
// errors are logged.
const libraryLevel = 2

// allLevel is the verbosity of log level all. From 8 on, client-go logs the bodies of requests and responses, with
// tokens and the keys in Secrets.
const allLevel = 7

// setUpLogging creates one handler for all logging of this process: the agent, klog and controller-runtime. It returns
// the logger for contexts. Lines that libraries log through klog's global logger have a higher verbosity.
func setUpLogging(config LogConfig, out io.Writer) (logr.Logger, error) {
	verbosity := map[string]int{"": 0, "info": 0, "debug": 2, "trace": 4, "all": allLevel}[config.Level]
	options := &slog.HandlerOptions{Level: slog.Level(-verbosity)}
	var handler slog.Handler = slog.NewJSONHandler(out, options)
	if config.Format == "text" {
		handler = slog.NewTextHandler(out, options)
	}
	handler = logs.NewHandler(handler, -libraryLevel)
	logger := logr.FromSlogHandler(handler)
	ctrl.SetLogger(logger)
	slog.SetDefault(slog.New(handler)) // for libraries that use package log
	slog.SetLogLoggerLevel(-libraryLevel)
	klog.SetLoggerWithOptions(logger.V(libraryLevel), klog.ContextualLogger(true))
	var level klog.Level
	if err := level.Set(strconv.Itoa(verbosity)); err != nil {
		return logr.Logger{}, fmt.Errorf("setting the log level: %w", err)
	}
	return logger, nil
}

const (
	// auditFileMiB is the size at which a file is rotated, and oldAuditFiles how many old ones are kept. All files fit
	// into the default ephemeral storage of the pod.
	auditFileMiB  = 100
	oldAuditFiles = 8
)

// open opens the audit log of requests, or returns nil if none is configured. An unreadable policy or an unwritable log
// is an error, so that a configured audit log is never missing.
func (c AuditConfig) open(standardOutput io.Writer) (log *proxy.AuditLog, closeFile func(), err error) {
	closeFile = func() {}
	if c.PolicyFile == "" {
		return nil, closeFile, nil
	}
	to := standardOutput
	if c.LogPath != "-" {
		// lumberjack opens the file at the first write; check it now.
		file, err := os.OpenFile(c.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, closeFile, fmt.Errorf("opening the audit log: %w", err)
		}
		_ = file.Close()
		rotated := &lumberjack.Logger{
			Filename:   c.LogPath,
			MaxSize:    auditFileMiB,
			MaxBackups: oldAuditFiles,
		}
		to, closeFile = rotated, func() { _ = rotated.Close() }
	}
	log, err = proxy.NewAuditLog(c.PolicyFile, to)
	return log, closeFile, err
}
