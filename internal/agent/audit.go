package agent

import (
	"fmt"
	"io"
	"os"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
)

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
