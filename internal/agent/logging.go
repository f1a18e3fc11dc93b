package agent

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// libraryLevel is the verbosity at which the information of libraries is shown: with log level debug. Which of their
// errors are shown is for package logs to say.
const libraryLevel = 2

// allLevel is the verbosity of log level all. From 8 on, client-go logs the bodies of requests and responses: tokens,
// and the keys in Secrets.
const allLevel = 7

// setUpLogging makes one handler for everything that logs in this process: the agent, klog and controller-runtime. It
// returns the logger for contexts. What libraries log through klog's global logger is shown at higher verbosity only.
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
	slog.SetDefault(slog.New(handler)) // what libraries print through package log goes the same way
	slog.SetLogLoggerLevel(-libraryLevel)
	klog.SetLoggerWithOptions(logger.V(libraryLevel), klog.ContextualLogger(true))
	var level klog.Level
	if err := level.Set(strconv.Itoa(verbosity)); err != nil {
		return logr.Logger{}, fmt.Errorf("setting the log level: %w", err)
	}
	return logger, nil
}
