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
	ExitTimedOut     = 124 // --timeout passed
	ExitInterrupted  = 130 // interrupted by a signal
)

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
	code int
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
