package credentialissuer

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// withdrawal is the maximum time until a withdrawn permission takes effect.
const withdrawal = 5 * time.Second

var shared = types.NamespacedName{Namespace: "shared", Name: "wildcard"}

// sharing is a Secret in another namespace, with an owner who permits its use and withdraws the permission.
type sharing struct {
	*replica
	pki *certs.CA
}

// put writes the Secret and returns the fingerprint of its certificate.
func (s *sharing) put(t *testing.T) string {
	t.Helper()
	pair := issue(t, s.pki, "proxy.example.com")
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: shared.Namespace, Name: shared.Name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": s.pki.CertPEM()},
	}
	err := s.live.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = s.live.Update(t.Context(), secret)
	}
	must.Do(t, err)
	return leafSHA256(t, pair)
}

func (s *sharing) delegation() *unstructured.Unstructured {
	objects := delegation.Grant{Secret: shared, Namespace: s.Namespace}.Objects()
	return &unstructured.Unstructured{Object: objects[len(objects)-1]}
}

func (s *sharing) permit(t *testing.T) {
	t.Helper()
	must.Do(t, s.live.Create(t.Context(), s.delegation()))
}

func (s *sharing) withdraw(t *testing.T) {
	t.Helper()
	must.Do(t, s.live.Delete(t.Context(), s.delegation()))
}

