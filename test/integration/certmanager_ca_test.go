package integration

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	cliresult "github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestCertManagerRenewsTheCA gives cert-manager's Issuer another CA with another key, and has cert-manager reissue the
// certificate in service, under load. Clients that trust only the old CA keep working. When none are left, the new
// certificate becomes active, under load of clients with a refreshed trust bundle.
func TestCertManagerRenewsTheCA(t *testing.T) {
	w := needsCluster(t)
	m := w.installCertManager(t)
	w.generatedOnly(t)
	const secret = "by-cert-manager"
	w.removeAfterwards(t, &corev1.Secret{ObjectMeta: ourMeta(secret)})
	m.start(t)
	m.apply(t, w.asAdmin(t, "ip-tls", "manifest", "--issuer=Issuer/company-ca", "--secret="+secret).out)
	// ip-tls set waits until cert-manager has issued the certificate.
	w.asAdmin(t, "ip-tls", "set", "--secret="+secret, "--timeout=60s", "--allow=OldClientsBreak").ok(t)
	w.onlyNow(t)
	first, err := presented(w.agents[0].ProxyAddress())
	if err != nil || first.CheckSignatureFrom(m.pki.Certificate()) != nil {
		t.Fatalf("presented is a certificate of %v, %v", first.Issuer, err)
	}
	everywhere := func(not, want []byte) {
		t.Helper()
		w.everyReplica(t, 30*time.Second, func(agent *devinstall.Agent) error { return differs(agent, not, want) })
	}
	everywhere(nil, first.Raw)
	before := w.load(t, trusting(m.pki.CertPEM()))

	next := newCA(t, "Company CA, renewed", time.Now())
	key := must.Get(next.KeyPEM())(t)
	w.putSecret(t, "company-ca", map[string][]byte{"tls.crt": next.CertPEM(), "tls.key": key})
	m.renew(t, secret)
	var issued corev1.Secret
	testkit.Eventually(t, 30*time.Second, func() error {
		err := w.admin.Get(t.Context(), ours(secret), &issued)
		if err == nil && !certs.SameBundle(issued.Data["ca.crt"], next.CertPEM()) {
			err = fmt.Errorf("cert-manager has issued with this CA: %s", issued.Data["ca.crt"])
		}
		return err
	})
	chain, _ := certs.ParseBundle(issued.Data[corev1.TLSCertKey])
	waits := w.waitForStatus(t, "Listening", certs.Fingerprint(chain[0].Raw))
	if len(waits.Findings) != 1 || waits.Findings[0].Code != configv1alpha1.CodeTransitionPrepared {
		t.Errorf("the findings are %+v", waits.Findings)
	}
	both := certs.UnionBundle(m.pki.CertPEM(), next.CertPEM())
	w.waitForBundle(t, both)
	before.enough(t, 200)
	everywhere(nil, first.Raw)
	status := w.status(t)
	if status.Users.State != cliresult.UsersNotAffected ||
		!strings.Contains(status.Users.Message, " waits for clients of ") {
		t.Errorf("line one is %q", status.Users.Message)
	}
	before.stop(t)

	// Clients with a refreshed trust bundle keep working while the other revisions are retired and the new certificate
	// becomes active.
	after := w.load(t, trusting(w.publishedBundle(t)))
	after.enough(t, 100)
	testkit.Eventually(t, 20*time.Second, func() error {
		left := 0
		for _, state := range w.status(t).Clients {
			if state.Until != nil && state.Outcome != cliresult.ClientsRetired {
				left++
				if got := w.asAdmin(t, "ip-tls", "history", "--retire="+state.ID); got.code != 0 {
					return fmt.Errorf("history --retire ended with %d: %s", got.code, got.errOut)
				}
			}
		}
		if left > 0 { // a revision is not retired within the second of its last publication
			return fmt.Errorf("%d states were not retired yet", left)
		}
		return nil
	})
	everywhere(first.Raw, chain[0].Raw)
	after.enough(t, 200)
	after.stop(t)
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := w.publishedBundle(t); !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(next.CertPEM())) {
			return fmt.Errorf("published is %s", got)
		}
		return nil
	})
	w.waitForStatus(t, "Listening", "ready to accept client connections")
	hint := "kubectl describe certificate " + secret + " --namespace=" + devinstall.Namespace
	w.types(t, hint).ok(t)
}
