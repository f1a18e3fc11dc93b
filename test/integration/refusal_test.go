package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// badCertificate is a Secret that must never be put into service.
type badCertificate struct {
	name    string
	code    certs.Code
	data    map[string][]byte // nil: the Secret does not exist
	bundle  []byte
	pending bool // there is no certificate to judge yet
}

func (w *world) badCertificates(t *testing.T) []badCertificate {
	t.Helper()
	now, corporate := time.Now(), w.pki.CertPEM()
	const day = 24 * time.Hour
	old := newCA(t, "Old CA", now.Add(-100*day))
	good, other := w.issue(t, "localhost"), w.issue(t, "localhost")
	return []badCertificate{
		{"wrong SAN", certs.NameNotCovered, pairData(w.issue(t, "elsewhere.example.com")), corporate, false},
		{"expired", certs.Expired, pairData(issueAt(t, old, now.Add(-20*day), 10*day, "localhost")), old.CertPEM(), false},
		{
			"not yet valid",
			certs.NotYetValid,
			pairData(issueAt(t, w.pki, now.Add(2*day), 10*day, "localhost")),
			corporate,
			false,
		},
		{
			"key of another certificate",
			certs.KeyMismatch,
			map[string][]byte{"tls.crt": good.CertPEM, "tls.key": other.KeyPEM},
			corporate,
			false,
		},
		{"CA that does not verify it", certs.BundleDoesNotVerify, pairData(good), newCA(t, "Stranger", now).CertPEM(), false},
		{"private key in the bundle", certs.NotACertificate, pairData(good), append(w.pki.CertPEM(), good.KeyPEM...), false},
		{"half-made", certs.SecretIncomplete, map[string][]byte{"tls.crt": good.CertPEM, "tls.key": {}}, corporate, true},
		{
			"no PEM",
			certs.NotACertificate,
			map[string][]byte{"tls.crt": []byte("hello"), "tls.key": good.KeyPEM},
			corporate,
			false,
		},
		{"missing", certs.SecretNotFound, nil, corporate, true},
	}
}

func TestTheCLIRefuses(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	before := w.issuer(t)
	for _, bad := range w.badCertificates(t) {
		t.Run(bad.name, func(t *testing.T) {
			secret := "cli-" + strings.ToLower(strings.ReplaceAll(bad.name, " ", "-"))
			if bad.data != nil {
				w.putSecret(t, secret, bad.data)
			}
			bundle := fileWith(t, "ca.pem", bad.bundle)
			got := w.asAdmin(t, "ip-tls", "set", "--secret="+secret, "--ca-bundle="+bundle, "--timeout=10s")
			if got.code != 3 {
				t.Errorf("it ended with %d, want 3", got.code)
			}
			if !strings.Contains(got.out+got.errOut, string(bad.code)) {
				t.Errorf("the reason %s is not told:\n%s%s", bad.code, got.out, got.errOut)
			}
			if strings.Contains(got.out+got.errOut, "PRIVATE KEY-----\n") {
				t.Error("a private key was printed")
			}
			if after := w.issuer(t); after.Generation != before.Generation {
				t.Errorf("the CredentialIssuer was patched: %+v", after.Spec.ImpersonationProxy.TLS)
			}
		})
	}
}

// TestTheAgentKeepsTheLastKnownGoodOne replaces a valid Secret by each invalid one: the served certificate stays, and
// the status has the reason. When the Secret is fixed, everything recovers by itself.
func TestTheAgentKeepsTheLastKnownGoodOne(t *testing.T) {
	w := needsCluster(t)
	good := w.issue(t, "localhost")
	w.external(t, "kept-cert", pairData(good))
	for _, bad := range w.badCertificates(t) {
		if bad.code == certs.BundleDoesNotVerify || bad.name == "private key in the bundle" {
			continue // this bundle is in the CredentialIssuer, not in the Secret
		}
		if bad.name == "expired" {
			// That certificate has another CA than the published one, which is refused first: use the published CA.
			bad.data = pairData(issueAt(t, w.pki, time.Now().Add(-20*time.Minute), 10*time.Minute, "localhost"))
		}
		t.Run(bad.name, func(t *testing.T) {
			if bad.data == nil {
				must.Do(t, w.admin.Delete(t.Context(), &corev1.Secret{ObjectMeta: ourMeta("kept-cert")}))
			} else {
				w.putSecret(t, "kept-cert", bad.data)
			}
			if bad.pending {
				w.waitForStatus(t, "Pending", string(bad.code))
			} else {
				w.waitForStatus(t, "ErrorDuringSetup", string(bad.code))
			}
			for _, agent := range w.agents {
				if err := presents(agent.ProxyAddress(), good); err != nil {
					t.Errorf("%v", err)
				}
				if err := agent.Ready(t.Context()); err != nil {
					t.Errorf("a replica that serves is not ready: %v", err)
				}
			}
			w.putSecret(t, "kept-cert", pairData(good))
			w.waitForStatus(t, "Listening", "")
		})
	}
}

