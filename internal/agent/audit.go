package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
)

const (
	// auditFileMiB is the size at which a file is rotated, and oldAuditFiles how many are kept: with the one that is
	// written, they fit into the ephemeral storage that the pod may have as shipped.
	auditFileMiB  = 100
	oldAuditFiles = 8
)

func (c AuditConfig) validate() []error {
	var problems []error
	if !slices.Contains([]string{"", "enabled", "disabled"}, c.LogUsernamesAndGroups) {
		problems = append(
			problems,
			errors.New(
				"invalid logUsernamesAndGroups format, valid choices are 'enabled', 'disabled', or empty string (equivalent to "+
					"'disabled')",
			),
		)
	}
	if (c.PolicyFile == "") != (c.LogPath == "") {
		problems = append(problems, errors.New("audit.policyFile and audit.logPath: one is set and the other is not"))
	}
	return problems
}

// open opens the audit log of requests, nil when there is to be none. An admin who wants one is not left without:
// what cannot be read or written is an error.
func (c AuditConfig) open(standardOutput io.Writer) (log *proxy.AuditLog, closeFile func(), err error) {
	closeFile = func() {}
	if c.PolicyFile == "" {
		return nil, closeFile, nil
	}
	to := standardOutput
	if c.LogPath != "-" {
		// The file is opened when the first line is written; better to know now.
		file, err := os.OpenFile(c.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, closeFile, fmt.Errorf("opening the audit log: %w", err)
		}
		_ = file.Close() // nothing was written
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
