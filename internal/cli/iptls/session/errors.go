package session

import (
	"errors"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// WithCodes gives errors from the cluster the exit codes that the command documents.
func WithCodes(err error) error {
	if errors.Is(err, discovery.ErrForbidden) {
		return ui.WithExitCode(err, ui.ExitNotPermitted)
	}
	return err
}
