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

// TestSetServiceType changes the Service in front of the proxy, alone and together with a certificate, with the usual
// checks and rollback, and undoes it.
func TestSetServiceType(t *testing.T) {
	t.Parallel()
	to := func(kind string) func(*SetOptions) {
		return func(o *SetOptions) { o.Certificate.Secret, o.ServiceType = "", kind }
	}
	kind := func(w *iptlstest.World) configv1alpha1.ImpersonationProxyServiceType {
		return w.Cluster.Issuer.Spec.ImpersonationProxy.Service.Type
	}
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Record(t)
		before, was := SpecOf(w), kind(w)
		runSet(t.Context(), w, to("ClusterIP")).Check(t, 0, "configured", "presents the certificate", "service.type")
		if kind(w) != configv1alpha1.ServiceTypeClusterIP || SpecOf(w).TLS == nil ||
			SpecOf(w).TLS.SecretName != before.TLS.SecretName {
			t.Errorf("got %+v", SpecOf(w))
		}
		runSet(t.Context(), w, to("ClusterIP")).Check(t, 0, "unchanged")
		runUndo(t, w, nil).Check(t, 0)
		if kind(w) != was {
			t.Errorf("after undo, the type is %q", kind(w))
		}
	})
	t.Run("with a certificate", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, func(o *SetOptions) { o.ServiceType = "ClusterIP" }).Check(t, 0, "configured")
		if kind(w) != configv1alpha1.ServiceTypeClusterIP {
			t.Errorf("the type is %q", kind(w))
		}
	})
	t.Run("is put back when it does not take effect", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		before := kind(w)
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
			c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
				iptlstest.FailedReport(configv1alpha1.ReasonErrorDuringSetup, "no load balancer"),
			}
		}
		runSet(t.Context(), w, func(o *SetOptions) {
			to("ClusterIP")(o)
			o.Session.Timeout = iptlstest.TooShort
		}).Check(t, ui.ExitNotConverged, "the previous configuration was restored")
		if got := kind(w); got != before {
			t.Errorf("the type is %q", got)
		}
	})
	t.Run("None needs an endpoint", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = ""
		runSet(t.Context(), w, to("None")).
			Check(t, ui.ExitUsage, "needs an external endpoint", "--external-endpoint HOST:PORT")
	})
	t.Run("what is no type", func(t *testing.T) {
		t.Parallel()
		runSet(t.Context(), iptlstest.New(t), to("NodePort")).
			Check(t, ui.ExitUsage, `invalid value "NodePort" for --service-type`)
	})
}