// TestTheGeneratedCertificateComesBack switches from the generated certificate to an external one and back. Afterwards,
// the kubeconfigs from before work again.
func TestTheGeneratedCertificateComesBack(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	old := w.userKubeconfig(t, "pinny:password123")
	oldCA := w.strategy(t).Frontend.ImpersonationProxyInfo.CertificateAuthorityData
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	if got := w.run(t, w.cli, "whoami", "--kubeconfig="+old); got.code == 0 {
		t.Error("a kubeconfig with another CA works: somebody does not verify certificates")
	}
	w.generatedOnly(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		if got := w.strategy(t).Frontend.ImpersonationProxyInfo.CertificateAuthorityData; got != oldCA {
			return fmt.Errorf("another CA is published")
		}
		if got := w.run(t, w.cli, "whoami", "--kubeconfig="+old); got.code != 0 {
			return fmt.Errorf("whoami: %s", got.errOut)
		}
		return nil
	})
}

// TestTheUpstreamCredentialCanOnlyImpersonate checks the permissions of the proxy's service account at the API server.
func TestTheUpstreamCredentialCanOnlyImpersonate(t *testing.T) {
	w := needsCluster(t)
	identity := must.Get(w.Cluster.ServiceAccountConfig(
		t.Context(),
		devinstall.Namespace,
		"pinniped-concierge-impersonation-proxy",
	))(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, w.Cluster.WriteKubeconfig(path, identity))
	for _, question := range [][]string{
		{"get", "secrets"}, {"create", "pods"}, {"list", "nodes"}, {"create", "tokenreviews.authentication.k8s.io"},
	} {
		got := w.run(t, w.kubectl, append([]string{"--kubeconfig=" + path, "auth", "can-i"}, question...)...)
		if strings.TrimSpace(got.out) != "no" {
			t.Errorf("%v: %s", question, got.out)
		}
	}
	if got := w.kubectlAs(t, path, "auth", "can-i", "impersonate", "users"); strings.TrimSpace(got.out) != "yes" {
		t.Errorf("impersonate users: %s", got.out)
	}
}

// TestAuditLogNamesEverybody reads the API server's audit log: the proxy's account acts, and impersonates the user.
func TestAuditLogNamesEverybody(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	w.kubectlAs(t, kubeconfig, "get", "--raw=/api/v1/namespaces/default/configmaps/nobody-reads-this")
	// The proxy denies what pinny may not do, and forwards what everyone may do.
	w.kubectlAs(t, kubeconfig, "get", "--raw=/version?asked-by=pinny").ok(t)
	testkit.Eventually(t, 5*time.Second, func() error {
		for event := range w.audit(t) {
			if !strings.Contains(event.RequestURI, "asked-by=pinny") {
				continue
			}
			if event.User.Username != "system:serviceaccount:pinniped-concierge:pinniped-concierge-impersonation-proxy" ||
				event.as() != "pinny" {
				t.Fatalf("the audit log names %+v", event)
			}
			return nil
		}
		return fmt.Errorf("the request is not in the audit log")
	})
}

// TestLeadershipMoves kills the leader: the other replica leads within 20 seconds, and serves throughout.
func TestLeadershipMoves(t *testing.T) {
	w := needsCluster(t)
	good := w.issue(t, "localhost")
	w.external(t, "corporate-cert", pairData(good))
	killed, left := w.leader(t)
	must.Do(t, killed.Kill())
	died := time.Now()
	testkit.Cleanup(t, func() error { return killed.Restart(context.WithoutCancel(t.Context())) })
	if err := presents(left.ProxyAddress(), good); err != nil {
		t.Errorf("the replica that is left: %v", err)
	}
	w.putSecret(t, "corporate-cert", map[string][]byte{"tls.crt": []byte("x"), "tls.key": good.KeyPEM})
	testkit.Eventually(t, 25*time.Second, func() error {
		if strategy := w.strategy(t); !strings.Contains(strategy.Message, string(certs.NotACertificate)) {
			return fmt.Errorf("nobody wrote the status: %s", strategy.Message)
		}
		return nil
	})
	if took := time.Since(died); took > 20*time.Second {
		t.Errorf("leadership moved after %s", took)
	}
}
