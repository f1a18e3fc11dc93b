// Package result defines the JSON and YAML output of all commands (-o json, -o yaml), in one version.
//
// Every object starts with Head: apiVersion, kind and, if the command has failed, error. Shapes that several commands
// share (CA bundle, Secret, kubeconfig, address) are in shapes.go. Enum values have no spaces.
//
// To add the output of a command:
//
// 1. Declare its type here, with Head as the first, embedded field, and a comment for each field that needs one. 2. Add
// it to Kinds. 3. Add --output with factory.AddOutput, and end Run with
//
//	"return result.Print(o.Out, o.Output, &object, err, text)".
//
// 4. Check an output in a test with resulttest.Valid.
//
// If a command fails before it has an object, the root command prints a Failure.
package result

import (
	"cmp"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// APIVersion is the version of all objects. It may get new fields and enum values; none is removed or changes meaning.
const APIVersion = "cli.pinniped.dev/v1"

// Head has the first fields of every object.
type Head struct {
	APIVersion string `json:"apiVersion"`
	Kind       Kind   `json:"kind"`
	Error      *Error `json:"error,omitempty"` // why the exit code is not 0; absent if it is 0
}

func (h *Head) head() *Head { return h }

// Object is the output of a command: a struct that embeds Head.
type Object interface{ head() *Head }

// Error is why the exit code of a command is not 0.
type Error struct {
	// Reason is the class of the error. Each reason belongs to one exit code.
	Reason   ErrorReason `json:"reason"`
	Message  string      `json:"message"`
	Hint     string      `json:"hint,omitempty"`
	ExitCode int         `json:"exitCode"`
}

// ErrorReason is the class of an error.
type ErrorReason string

// ReasonOther is the reason of exit codes that only one command has; its help explains them.
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

// ErrorOf returns err as an Error, or nil for nil.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	return &Error{
		Reason:  cmp.Or(ErrorReason(ui.ReasonOf(err)), ReasonOther),
		Message: strings.TrimSpace(err.Error()), Hint: ui.HintOf(err), ExitCode: ui.ExitCodeOf(err),
	}
}

// Failure is the output of a command that failed before it had another object.
type Failure struct{ Head }

// NewFailure returns the Failure for err.
func NewFailure(err error) *Failure { return &Failure{Head{Error: ErrorOf(err)}} }