// serves waits until every replica serves the certificate with this fingerprint, or the generated one for "".
func serves(t *testing.T, limit time.Duration, sha256 string, replicas ...*replica) {
	t.Helper()
	start := time.Now()
	for i, r := range replicas {
		for {
			current := r.Holder.Current()
			if current != nil && (sha256 == "" && current.Source == serving.SourceGenerated ||
				current.SHA256() == sha256 && current.Delegated && current.Secret == shared) {
				break
			}
			if time.Since(start) > limit {
				t.Fatalf("replica %d serves %+v after %s", i, current, limit)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func startSharing(t *testing.T, cluster *devcluster.Cluster) (*sharing, *replica) {
	t.Helper()
	leader := startReplica(t, cluster, "default", true)
	follower := startReplica(t, cluster, "default", false)
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shared.Namespace}}
	must.Do(t, leader.live.Create(t.Context(), namespace))
	leader.create(t, fromSecret(shared.String()))
	return &sharing{replica: leader, pki: pki}, follower
}

var kindManifests = filepath.Join("..", "..", "..", "deploy", "tlscertificatedelegation")

// TestDelegatedCertificate tests the lifecycle of a delegated certificate: not permitted, permitted, renewed, deleted,
// withdrawn.
func TestDelegatedCertificate(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader, follower := startSharing(t, cluster)
	both := []*replica{leader.replica, follower}

	// Not permitted: the generated certificate is served, and the status is the same with and without the Secret.
	const appears = 20 * time.Second
	serves(t, appears, "", both...)
	without := leader.waitFor(t, "ErrorDuringSetup", "SecretNotPermitted")
	first := leader.put(t)
	for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
		with, err := leader.strategy(t.Context())
		if err != nil || with.Message != without.Message {
			t.Fatalf("without the Secret: %s\nwith the Secret: %s, %v", without.Message, with.Message, err)
		}
	}
	if err := errors.Join(leader.Ready(), follower.Ready()); err != nil {
		t.Errorf("it is not ready although the generated certificate serves: %v", err)
	}

	// The CRD is installed, then the permission is granted.
	must.Do(t, cluster.Install(t.Context(), kindManifests))
	const none = `no TLSCertificateDelegation in namespace "shared" delegates it to namespace "default"`
	leader.waitFor(t, "ErrorDuringSetup", none)
	leader.permit(t)
	serves(t, appears, first, both...)
	if !publishes(leader.waitFor(t, "Listening", messageListening), leader.pki.CertPEM()) {
		t.Error("the bundle of ca.crt is not published")
	}
	// The generated certificate stays as fallback. It is recreated if it is deleted.
	kept, there := leader.secret(t, testNames.TLSSecret)
	if !there {
		t.Fatal("the generated certificate is gone")
	}
	must.Do(t, leader.live.Delete(t.Context(), kept))
	leader.waitForSecret(t, testNames.TLSSecret, true)

	// A renewal is served. If the Secret is deleted while the permission stays, nothing changes.
	second := leader.put(t)
	serves(t, withdrawal, second, both...)
	var source corev1.Secret
	must.Do(t, leader.live.Get(t.Context(), shared, &source))
	must.Do(t, leader.live.Delete(t.Context(), &source))
	leader.waitFor(t, "Pending", "SecretNotFound")
	serves(t, 0, second, both...)
	third := leader.put(t)
	serves(t, appears, third, both...)
	leader.waitFor(t, "Listening", messageListening)
	leader.use(t, "")

	// Withdrawn: the generated certificate replaces it without interruption.
	leader.withdraw(t)
	stop := make(chan struct{})
	gap := make(chan bool, 1)
	go func() {
		missing := false
		for {
			for _, r := range both {
				missing = missing || r.Holder.Current() == nil
			}
			select {
			case <-stop:
				gap <- missing
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	serves(t, withdrawal, "", both...)
	withdrawn := leader.waitFor(t, "ErrorDuringSetup", "SecretNotPermitted")
	for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(100 * time.Millisecond) {
		serves(t, 0, "", both...)
	}
	close(stop)
	if <-gap {
		t.Error("for a moment there was no certificate")
	}
	generated := leader.Holder.Current()
	want := fmt.Sprintf("the generated certificate in Secret %s (SHA-256 %s) is served instead",
		generated.Secret, generated.SHA256())
	if !containsText(withdrawn.Message, want) {
		t.Errorf("the status says %q, not %q", withdrawn.Message, want)
	}
	if !publishes(withdrawn, generated.Bundle) {
		t.Error("the generated CA is not published")
	}
	leader.waitForEvent(t, "Warning OldClientsBreak", `trust "corporate"`)

	// Once more: this time the CRD is deleted.
	leader.permit(t)
	serves(t, appears, third, both...)
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	definition.SetName(delegation.Plural + "." + delegation.Group)
	must.Do(t, leader.live.Delete(t.Context(), definition))
	serves(t, withdrawal, "", both...)
	leader.waitFor(t, "ErrorDuringSetup", "the cluster has no TLSCertificateDelegations")

	// Its key was copied nowhere.
	var secrets corev1.SecretList
	must.Do(t, leader.live.List(t.Context(), &secrets, client.InNamespace(leader.Namespace)))
	source = corev1.Secret{}
	must.Do(t, leader.live.Get(t.Context(), shared, &source))
	for _, secret := range secrets.Items {
		for key, value := range secret.Data {
			if containsText(string(value), string(source.Data["tls.key"])) {
				t.Errorf("the delegated key is in %s of Secret %s", key, secret.Name)
			}
		}
	}
}

// TestWithdrawnWhileItIsTheLastKnownGood shows that a delegated certificate is taken out of service even if it is only the
// last known good one.
func TestWithdrawnWhileItIsTheLastKnownGood(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must.Do(t, cluster.Install(t.Context(), kindManifests))
	leader, follower := startSharing(t, cluster)
	sha256 := leader.put(t)
	leader.permit(t)
	serves(t, 20*time.Second, sha256, leader.replica, follower)
	leader.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS.SecretName = "not-there" })
	leader.waitFor(t, "Pending", "SecretNotFound")
	serves(t, 0, sha256, leader.replica, follower)
	leader.withdraw(t)
	serves(t, withdrawal, "", leader.replica, follower)
	leader.waitFor(t, "Pending", "SecretNotFound")
}

// TestWithdrawnWithoutALeader withdraws the permission while no replica leads. The generated certificate replaces the
// delegated one. If that is missing as well, nothing is served.
func TestWithdrawnWithoutALeader(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	must.Do(t, cluster.Install(t.Context(), kindManifests))
	leader, follower := startSharing(t, cluster)
	sha256 := leader.put(t)
	leader.permit(t)
	serves(t, 20*time.Second, sha256, leader.replica, follower)
	leader.waitFor(t, "Listening", messageListening)
	leader.leading.Store(false)
	leader.withdraw(t)
	serves(t, withdrawal, "", leader.replica, follower)
	leader.permit(t)
	serves(t, 20*time.Second, sha256, leader.replica, follower)

	generated, _ := leader.secret(t, testNames.TLSSecret)
	must.Do(t, leader.live.Delete(t.Context(), generated))
	for _, r := range []*replica{leader.replica, follower} {
		testkit.Eventually(t, waitLimit, func() error {
			if _, found, err := r.Secrets.Get(t.Context(), r.local(testNames.TLSSecret)); err != nil || found {
				return fmt.Errorf("the replica has not noticed that the generated certificate is gone (found %v, %w)", found, err)
			}
			return nil
		})
	}
	leader.withdraw(t)
	for start := time.Now(); follower.Holder.Current() != nil || leader.Holder.Current() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > withdrawal {
			t.Fatal("it is still served")
		}
	}
	if follower.Ready() == nil {
		t.Error("it is ready with nothing to serve")
	}
	leader.leading.Store(true)
	leader.notify()
	serves(t, 20*time.Second, "", leader.replica, follower)
}

func containsText(text, part string) bool { return part != "" && strings.Contains(text, part) }
