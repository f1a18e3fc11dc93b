package change

import (
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestChangeOfCAIsRefused changes to the agent's generated certificate and back: a change that breaks kubeconfigs must
// be refused, and not found out by an outage.
func TestChangeOfCAIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		world func(*testing.T) *iptlstest.World
		run   func(*testing.T, *iptlstest.World, []string) *iptlstest.Run
		hint  string
	}{
		{
			name: "by the first set", world: iptlstest.New, hint: `"pinniped kubeconfig rotate"`,
			run: func(t *testing.T, w *iptlstest.World, allow []string) *iptlstest.Run {
				t.Helper()
				r := &iptlstest.Run{}
				o := optionsFor(w, r)
				o.Certificate.Allow = allow
				o.Session.NewProgress = func() *ui.Progress { return &ui.Progress{Out: io.Discard} } // like -q
				return r.Do(t.Context(), o)
			},
		},
		{
			name: "by unset", world: iptlstest.NewExternalWorld, hint: "pinniped kubeconfig rotate",
			run: func(t *testing.T, w *iptlstest.World, allow []string) *iptlstest.Run {
				t.Helper()
				return runUnset(t, w, func(o *UnsetOptions) { o.Allow = allow })
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := tt.world(t)
			w.Obey(t)
			before := SpecOf(w)
			tt.run(t, w, nil).Check(t, ui.ExitRefused, "OldClientsBreak", tt.hint, "--allow OldClientsBreak")
			if diff := cmp.Diff(before, SpecOf(w)); diff != "" {
				t.Errorf("it was changed (-want +got):\n%s", diff)
			}
			tt.run(t, w, []string{"OldClientsBreak"}).Check(t, 0)
			if cmp.Equal(before, SpecOf(w)) {
				t.Error("with --allow, it was not changed")
			}
		})
	}
}

// TestAllowedChangeOfCAIsStillChecked presents a certificate that the new CA bundle does not verify: --allow
// OldClientsBreak does not allow that.
func TestAllowedChangeOfCAIsStillChecked(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	obey := w.Cluster.AfterApply
	w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
		obey(c)
		w.Proxy.Serve(t, iptlstest.Serving(t, w.Generated, iptlstest.Loopback()))
	}
	runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort }).Check(t, ui.ExitNotConverged)
}
