package change

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// newTransition returns a world in which clients use a certificate of the Company CA, and Secret next-tls has one of
// another CA.
func newTransition(t *testing.T) (*iptlstest.World, *certs.CA) {
	t.Helper()
	w, ca := iptlstest.NewExternalWorld(t), iptlstest.NewCA(t, "Next CA")
	w.Put("next-tls", iptlstest.Serving(t, ca, iptlstest.Loopback()), ca.CertPEM())
	w.DualTrust(t)
	return w, ca
}

// next sets the certificate of the other CA.
func next(t *testing.T, w *iptlstest.World, adapt func(*SetOptions), changed ...string) *iptlstest.Run {
	t.Helper()
	return runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.Secret, o.Certificate.Allow = "next-tls", nil
		if adapt != nil {
			adapt(o)
		}
	}, changed...)
}

// verifies reports whether clients with a trust bundle verify the presented certificate.
func verifies(t *testing.T, w *iptlstest.World, bundle []byte) bool {
	t.Helper()
	chain, _, err := session.RealNetwork{}.Asked(t.Context(), w.Proxy.Endpoint(), "127.0.0.1")
	must.Do(t, err)
	served := []certs.Served{{Chain: chain}}
	return len(certs.CheckServed(certs.Expected{Host: "127.0.0.1", Bundle: bundle, Now: time.Now()}, served)) == 0
}

func publishedBundle(t *testing.T, w *iptlstest.World) []byte {
	t.Helper()
	data := w.Cluster.Issuer.Status.Strategies[0].Frontend.ImpersonationProxyInfo.CertificateAuthorityData
	return must.Get(base64.StdEncoding.DecodeString(data))(t)
}

// transitionOf returns the field caTransition.
func transitionOf(w *iptlstest.World) configv1alpha1.CATransition {
	return w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.CATransition
}

// kubeconfigFor writes a kubeconfig for the endpoint that trusts a CA bundle.
func kubeconfigFor(t *testing.T, w *iptlstest.World, path string, bundle []byte) {
	t.Helper()
	config := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: w.Proxy.URL(), CertificateAuthorityData: bundle}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: "t"}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
	}
	must.Do(t, clientcmd.WriteToFile(config, path))
}

// TestSetWaitsForClients changes the CA: old clients keep working, and the command reports them until they are gone.
func TestSetWaitsForClients(t *testing.T) {
	t.Parallel()
	w, ca := newTransition(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "ann.yaml")
	kubeconfigFor(t, w, file, w.CA.CertPEM())

	next(t, w, nil).Check(t, ui.ExitNotDue, "credentialissuer/pinniped-concierge-config prepared", "transition: Prepared",
		"the new certificate is not served yet", "kubeconfigs made since", "--allow OldClientsBreak")
	applied := len(w.Cluster.Applied)
	r := next(t, w, func(o *SetOptions) { o.Session.Output = "json" })
	r.Check(t, ui.ExitNotDue)
	var done Result
	if err := json.Unmarshal(r.Out.Bytes(), &done); err != nil || done.Outcome != result.OutcomePrepared ||
		len(done.Transition.WaitsFor) != 1 || len(done.CABundle) != 2 {
		t.Errorf("%v: %s", err, r.Out.String())
	}
	if len(w.Cluster.Applied) != applied || transitionOf(w) != configv1alpha1.CATransitionDualTrust {
		t.Errorf("the second run changed something: %+v", w.Cluster.Applied)
	}
	both := publishedBundle(t, w)
	if !verifies(t, w, w.CA.CertPEM()) || verifies(t, w, ca.CertPEM()) || !verifies(t, w, both) {
		t.Error("the old certificate is not served")
	}

	files := func(o *SetOptions) { o.Flags.Kubeconfigs = []string{folder} }
	next(t, w, files).Check(t, ui.ExitNotDue, file, "which does not verify the new certificate")
	kubeconfigFor(t, w, file, both)
	damaged := filepath.Join(folder, "damaged.yaml")
	must.Do(t, os.WriteFile(damaged, []byte("<<<<<<< HEAD\nclusters: []\nusers: []\n"), 0o600))
	next(t, w, files).Check(t, ui.ExitNotDue, damaged)
	must.Do(t, os.Remove(damaged))
	next(t, w, files).Check(t, 0, "All 1 kubeconfigs", "Retired revision", "presents the certificate at 1 of 1")
	if verifies(t, w, w.CA.CertPEM()) || !verifies(t, w, both) || !certs.SameBundle(publishedBundle(t, w), ca.CertPEM()) {
		t.Error("the new certificate is not served with its own trust bundle")
	}
	next(t, w, nil).Check(t, 0, "unchanged")
}

