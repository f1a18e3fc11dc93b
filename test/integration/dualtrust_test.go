package integration

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// enough waits for this number of further requests of the load.
func (l *traffic) enough(t *testing.T, requests int64) {
	t.Helper()
	before := l.requests.Load()
	testkit.Eventually(t, 30*time.Second, func() error {
		if done := l.requests.Load() - before; done < requests {
			return fmt.Errorf("%d requests", done)
		}
		return nil
	})
}

// TestARenewalByAnotherCA renews the certificate in the Secret with another CA, as cert-manager does after its CA is
// renewed. Clients that trust only the old CA keep working, and so do clients of kubeconfigs issued meanwhile, also
// when all replicas restart. The latter also work when an administrator activates the new certificate.
func TestARenewalByAnotherCA(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	old, next := newCA(t, "Old CA", time.Now()), newCA(t, "Next CA", time.Now())
	first, second := issueAt(t, old, time.Now(), 90*24*time.Hour, "localhost"), issueAt(t, next, time.Now(),
		90*24*time.Hour, "localhost")
	const secret = "renewed-by-another"
	w.putSecret(t, secret, withCA(first, old.CertPEM()))
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret}
	})
	served := func(pair *certs.KeyPair) { w.allServe(t, 30*time.Second, pair) }
	w.waitForBundle(t, old.CertPEM())
	served(first)
	w.waitForServed(t, 20*time.Second, first, 2, 2)

	before := w.load(t, trusting(old.CertPEM()))
	w.putSecret(t, secret, withCA(second, next.CertPEM()))
	w.waitForBundle(t, certs.UnionBundle(old.CertPEM(), next.CertPEM()))
	waits := w.waitForStatus(t, "Listening", ") waits until ")
	if len(waits.Findings) != 1 || waits.Findings[0].Code != configv1alpha1.CodeTransitionPrepared {
		t.Errorf("the findings are %+v", waits.Findings)
	}
	before.enough(t, 200)
	served(first)
	before.stop(t)

	// The revisions are in the status and in a ConfigMap.
	revisions := w.issuer(t).Status.Revisions
	if len(revisions) < 2 || revisions[len(revisions)-1].Until != nil || len(revisions[len(revisions)-1].CABundle) != 2 {
		t.Errorf("the status has %+v", revisions)
	}
	var kept corev1.ConfigMap
	must.Do(t, w.admin.Get(t.Context(), ours(w.issuer(t).Status.Objects.RevisionsConfigMap), &kept))
	history, err := serving.Read(kept.Data)
	if err != nil || history.Current() == nil ||
		!bytes.Contains(history.Current().Bundle, bytes.TrimSpace(next.CertPEM())) {
		t.Errorf("remembered is %+v, %v", history.Current(), err)
	}

	// All replicas restart at the same time.
	kill(t, w.agents...)
	served(first)
	w.waitForServed(t, 60*time.Second, first, 2, 2)
	w.waitForStatus(t, "Listening", ") waits until ")

	// The new certificate is activated under load of the clients from the meantime.
	after := w.load(t, trusting(w.publishedBundle(t)))
	after.enough(t, 100)
	w.onlyNow(t) // declares that no kubeconfig has only the first CA
	served(second)
	w.waitForBundle(t, next.CertPEM())
	after.enough(t, 200)
	after.stop(t)
	w.waitForStatus(t, "Listening", "ready to accept client connections")
	said := w.kubectlDoes(t, "get", "events", "--namespace=default",
		`--output=jsonpath={range .items[*]}{.reason}{" "}{.message}{"\n"}{end}`)
	for _, want := range []string{
		"TransitionPrepared the certificate in Secret " + secret,
		"TransitionEnded the transition to certificate SHA-256 ",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("there is no event %q:\n%s", want, said)
		}
	}
}
