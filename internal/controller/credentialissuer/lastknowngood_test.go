package credentialissuer

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestLastKnownGood starts replicas while the Secret is invalid: they serve what the others serve, or else are not ready.
func TestLastKnownGood(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	ctx := t.Context()
	leader := startNamedReplica(t, cluster, "default", "first", true)
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	good, other := issue(t, pki, "proxy.example.com"), issue(t, pki, "proxy.example.com")
	mixed := &certs.KeyPair{CertPEM: good.CertPEM, KeyPEM: other.KeyPEM}

	// There has never been a valid certificate: nothing is served, and no replica is ready.
	leader.putSecret(t, "external", mixed, pki.CertPEM())
	leader.create(t, fromSecret("external"))
	leader.waitFor(t, "ErrorDuringSetup", string(certs.KeyMismatch))
	if leader.Ready() == nil || leader.proxy.Serving() || leader.Holder.Current() != nil {
		t.Error("it is ready without a certificate")
	}
	if strategy, err := leader.strategy(ctx); err != nil || strategy.Frontend != nil {
		t.Errorf("it publishes what it does not serve: %+v (%v)", strategy.Frontend, err)
	}

	// Valid, then invalid again: a new replica serves the last known good certificate with its bundle.
	leader.putSecret(t, "external", good, pki.CertPEM())
	leader.waitFor(t, "Listening", messageListening)
	leader.waitForSecret(t, testNames.LastKnownGoodSecret, true)
	leader.putSecret(t, "external", mixed, pki.CertPEM())
	leader.waitFor(t, "ErrorDuringSetup", string(certs.KeyMismatch))
	second := startNamedReplica(t, cluster, "default", "second", false)
	lastKnownGood := leader.Holder.Current()
	second.waitForCertificate(t, lastKnownGood.SHA256())
	if got := second.Holder.Current(); got.Secret != lastKnownGood.Secret || got.Source != lastKnownGood.Source ||
		string(got.Bundle) != string(lastKnownGood.Bundle) {
		t.Errorf("it serves %s %s, want %s %s, with the same bundle",
			got.Source, got.Secret, lastKnownGood.Source, lastKnownGood.Secret)
	}
	leader.waitForServed(t, lastKnownGood.SHA256(), 2, 2)

	// The leader restores a deleted backup, even while the configured Secret is invalid.
	must.Do(t, leader.live.Delete(ctx, mustSecret(t, leader, testNames.LastKnownGoodSecret)))
	leader.waitForSecret(t, testNames.LastKnownGoodSecret, true)

	// The replica that started late becomes the leader and reports the right status.
	leader.leading.Store(false)
	second.leading.Store(true)
	second.notify()
	strategy := second.waitFor(t, "ErrorDuringSetup", "the certificate in Secret default/external")
	if !publishes(strategy, pki.CertPEM()) {
		t.Errorf("the frontend is %+v", strategy.Frontend)
	}

	// Back to generated: the backup is deleted. Then an external Secret that does not exist: a new replica serves the
	// generated certificate.
	second.configure(t, func(s *spec) { s.TLS = nil })
	second.waitFor(t, "Listening", messageListening)
	second.waitForSecret(t, testNames.LastKnownGoodSecret, false)
	second.configure(t, func(s *spec) { s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "missing"} })
	second.waitFor(t, "Pending", string(certs.SecretNotFound))
	third := startNamedReplica(t, cluster, "default", "third", false)
	third.waitForCertificate(t, second.Holder.Current().SHA256())
	if third.Holder.Current().Source != serving.SourceGenerated {
		t.Error("it does not know the generated certificate as such")
	}

	// A Service that cannot be applied is reported, and stops no replica from serving, not even a leader that has just
	// started.
	second.putSecret(t, "external", good, pki.CertPEM())
	second.configure(t, func(s *spec) {
		s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"}
		s.Service = svc{Type: "ClusterIP", IPFamilyPolicy: "RequireDualStack"} // the cluster is not dual-stack
	})
	second.waitFor(t, "ErrorDuringSetup", "applying Service default/ip")
	second.leading.Store(false)
	fourth := startNamedReplica(t, cluster, "default", "fourth", true)
	fourth.waitForCertificate(t, second.Holder.Current().SHA256())
	fourth.waitForServed(t, leafSHA256(t, good), 4, 4)
}

func mustSecret(t *testing.T, r *replica, name string) *corev1.Secret {
	t.Helper()
	secret, there := r.secret(t, name)
	if !there {
		t.Fatalf("there is no Secret %q", name)
	}
	return secret
}

// TestOwnCopy shows that the backup is not accepted as a source.
func TestOwnCopy(t *testing.T) {
	t.Parallel()
	r := startReplica(t, startCluster(t), "default", true)
	r.create(t, fromSecret(testNames.LastKnownGoodSecret))
	r.waitFor(t, "ErrorDuringSetup", "is the agent's own backup")
}
