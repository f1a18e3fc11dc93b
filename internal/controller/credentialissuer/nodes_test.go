package credentialissuer

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		off *configv1alpha1.StrategyFinding
		err error
	}{
		configv1alpha1.ImpersonationProxyModeDisabled: {
			off: &configv1alpha1.StrategyFinding{
				Code: configv1alpha1.CodeDisabledBySpec, Severity: "Info", Message: messageDisabled,
			},
		},
		configv1alpha1.ImpersonationProxyModeEnabled: {},
		configv1alpha1.ImpersonationProxyModeAuto:    {err: errForbidden},
	} {
		off, err := r.turnedOff(t.Context(), spec{Mode: mode})
		if !cmp.Equal(off, want.off) || !errors.Is(err, want.err) {
			t.Errorf("mode %s: got %v and %v, want %v and %v", mode, off, err, want.off, want.err)
		}
	}
}
