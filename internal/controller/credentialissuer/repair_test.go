package credentialissuer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestGeneratedSecretsAreRepaired damages and deletes the agent's Secrets: clients are unaffected.
func TestGeneratedSecretsAreRepaired(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	r := startReplica(t, cluster, "default", true)
	r.create(t, enabled())
	r.waitFor(t, "Listening", messageListening)
	ca, signerBundle := r.Holder.Current().Bundle, r.Signer.Current().Bundle()
	restored := func(name, key string, want []byte) {
		t.Helper()
		testkit.Eventually(t, waitLimit, func() error {
			secret, there := r.secret(t, name)
			if !there || !bytes.Equal(secret.Data[key], want) {
				return fmt.Errorf("Secret %q is there: %v, and is not as before", name, there)
			}
			return nil
		})
	}
	damage := func(name string) {
		t.Helper()
		secret := mustSecret(t, r, name)
		for key := range secret.Data {
			secret.Data[key] = []byte("damaged")
		}
		must.Do(t, r.live.Update(t.Context(), secret))
	}

	damage(testNames.CASecret)
	restored(testNames.CASecret, "ca.crt", ca)
	must.Do(t, r.live.Delete(t.Context(), mustSecret(t, r, testNames.CASecret)))
	restored(testNames.CASecret, "ca.crt", ca)
	damage(testNames.SignerSecret)
	restored(testNames.SignerSecret, signerCertKey, signerBundle)
	damage(testNames.TLSSecret)
	testkit.Eventually(t, waitLimit, func() error {
		secret := mustSecret(t, r, testNames.TLSSecret)
		if _, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"]); err != nil {
			return err
		}
		return verifies(r.Holder.Current(), ca, "proxy.example.com")
	})
	if !bytes.Equal(r.Signer.Current().Bundle(), signerBundle) {
		t.Error("client certificates from before are no longer accepted")
	}

	// The CA survives while another certificate is served, even if it is deleted then.
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	pair := issue(t, pki, "proxy.example.com")
	r.putSecret(t, "external", pair, pki.CertPEM())
	r.configure(t, func(s *spec) { s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"} })
	r.waitForServed(t, leafSHA256(t, pair), 1, 1)
	must.Do(t, r.live.Delete(t.Context(), mustSecret(t, r, testNames.CASecret)))
	restored(testNames.CASecret, "ca.crt", ca)

	// Deleting the signer's Secret requests a new CA: certificates of the old CA are not accepted any more.
	must.Do(t, r.live.Delete(t.Context(), mustSecret(t, r, testNames.SignerSecret)))
	testkit.Eventually(t, waitLimit, func() error {
		if bytes.Contains(r.Signer.Current().Bundle(), signerBundle) {
			return errors.New("the deleted signer is still trusted")
		}
		return nil
	})
}

// TestTheYearsGoBy moves the clock: the same CA renews certificates at two thirds of their life, and client
// certificates issued before the signer rotated are accepted.
func TestTheYearsGoBy(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	now := clocktesting.NewFakePassiveClock(time.Now())
	leader := startReplicaAt(t, cluster, "default", "leader", true, now)
	follower := startReplicaAt(t, cluster, "default", "follower", false, now)
	leader.create(t, enabled())
	leader.waitFor(t, "Listening", messageListening)
	testkit.Eventually(t, waitLimit, follower.Ready)
	before, ca, signerBefore := leader.Holder.Current(), leader.Holder.Current().Bundle, leader.Signer.Current().Bundle()
	if life := before.Certificate.Leaf.NotAfter.Sub(before.Certificate.Leaf.NotBefore); life > 365*24*time.Hour {
		t.Errorf("the generated certificate lives for %s", life)
	}
	pass := func(days int) {
		now.SetTime(now.Now().Add(time.Duration(days) * 24 * time.Hour))
		leader.notify()
		follower.notify()
	}
	pass(200)
	time.Sleep(500 * time.Millisecond) // nothing should happen in this time
	if leader.Holder.Current().SHA256() != before.SHA256() ||
		!bytes.Equal(leader.Signer.Current().Bundle(), signerBefore) {
		t.Fatal("it renewed what is not two thirds through its life")
	}
	pass(50)
	for _, r := range []*replica{leader, follower} {
		testkit.Eventually(t, waitLimit, func() error {
			current := r.Holder.Current()
			if current.SHA256() == before.SHA256() || current.SHA256() != leader.Holder.Current().SHA256() {
				return errors.New("the serving certificate was not renewed")
			}
			if bundle := r.Signer.Current().
				Bundle(); bytes.Equal(bundle, signerBefore) ||
				!bytes.Contains(bundle, signerBefore) {
				return errors.New("the signer did not rotate, or forgot what it signed")
			}
			if !bytes.Equal(current.Bundle, ca) {
				t.Fatal("another CA is published")
			}
			return nil
		})
	}

	// The old CA keeps signing until every replica has loaded the new one.
	signs := func(ca []byte) func() error {
		return func() error {
			for _, r := range []*replica{leader, follower} {
				issued, err := r.Signer.IssueClientCertificate("ann", nil, nil, time.Minute)
				if err != nil {
					return err
				}
				if err := leaf(t, issued).CheckSignatureFrom(certificateOf(t, ca)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if err := signs(signerBefore)(); err != nil {
		t.Errorf("just after the rotation: %v", err)
	}
	now.SetTime(now.Now().Add(2 * signerOverlap))
	leader.notify()
	follower.notify()
	successor := mustSecret(t, leader, testNames.SignerSecret).Data[signerCertKey]
	testkit.Eventually(t, waitLimit, signs(successor))
	if !bytes.Contains(follower.Signer.Current().Bundle(), signerBefore) {
		t.Error("what was signed before is accepted no more")
	}

	// Another name: another certificate of the same CA.
	leader.configure(t, func(s *spec) { s.ExternalEndpoint = "other.example.com" })
	testkit.Eventually(t, waitLimit, func() error {
		current := leader.Holder.Current()
		_, err := current.Certificate.Leaf.Verify(
			x509.VerifyOptions{Roots: pool(ca), DNSName: "other.example.com", CurrentTime: now.Now()},
		)
		return err
	})
}

func startReplicaAt(
	t *testing.T,
	cluster *devcluster.Cluster,
	namespace, name string,
	leading bool,
	now clock.PassiveClock,
) *replica {
	t.Helper()
	return startReplicaWith(t, cluster, namespace, name, leading, func(r *Reconciler) { r.Clock = now })
}

func verifies(certificate *serving.Certificate, ca []byte, name string) error {
	_, err := certificate.Certificate.Leaf.Verify(x509.VerifyOptions{Roots: pool(ca), DNSName: name})
	return err
}

func pool(ca []byte) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return roots
}

func certificateOf(t *testing.T, content []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(content)
	return must.Get(x509.ParseCertificate(block.Bytes))(t)
}

func leaf(t *testing.T, pair *certs.KeyPair) *x509.Certificate {
	t.Helper()
	return must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t).Leaf
}

// TestSecretsOfOthersStay has Secrets of users under the agent's names: they stay unchanged, and the status says which
// Secret is in the way and what to do.
func TestSecretsOfOthersStay(t *testing.T) {
	t.Parallel()
	r := startReplica(t, startCluster(t), "default", true)
	theirs := map[string]*corev1.Secret{}
	for _, name := range []string{testNames.CASecret, testNames.TLSSecret, testNames.SignerSecret} {
		theirs[name] = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"team": "a"}},
			Data:       map[string][]byte{"password": []byte("the only copy"), "tls.crt": []byte("mine")},
		}
		must.Do(t, r.live.Create(t.Context(), theirs[name]))
	}
	untouched := func() {
		t.Helper()
		for name, before := range theirs {
			if diff := cmp.Diff(before, mustSecret(t, r, name)); diff != "" {
				t.Errorf("Secret %q of a user (-before +after):\n%s", name, diff)
			}
		}
	}
	r.create(t, enabled())
	for len(theirs) > 0 {
		var named string
		testkit.Eventually(t, waitLimit, func() error {
			strategy, err := r.strategy(t.Context())
			for name := range theirs {
				if strings.Contains(strategy.Message, "default/"+name+": ") &&
					strings.Contains(strategy.Message, "rename or delete it") {
					named = name
					return err
				}
			}
			return errors.Join(err, fmt.Errorf("the message is %q", strategy.Message))
		})
		r.configure(t, func(s *spec) { s.Mode = "disabled" })
		r.waitFor(t, "Disabled", messageDisabled)
		untouched()
		r.configure(t, func(s *spec) { s.Mode = "enabled" })
		must.Do(t, r.live.Delete(t.Context(), mustSecret(t, r, named)))
		delete(theirs, named)
	}
	r.waitFor(t, "Listening", messageListening)
}

