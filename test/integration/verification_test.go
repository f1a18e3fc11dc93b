package integration

import (
	"testing"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestAWrongNameWithoutVerification sets spec.impersonationProxy.tls without verification, as objects for Pinniped do.
// A certificate for another name does not replace a good one, whether generated or external, also when a replica
// restarts. Clients are not affected. With verification Warn, the agent serves it.
func TestAWrongNameWithoutVerification(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	good, wrong := w.issue(t, "localhost"), w.issue(t, "elsewhere.example.com")
	w.putSecret(t, "unverified-good", withCA(good, w.pki.CertPEM()))
	w.putSecret(t, "unverified-wrong", withCA(wrong, w.pki.CertPEM()))
	use := func(secret string, verification configv1alpha1.TLSVerification) {
		t.Helper()
		w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
			s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret, Verification: verification}
		})
	}

	generated := must.Get(presented(w.agents[0].ProxyAddress()))(t)
	use("unverified-wrong", "")
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.NameNotCovered))
	for _, agent := range w.agents {
		if now, err := presented(agent.ProxyAddress()); err != nil || !now.Equal(generated) {
			t.Errorf("the generated certificate was replaced: %v", err)
		}
	}

	use("unverified-good", "")
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	use("unverified-wrong", "")
	w.waitForStatus(t, "ErrorDuringSetup", string(certs.NameNotCovered))
	_, follower := w.leader(t)
	kill(t, follower)
	w.allPresent(t, 30*time.Second, good)

	use("unverified-wrong", configv1alpha1.VerificationWarn)
	w.waitForServed(t, 60*time.Second, wrong, 2, 2)
	w.waitForStatus(t, "Listening", string(certs.NameNotCovered))
	use("unverified-wrong", "") // no better certificate is in service
	w.waitForStatus(t, "Listening", string(certs.NameNotCovered))
	w.generatedOnly(t)
}
