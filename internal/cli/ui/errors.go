package ui

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// Exit codes of the pinniped process. Scripts rely on them.
const (
	ExitDone         = 0
	ExitFailed       = 1
	ExitUsage        = 2   // the command line or the configuration file is wrong
	ExitRefused      = 3   // a check refused the change
	ExitNotPermitted = 4   // the cluster does not permit the request
	ExitNotConverged = 5   // the change was made, but did not take effect in time
	ExitNotDue       = 6   // it is too early for the next step: run the same command again later
	ExitDiffers      = 6   // the existing files or objects differ from what the command would write
	ExitSwitchedOff  = 7   // the change was made, but the proxy is switched off
	ExitKubeconfigs  = 8   // kubeconfigs do not work, or will stop working
	ExitTimedOut     = 124 // --timeout passed
	ExitInterrupted  = 130 // interrupted by a signal
)

// ReasonDiffers is the reason of ExitDiffers, which has the same number as ExitNotDue.
const ReasonDiffers = "differs"

// ExitCode describes an exit code. ExitCodes has one entry for each reason of a code.
type ExitCode struct {
	Code int
	// Reason is the meaning in one word, as in JSON output; empty for 0.
	Reason string
	// Meaning and Example are Markdown for the documentation.
	Meaning, Example string
}

// ExitCodes lists the exit codes. docs/reference/exit-codes.md and the reasons in JSON output follow it.
func ExitCodes() []ExitCode {
	return []ExitCode{
		{ExitDone, "", "done, or `unchanged`", "`ip-tls set` twice"},
		{ExitFailed, "failed", "failed", "the cluster cannot be reached"},
		{
			ExitUsage, "usage",
			"wrong usage: an invalid argument or flag, an unreadable file (except a kubeconfig), or an invalid configuration " +
				"file",
			"`--output xml`",
		},
		{
			ExitRefused, "refused", "refused by a check or because of a concurrent change; nothing was changed",
			"a certificate that does not cover the endpoint; a Secret that was renewed after the check",
		},
		{
			ExitNotPermitted, "notPermitted", "forbidden by the cluster; the hint names the verb and the resource (`get " +
				"kubeconfig`, `whoami` and `login` exit with 1 instead, as in Pinniped)", "no `get` on Secrets",
		},
		{
			ExitNotConverged, "notInEffect", "the change did not take effect in time; for `ip-tls status`: the configuration " +
				"is not in effect",
			"an address presents another certificate",
		},
		{
			ExitNotDue, "notDue",
			"the new certificate is not active yet, because clients would stop verifying; run the same command again later",
			"kubeconfigs with the old CA are in use",
		},
		{
			ExitDiffers, ReasonDiffers, "`get kubeconfig --check` and `--diff`: the file differs from a new kubeconfig",
			"the cluster has another CA",
		},
		{
			ExitSwitchedOff, "switchedOff", "done, but the impersonation proxy is off: `ip-tls set --mode enabled` enables it",
			"`mode: disabled`; `auto` where control-plane nodes are visible",
		},
		{
			ExitKubeconfigs, "kubeconfigsBreak", "`ip-tls status`: the configuration is in effect, but users are refused, or " +
				"a file passed with `--kubeconfigs` is broken, will break, or cannot be read",
			"the CA was renewed, and kubeconfigs have the old one",
		},
		{ExitTimedOut, "timedOut", "`--timeout` expired before anything was changed", "a cluster that does not respond"},
		{ExitInterrupted, "interrupted", "interrupted by SIGINT or SIGTERM", "Ctrl-C"},
	}
}

// Hinter is an error with a hint. Packages outside internal/cli implement it without importing this package.
type Hinter interface {
	error
	Hint() string
}

type hinted struct {
	error
	hint string
}

func (e *hinted) Unwrap() error { return e.error }
func (e *hinted) Hint() string  { return e.hint }

// WithHint returns err with a hint: one sentence about what to do, printed on its own line below the error. The
// outermost hint wins. A nil err stays nil.
func WithHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if format != "%s" { // a whole hint is passed through
		args = plainArgs(args)
	}
	return &hinted{error: err, hint: fmt.Sprintf(format, args...)}
}

// HintOf returns the outermost hint in err's chain that is not empty, or "".
func HintOf(err error) string {
	for err != nil {
		h, ok := errors.AsType[Hinter](err)
		if !ok {
			return ""
		}
		if hint := h.Hint(); hint != "" {
			return hint
		}
		err = errors.Unwrap(h)
	}
	return ""
}

type coded struct {
	error
	code   int
	reason string
}

func (e *coded) Unwrap() error { return e.error }
func (e *coded) ExitCode() int { return e.code }

// WithExitCode returns err such that the process ends with code. The outermost code wins. A nil err stays nil.
func WithExitCode(err error, code int) error { return WithReason(err, code, "") }

// WithReason is like WithExitCode, for a reason other than the first one of its code in ExitCodes.
func WithReason(err error, code int, reason string) error {
	if err == nil {
		return nil
	}
	return &coded{error: err, code: code, reason: reason}
}

// ReasonOf returns the reason of err as in ExitCodes; empty if its exit code is not listed.
func ReasonOf(err error) string {
	code := ExitCodeOf(err)
	if c, ok := errors.AsType[*coded](err); ok && c.reason != "" && c.code == code {
		return c.reason
	}
	for _, known := range ExitCodes() {
		if known.Code == code {
			return known.Reason
		}
	}
	return ""
}

// Usage marks err as an error in the command line or the configuration file: the process ends with ExitUsage.
func Usage(err error) error { return WithExitCode(err, ExitUsage) }

// ExitCodeOf returns the exit code for err: ExitDone for nil, the code attached by WithExitCode, ExitTimedOut for a
// passed deadline, ExitInterrupted for a cancelled context, and ExitFailed for everything else.
func ExitCodeOf(err error) int {
	if err == nil {
		return ExitDone
	}
	if c, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		return c.ExitCode()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		return ExitTimedOut
	}
	return ExitFailed
}

// Ended is the exit of a program that a command ran. The process exits with the same code and prints nothing, because
// the program has printed its own errors.
type Ended struct{ Code int }

func (e *Ended) Error() string { return fmt.Sprintf("the program ended with code %d", e.Code) }

// ExitCode returns the exit code of the program.
func (e *Ended) ExitCode() int { return e.Code }

// WithFileHint adds a hint for the cause of err, an error about a file that a flag names. holds is what the file should
// contain.
func WithFileHint(err error, holds string) error {
	switch path, _ := errors.AsType[*fs.PathError](err); {
	case err == nil || HintOf(err) != "":
		return err
	case errors.Is(err, fs.ErrNotExist):
		return WithHint(err, "check the path; a relative path is relative to the current folder")
	case errors.Is(err, fs.ErrPermission) && path != nil:
		return WithHint(err, "permission denied: \"ls -l %s\" shows why", ShellWord(path.Path))
	case errors.Is(err, atomicfile.ErrTooLarge):
		return WithHint(err, "check that it is the right file")
	case errors.Is(err, atomicfile.ErrNotRegular):
		return WithHint(err, "pass a file, not a folder")
	}
	return WithHint(err, "pass a file that contains %s", holds)
}
