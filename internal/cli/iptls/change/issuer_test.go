package change

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// atWork returns a Certificate that cert-manager is issuing.
func atWork() *discovery.Certificate {
	return &discovery.Certificate{
		Name: "proxy", Secret: "proxy-tls", Issuer: "Issuer company-ca", Issuing: true,
		Reason: "DoesNotExist", Message: "Issuing certificate as Secret does not exist",
	}
}

// issues makes cert-manager fill the Secret after a number of reads of its Certificate.
func issues(w *iptlstest.World, looks int) {
	secret := w.Cluster.TLSSecret.DeepCopy()
	w.Cluster.AfterList = func(c *iptlstest.Cluster) {
		if looks--; looks == 0 {
			c.TLSSecret = secret
			c.BumpSecret()
			c.CertManager = &discovery.Certificate{Name: "proxy", Secret: "proxy-tls", Ready: true}
		}
	}
}

func TestSetWaitsForTheIssuer(t *testing.T) {
	t.Parallel()
	const waits = "Waiting for cert-manager's Certificate \"proxy\" (DoesNotExist: Issuing certificate as Secret does not exist) " +
		"to fill Secret \"pinniped-concierge/proxy-tls\""
	for _, tt := range []struct {
		name  string
		setup func(*testing.T, *iptlstest.World)
	}{
		{"that makes the Secret", func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret = nil }},
		{"that fills a Secret without a key", func(_ *testing.T, w *iptlstest.World) {
			delete(w.Cluster.TLSSecret.Data, "tls.key")
			delete(w.Cluster.TLSSecret.Data, "ca.crt")
		}},
		{"that replaces a certificate for other names", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			other := iptlstest.Serving(t, w.CA, certs.SANs{DNSNames: []string{"other.example.com"}})
			w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = other.CertPEM, other.KeyPEM
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Obey(t)
			w.Cluster.CertManager = atWork()
			issues(w, 3)
			tt.setup(t, w)
			runSet(t.Context(), w, nil).Check(t, 0, waits, `Secret "pinniped-concierge/proxy-tls" was filled`, "configured")
		})
	}
}

func TestSetWaitsInVain(t *testing.T) {
	t.Parallel()
	failed := func() *discovery.Certificate {
		one := atWork()
		one.Issuing, one.Failed = false, "Failed: the CA says no"
		return one
	}
	for _, tt := range []struct {
		name  string
		setup func(*iptlstest.World)
		code  int
		says  []string
		lacks string
	}{
		{
			name:  "says what it has waited for when the time is over",
			setup: func(w *iptlstest.World) { w.Cluster.CertManager = atWork() },
			code:  ui.ExitTimedOut,
			says: []string{
				`Certificate "proxy" (DoesNotExist: Issuing`, "kubectl describe certificates,certificaterequests", "--timeout",
				"nothing was changed",
			},
		},
		{
			name:  "ends at once when cert-manager has failed",
			setup: func(w *iptlstest.World) { w.Cluster.CertManager = failed() },
			code:  1,
			says:  []string{`failed to fill Secret "pinniped-concierge/proxy-tls": Failed: the CA says no`, "cmctl renew proxy --namespace pinniped-concierge"},
		},
		{
			name: "ends when cert-manager fails meanwhile",
			setup: func(w *iptlstest.World) {
				w.Cluster.CertManager = atWork()
				w.Cluster.AfterList = func(c *iptlstest.Cluster) { c.CertManager = failed() }
			},
			code: 1,
			says: []string{"Waiting for cert-manager's Certificate", `failed to fill Secret "pinniped-concierge/proxy-tls": Failed: the CA says no`},
		},
		{
			name: "ends when the Certificate is deleted meanwhile",
			setup: func(w *iptlstest.World) {
				w.Cluster.CertManager = atWork()
				w.Cluster.AfterList = func(c *iptlstest.Cluster) { c.CertManager = nil }
			},
			code: ui.ExitRefused, says: []string{"Waiting for cert-manager's Certificate", "SecretNotFound"},
		},
		{
			name: "fails at once when no Certificate names the Secret",
			setup: func(w *iptlstest.World) {
				w.Cluster.CertManager = atWork()
				w.Cluster.CertManager.Secret = "another"
			},
			code: ui.ExitRefused, says: []string{"SecretNotFound", "kubectl get secrets"}, lacks: "Waiting",
		},
		{
			name: "fails at once, and says what is not known, without the right to list Certificates",
			setup: func(w *iptlstest.World) {
				w.Cluster.CertificatesErr = fmt.Errorf("listing: %w", discovery.ErrForbidden)
			},
			code: ui.ExitRefused, says: []string{"SecretNotFound", "Cannot tell whether cert-manager will fill"}, lacks: "Waiting",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Cluster.TLSSecret = nil
			tt.setup(w)
			r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort })
			r.Check(t, tt.code, tt.says...)
			if tt.lacks != "" {
				r.Lacks(t, tt.lacks)
			}
			if len(w.Cluster.Options) > 0 {
				t.Error("something was applied")
			}
		})
	}
}

func TestSetDoesNotWaitForTheIssuer(t *testing.T) {
	t.Parallel()
	const wait = "kubectl wait --for=condition=Ready certificates/proxy --namespace pinniped-concierge"
	for _, tt := range []struct {
		name   string
		change func(*SetOptions)
	}{
		{"in a dry run", func(o *SetOptions) { o.Flags.DryRun = "client" }},
		{"with --wait=false", func(o *SetOptions) { o.Flags.Wait = false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Cluster.TLSSecret, w.Cluster.CertManager = nil, atWork()
			r := runSet(t.Context(), w, tt.change)
			r.Check(t, ui.ExitRefused, "SecretNotFound", wait)
			r.Lacks(t, "Waiting")
		})
	}
	t.Run("with a certificate that fits, while another one is being issued", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.CertManager = atWork()
		r := runSet(t.Context(), w, nil)
		r.Check(t, 0, "configured")
		r.Lacks(t, "Waiting for cert-manager")
	})
	t.Run("with a certificate that does not fit, of a Certificate that is ready", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.CertManager = &discovery.Certificate{Name: "proxy", Secret: "proxy-tls", Ready: true}
		w.Cluster.TLSSecret.Data["tls.crt"] = []byte(strings.Repeat("x", 10))
		r := runSet(t.Context(), w, nil)
		r.Check(t, ui.ExitRefused, "NotACertificate")
		r.Lacks(t, "Waiting for cert-manager")
	})
}

// TestSetWaitsForAnotherIssuer checks a Secret that another controller owns and has yet to fill.
func TestSetWaitsForAnotherIssuer(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	yes := true
	w.Cluster.TLSSecret.OwnerReferences = []metav1.OwnerReference{
		{Kind: "ExternalSecret", Name: "proxy", Controller: &yes},
	}
	w.Cluster.TLSSecret.Data["tls.key"] = nil
	r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort })
	r.Check(t, ui.ExitTimedOut, `waiting for ExternalSecret "proxy" to fill Secret`, "nothing was changed")
	if took := w.Cluster.SecretsRead; len(took) < 2 {
		t.Errorf("it has looked at the Secret %d times in %s", len(took), iptlstest.TooShort.Round(time.Second))
	}
}