// TestSetIsReplacedWhileItWaits undoes the change, makes another one, or ends the wait.
func TestSetIsReplacedWhileItWaits(t *testing.T) {
	t.Parallel()
	t.Run("by undo", func(t *testing.T) {
		t.Parallel()
		w, _ := newTransition(t)
		next(t, w, nil).Check(t, ui.ExitNotDue)
		runUndo(t, w, func(o *UndoOptions) { o.Allow = nil }).
			Check(t, 0, `This replaces the transition to the certificate in Secret "next-tls"`, "undone")
		if !certs.SameBundle(publishedBundle(t, w), w.CA.CertPEM()) || !verifies(t, w, w.CA.CertPEM()) {
			t.Error("it is not as before")
		}
	})
	t.Run("by another set", func(t *testing.T) {
		t.Parallel()
		w, _ := newTransition(t)
		next(t, w, nil).Check(t, ui.ExitNotDue)
		third := iptlstest.NewCA(t, "Third CA")
		w.Put("third-tls", iptlstest.Serving(t, third, iptlstest.Loopback()), third.CertPEM())
		next(t, w, func(o *SetOptions) { o.Certificate.Secret = "third-tls" }).Check(t, ui.ExitNotDue, "This replaces")
		if !verifies(t, w, w.CA.CertPEM()) {
			t.Error("clients break")
		}
	})
	t.Run("by --allow", func(t *testing.T) {
		t.Parallel()
		w, ca := newTransition(t)
		next(t, w, nil).Check(t, ui.ExitNotDue)
		next(t, w, func(o *SetOptions) { o.Certificate.Allow = []string{"OldClientsBreak"} }).
			Check(t, 0, "Retired revision", "presents the certificate")
		if !verifies(t, w, ca.CertPEM()) || transitionOf(w) != configv1alpha1.CATransitionDualTrust {
			t.Errorf("it is not served, or the next one is served at once: %v", transitionOf(w))
		}
		runStatus(t.Context(), w, session.RealNetwork{}).Check(t, 0, "USERS: not affected")
	})
}

func TestSetActivateAfter(t *testing.T) {
	t.Parallel()
	w, _ := newTransition(t)
	next(t, w, func(o *SetOptions) { o.ActivateAfter = 168 * time.Hour }, "activate-after").Check(t, ui.ExitNotDue)
	next(t, w, nil).Check(t, ui.ExitNotDue)
	if after := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.ActivateAfter; after == nil || after.Hours() != 168 {
		t.Errorf("activateAfter is %v", after)
	}
}

// TestSetRefusesWhatCannotWait checks changes during which no agent could serve the old certificate to all.
func TestSetRefusesWhatCannotWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		world func(*testing.T, *iptlstest.World, *certs.CA)
		adapt func(*SetOptions)
		given []string
	}{
		{
			name: "a name that clients use and the new certificate lacks",
			world: func(t *testing.T, w *iptlstest.World, ca *certs.CA) {
				t.Helper()
				names := iptlstest.Loopback()
				names.DNSNames = nil
				w.Put("next-tls", iptlstest.Serving(t, ca, names), ca.CertPEM())
			},
		},
		{
			name:  "an endpoint that only the new certificate covers",
			adapt: func(o *SetOptions) { o.Certificate.ExternalEndpoint = "next.example.com" },
			given: []string{"external-endpoint"},
			world: func(t *testing.T, w *iptlstest.World, ca *certs.CA) {
				t.Helper()
				names := iptlstest.Loopback()
				names.DNSNames = append(names.DNSNames, "next.example.com")
				w.Put("next-tls", iptlstest.Serving(t, ca, names), ca.CertPEM())
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, ca := newTransition(t)
			tt.world(t, w, ca)
			before := SpecOf(w)
			next(t, w, tt.adapt, tt.given...).Check(t, ui.ExitRefused, "OldClientsBreak")
			if SpecOf(w).TLS.SecretName != before.TLS.SecretName {
				t.Error("it was changed")
			}
		})
	}
}

// TestUnsetWaitsForClients changes to the generated certificate: old clients keep working until they are gone.
func TestUnsetWaitsForClients(t *testing.T) {
	t.Parallel()
	w, names := iptlstest.NewExternalWorld(t), iptlstest.Loopback()
	names.DNSNames = nil // like the generated certificate
	pair := iptlstest.Serving(t, w.CA, names)
	w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	w.Proxy.Serve(t, pair)
	w.DualTrust(t)
	unset := func(adapt func(*UnsetOptions)) *iptlstest.Run {
		return runUnset(t, w, func(o *UnsetOptions) {
			o.Allow = nil
			if adapt != nil {
				adapt(o)
			}
		})
	}
	unset(nil).Check(t, ui.ExitNotDue, "prepared", "transition: Prepared", "kubeconfigs made since")
	unset(nil).Check(t, ui.ExitNotDue)
	both := publishedBundle(t, w)
	if !verifies(t, w, w.CA.CertPEM()) ||
		!certs.SameBundle(both, certs.UnionBundle(w.CA.CertPEM(), w.Generated.CertPEM())) {
		t.Error("the old certificate is not served, or not both trust bundles are published")
	}
	file := filepath.Join(t.TempDir(), "ann.yaml")
	kubeconfigFor(t, w, file, both)
	unset(func(o *UnsetOptions) { o.Flags.Kubeconfigs = []string{file} }).
		Check(t, 0, "All 1 kubeconfigs", "Retired revision")
	if !verifies(t, w, both) || !certs.SameBundle(publishedBundle(t, w), w.Generated.CertPEM()) {
		t.Error("the generated certificate is not served")
	}
	unset(nil).Check(t, 0, "unchanged")
}

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
			same.Values(t, "it was changed", before, SpecOf(w))
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

// TestAllowedRevisionsAreRetired breaks clients of the generated certificate, as the README's first steps do. Then the
// status is good, and a later change ignores these clients.
func TestAllowedRevisionsAreRetired(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.DualTrust(t)
	runSet(t.Context(), w, nil).Check(t, 0, "Retired revision")
	history, err := serving.Read(w.Cluster.Revisions.Data)
	if err != nil || len(history.Revisions) != 2 {
		t.Fatal(history, err)
	}
	for i := range history.Revisions {
		if r := &history.Revisions[i]; r.Ended() == r.Until.IsZero() {
			t.Errorf("revision %s, published until %v, is retired: %v", r.ID, r.Until, r.Ended())
		}
	}
	runStatus(t.Context(), w, session.RealNetwork{}).Check(t, 0, "USERS: not affected")
}
