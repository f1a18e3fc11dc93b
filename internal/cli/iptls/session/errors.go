package session

import (
	"errors"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// WithCodes gives errors from the cluster the exit codes that the command documents, and the hints that fit its flags.
func WithCodes(err error) error {
	var several *discovery.SeveralError
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		return ui.WithExitCode(err, ui.ExitNotPermitted)
	case errors.As(err, &several):
		return ui.WithHint(err, "name one of them with --credential-issuer")
	default:
		return err
	}
}
