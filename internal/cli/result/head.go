// Package result holds what the commands print for programs, with -o json and -o yaml: one versioned shape for all.
//
// Every object begins with Head: apiVersion, kind and, when the command has failed, error. What several commands show
// has one type here (shapes.go): a CA bundle, a Secret, a kubeconfig, an address. Values of enums have no spaces.
//
// To make the output of a new command conform:
//
//  1. Declare its type here, with Head as the first, embedded field, and a comment for each field that needs one.
//  2. Add it to Kinds.
//  3. Add --output with factory.AddOutput, and end Run with
//     "return result.Print(o.Out, o.Output, &object, err, text)".
//  4. Check an output in a test with resulttest.Valid.
//
// A command that fails before it has an object needs nothing more: the root command prints a Failure in its place.
package result

import (
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// APIVersion is the version of all objects. Within a version, fields and values of enums are added, but none is removed
// or gets another meaning.
const APIVersion = "cli.pinniped.dev/v1"

// Head is how every object begins.
type Head struct {
	// APIVersion is the version of the shape.
	APIVersion string `json:"apiVersion"`
	// Kind names the shape.
	Kind Kind `json:"kind"`
	// Error says why the command has failed, or why it does not end with exit code 0. It is absent when all is well.
	Error *Error `json:"error,omitempty"`
}

func (h *Head) head() *Head { return h }

// Object is what a command prints: a struct that embeds Head.
type Object interface{ head() *Head }

// Error is why a command did not end with exit code 0.
type Error struct {
	// Reason is the class of the error. Each belongs to one exit code.
	Reason ErrorReason `json:"reason"`
	// Message is what the command says on stderr.
	Message string `json:"message"`
	// Hint says what to do about it.
	Hint string `json:"hint,omitempty"`
	// ExitCode is that of the process.
	ExitCode int `json:"exitCode"`
}

// ErrorReason is the class of an error.
type ErrorReason string

// ReasonOther is that of an exit code which other commands do not have; their help tells its meaning.
const ReasonOther ErrorReason = "other"

// Enum lists the reasons.
func (ErrorReason) Enum() []string {
	var all []string
	for _, known := range ui.ExitCodes() {
		if known.Reason != "" {
			all = append(all, known.Reason)
		}
	}
	return append(all, string(ReasonOther))
}

// ErrorOf returns what there is to print about err; nil for nil.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	reason := ErrorReason(ui.ReasonOf(err))
	if reason == "" {
		reason = ReasonOther
	}
	return &Error{
		Reason: reason, Message: strings.TrimSpace(err.Error()), Hint: ui.HintOf(err), ExitCode: ui.ExitCodeOf(err),
	}
}

// Failure is printed by a command that failed before it had anything else to print.
type Failure struct {
	Head
}

// NewFailure returns the object for err.
func NewFailure(err error) *Failure { return &Failure{Head{Error: ErrorOf(err)}} }