// behind fakes an informer that has not received the agent's own writes yet: it finds no object.
type behind struct{}

func (behind) Get(context.Context, types.NamespacedName) (*corev1.Secret, bool, error) {
	return nil, false, nil
}

func (behind) Forget(func(types.NamespacedName) bool) {}

// TestWatchesThatAreBehind shows that the leader reads before it writes: it creates nothing that exists, and reports no
// problem.
func TestWatchesThatAreBehind(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	first.create(t, enabled())
	first.waitFor(t, "Listening", messageListening)
	versions := func() map[string]string {
		found := map[string]string{}
		for _, name := range []string{testNames.TLSSecret, testNames.CASecret, testNames.SignerSecret} {
			secret, there := first.secret(t, name)
			if !there {
				t.Fatalf("Secret %s is not there", name)
			}
			found[name] = secret.ResourceVersion
		}
		return found
	}
	before := versions()

	first.leading.Store(false)
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) { r.Secrets = behind{} })
	testkit.Eventually(t, waitLimit, func() error {
		if second.Holder.Current() == nil || second.Holder.Current().SHA256() != first.Holder.Current().SHA256() {
			return errors.New("the second replica serves something else")
		}
		return second.Ready()
	})
	for range 3 {
		second.notify()
		served := second.waitForServed(t, first.Holder.Current().SHA256(), 2, 2)
		if served.Source != configv1alpha1.ServingCertificateGenerated {
			t.Errorf("the status says %+v", served)
		}
		if strategy, err := second.strategy(t.Context()); err != nil || strategy.Reason != configv1alpha1.ReasonListening {
			t.Errorf("the status says %+v, %v", strategy, err)
		}
	}
	for name, version := range versions() {
		if before[name] != version {
			t.Errorf("Secret %s was written again", name)
		}
	}
}

