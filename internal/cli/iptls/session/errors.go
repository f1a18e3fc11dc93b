package session

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// rolesHint says where the Roles for these commands are.
const rolesHint = "use an administrator's kubeconfig, or ask for a Role: deploy/iptlsroles has " +
	"pinniped-ip-tls-viewer and pinniped-ip-tls-operator"

// WithCodes adds the documented exit codes to errors from the cluster.
func WithCodes(err error) error {
	if !errors.Is(err, discovery.ErrForbidden) {
		return err
	}
	if _, ok := errors.AsType[*forbiddenError](err); ok {
		return err
	}
	denied := &forbiddenError{error: err}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		denied.server = status.ErrStatus.Message
	}
	return ui.WithExitCode(ui.WithHint(denied, "%s", rolesHint), ui.ExitNotPermitted)
}

// forbiddenError is a forbidden request with the API server's message.
type forbiddenError struct {
	error
	server string
}

func (e *forbiddenError) Unwrap() error { return e.error }

func (e *forbiddenError) Error() string {
	if e.server == "" {
		return e.error.Error()
	}
	return e.error.Error() + ": " + e.server
}
