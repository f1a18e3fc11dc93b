package change

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestSetMode switches the proxy on and off by the command that hints tell to type, and keeps all else.
func TestSetMode(t *testing.T) {
	t.Parallel()
	to := func(mode string) func(*SetOptions) {
		return func(o *SetOptions) { o.Certificate.Secret, o.Mode = "", mode }
	}
	for name, world := range map[string]func(*testing.T) *iptlstest.World{
		"with a certificate from a Secret": iptlstest.NewExternalWorld,
		"with the generated certificate":   iptlstest.New,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world(t)
			w.Obey(t)
			before := SpecOf(w)
			w.Cluster.Issuer.Spec.ImpersonationProxy.Mode = configv1alpha1.ImpersonationProxyModeDisabled
			runSet(t.Context(), w, to("enabled")).
				Check(t, 0, "credentialissuer/pinniped-concierge-config configured", "presents the certificate")
			before.Mode = configv1alpha1.ImpersonationProxyModeEnabled
			if diff := cmp.Diff(before, SpecOf(w)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			runSet(t.Context(), w, to("enabled")).Check(t, 0, "unchanged")
		})
	}
	t.Run("off, whatever the certificate is like", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Cluster.TLSSecret = nil
		runSet(t.Context(), w, func(o *SetOptions) { to("disabled")(o); o.Flags.Wait = false }).
			Check(t, ui.ExitSwitchedOff, "switch it on: pinniped ip-tls set --mode enabled")
		runSet(t.Context(), w, to("enabled")).Check(t, 3, "SecretNotFound")
	})
	t.Run("not together with what needs a Secret", func(t *testing.T) {
		t.Parallel()
		runSet(t.Context(), iptlstest.New(t), to("enabled"), "ca-bundle").Check(t, 2, "--secret is missing")
	})
}
