package change

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestSetMode enables and disables the proxy with the command of the hints, and keeps everything else.
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
			Check(t, ui.ExitSwitchedOff, "enable it: pinniped ip-tls set --mode enabled")
		runSet(t.Context(), w, to("enabled")).Check(t, 3, "SecretNotFound")
	})
	t.Run("not together with what needs a Secret", func(t *testing.T) {
		t.Parallel()
		runSet(t.Context(), iptlstest.New(t), func(o *SetOptions) { to("enabled")(o); o.Certificate.SystemRoots = true },
			"system-roots").Check(t, 2, `--secret is missing, and CredentialIssuer "pinniped-concierge-config" names no Secret`)
	})
}

// TestSetWithTheConfiguredSecret changes settings of the configured Secret without naming it.
func TestSetWithTheConfiguredSecret(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Obey(t)
	wanted := SpecOf(w)
	wanted.TLS.ActivateAfter, wanted.TLS.CertificateAuthorityData = &metav1.Duration{Duration: time.Hour}, ""
	wanted.TLS.Verification = configv1alpha1.VerificationEnforce
	w.Cluster.TLSSecret.Data["ca.crt"] = w.CA.CertPEM()
	runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.Secret, o.Certificate.CAFromSecret, o.ActivateAfter = "", true, time.Hour
	}, "ca-from-secret", "activate-after").Check(t, 0, "presents the certificate")
	if diff := cmp.Diff(wanted, SpecOf(w)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
