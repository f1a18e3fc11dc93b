package ui

import (
	"context"
	"errors"
	"fmt"
)

// Exit codes of the pinniped process. Scripts rely on them.
const (
	ExitDone         = 0
	ExitFailed       = 1
	ExitUsage        = 2   // the command line or the configuration file is wrong
	ExitRefused      = 3   // a check refused the change
	ExitNotPermitted = 4   // the cluster does not permit the request
	ExitNotConverged = 5   // the change was made, but was not seen to take effect in time
	ExitNotDue       = 6   // it is not time for the next step yet: the same command again, later, goes on
	ExitDiffers      = 6   // what is there is not what the command would make
	ExitSwitchedOff  = 7   // the change was made, but the proxy that it is about is switched off
	ExitKubeconfigs  = 8   // kubeconfigs do not work, or will not
	ExitTimedOut     = 124 // --timeout passed
	ExitInterrupted  = 130 // interrupted by a signal
)

// ReasonDiffers is the reason of ExitDiffers, whose number is also that of ExitNotDue.
const ReasonDiffers = "differs"

// ExitCode says what an exit code means. A code stands in ExitCodes once for each of its reasons.
type ExitCode struct {
	Code int
	// Reason is the meaning in one word, as objects for programs have it; empty for 0.
	Reason string
	// Meaning and Example are for people, in Markdown.
	Meaning, Example string
}

// ExitCodes lists the exit codes. docs/reference/exit-codes.md and the reasons in objects follow it.
func ExitCodes() []ExitCode {
	return []ExitCode{
		{ExitDone, "", "done, or `unchanged`", "`ip-tls set` twice"},
		{ExitFailed, "failed", "failed", "the cluster cannot be reached"},
		{
			ExitUsage, "usage",
			"wrong usage: an argument, a flag, an unreadable file (except a kubeconfig) or the configuration file",
			"`--output xml`",
		},
		{
			ExitRefused, "refused", "refused by a check or because of a concurrent change; nothing was changed",
			"a certificate that does not cover the endpoint; a plan whose Secret was renewed since",
		},
		{
			ExitNotPermitted, "notPermitted", "forbidden by the cluster; the hint has the verb and the resource (`get " +
				"kubeconfig`, `whoami` and `login`: 1, as with Pinniped)", "no `get` on Secrets",
		},
		{
			ExitNotConverged, "notInEffect", "not in effect in time; `ip-tls status`: not in effect",
			"an address presents another certificate",
		},
		{
			ExitNotDue, "notDue",
			"the new certificate waits for clients that would stop verifying; run the same command later",
			"kubeconfigs with the old CA are in use",
		},
		{
			ExitDiffers, ReasonDiffers, "`get kubeconfig --check` and `--diff`: the file differs from a new one",
			"the cluster has another CA",
		},
		{
			ExitSwitchedOff, "switchedOff", "done, but the impersonation proxy is off: `ip-tls set --mode enabled` enables it",
			"`mode: disabled`; `auto` where control-plane nodes are visible",
		},
		{
			ExitKubeconfigs, "kubeconfigsBreak", "`ip-tls status`: the configuration is in effect, but users are refused, or " +
				"a file of `--kubeconfigs` is broken, will break, or cannot be read",
			"the CA was renewed, and kubeconfigs have the old one",
		},
		{ExitTimedOut, "timedOut", "`--timeout` expired before anything was changed", "a cluster that does not respond"},
		{ExitInterrupted, "interrupted", "interrupted by SIGINT or SIGTERM", "Ctrl-C"},
	}
}

// Hinter is an error that knows what its reader can do about it. Packages below internal/cli implement it to give a
// hint without importing this package.
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

// WithHint returns err with a hint: one sentence about what to do, printed on a line of its own below the error.
// The outermost hint wins. A nil err stays nil.
func WithHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if format != "%s" { // which passes on a whole hint
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
func WithExitCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return &coded{error: err, code: code}
}

// WithReason is WithExitCode for a reason that is not the first one of its code in ExitCodes.
func WithReason(err error, code int, reason string) error {
	if err == nil {
		return nil
	}
	return &coded{error: err, code: code, reason: reason}
}

// ReasonOf returns the reason of err in one word, as ExitCodes has it; empty for an exit code that is not listed.
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

// Usage marks err as a mistake on the command line or in the configuration file: the process ends with ExitUsage.
func Usage(err error) error { return WithExitCode(err, ExitUsage) }

// ExitCodeOf returns the process's exit code for err: the one attached by WithExitCode, or else ExitTimedOut for a
// passed deadline, ExitInterrupted for a cancelled context, and ExitFailed for everything else. It is ExitDone for nil.
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

// Ended says how a program that a command ran has ended. The process ends with the same code, and prints nothing: the
// program has said what there is to say.
type Ended struct{ Code int }

func (e *Ended) Error() string { return fmt.Sprintf("the program ended with code %d", e.Code) }

// ExitCode is the program's.
func (e *Ended) ExitCode() int { return e.Code }
