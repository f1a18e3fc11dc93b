package credentialissuer

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// noNodes may not list nodes.
type noNodes struct{ client.Reader }

var errForbidden = errors.New("nodes is forbidden")

func (noNodes) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errForbidden
}

// TestTurnedOff shows that only mode auto asks for nodes.
func TestTurnedOff(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Live: noNodes{}}
	for mode, want := range map[configv1alpha1.ImpersonationProxyMode]struct {
		off string
		err error
	}{
		configv1alpha1.ImpersonationProxyModeDisabled: {off: messageDisabled},
		configv1alpha1.ImpersonationProxyModeEnabled:  {},
		configv1alpha1.ImpersonationProxyModeAuto:     {err: errForbidden},
	} {
		off, err := r.turnedOff(t.Context(), spec{Mode: mode})
		if off != want.off || !errors.Is(err, want.err) {
			t.Errorf("mode %s: got %q and %v, want %q and %v", mode, off, err, want.off, want.err)
		}
	}
}