// frozen fakes an informer whose watch has stopped: it returns an old CredentialIssuer.
type frozen struct {
	issuer *configv1alpha1.CredentialIssuer
	reads  atomic.Int32
}

func (f *frozen) Get(context.Context, types.NamespacedName) (*configv1alpha1.CredentialIssuer, bool, error) {
	f.reads.Add(1)
	return f.issuer.DeepCopy(), true, nil
}

func (*frozen) Forget(func(types.NamespacedName) bool) {}

// TestAnOldViewOfTheCredentialIssuer has a leader with an outdated spec. It creates and deletes nothing: the address of
// the load balancer would be lost.
func TestAnOldViewOfTheCredentialIssuer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	first.create(t, spec{Mode: "enabled", ExternalEndpoint: "a.example.com", Service: svc{Type: "ClusterIP"}})
	first.waitFor(t, "Listening", messageListening)
	old := &configv1alpha1.CredentialIssuer{}
	must.Do(t, first.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, old))
	first.configure(t, func(s *spec) { s.Service = svc{Type: "LoadBalancer"} })
	var before *corev1.Service
	testkit.Eventually(t, waitLimit, func() (err error) {
		if _, err := first.service(t, "ip"); err == nil {
			return errors.New("the ClusterIP Service is still there")
		}
		before, err = first.service(t, "lb")
		return err
	})

	first.leading.Store(false)
	view := &frozen{issuer: old}
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) { r.Issuers = view })
	testkit.Eventually(t, waitLimit, func() error {
		second.notify()
		if reads := view.reads.Load(); reads < 4 {
			return fmt.Errorf("reconciled %d times", reads)
		}
		return nil
	})
	if after, err := first.service(t, "lb"); err != nil || after.UID != before.UID {
		t.Errorf("the load balancer was removed by an old view: %v, %v", after.UID, err)
	}
	if _, err := first.service(t, "ip"); err == nil {
		t.Error("a Service was made by an old view")
	}
}

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
