package credentialissuer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// theIssuer returns the CredentialIssuer.
func (r *replica) theIssuer(t *testing.T) (*configv1alpha1.CredentialIssuer, error) {
	t.Helper()
	var issuer configv1alpha1.CredentialIssuer
	err := r.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer)
	return &issuer, err
}

// TestADeletedCredentialIssuer deletes the CredentialIssuer while the Secret that it names is invalid. The running
// replica keeps serving, a new one serves the last known good certificate, and the CredentialIssuer is not recreated.
func TestADeletedCredentialIssuer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader := startNamedReplica(t, cluster, "default", "first", true)
	testkit.Eventually(t, waitLimit, func() error {
		if err := leader.Ready(); !errors.Is(err, errNoIssuer) {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	good := must.Get(pki.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), 20*time.Hour))(t)
	leader.putSecret(t, "external", good, pki.CertPEM())
	configured := spec{
		Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com",
		TLS: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external", Verification: "Enforce"},
	}
	leader.create(t, configured)
	leader.waitForServed(t, leafSHA256(t, good), 1, 1)
	leader.putSecret(t, "external", &certs.KeyPair{CertPEM: []byte("x"), KeyPEM: []byte("y")}, nil)
	leader.waitFor(t, "ErrorDuringSetup", string(certs.NotACertificate))
	issuer := must.Get(leader.theIssuer(t))(t)
	must.Do(t, leader.live.Delete(t.Context(), issuer))
	follower := startReplicaWith(t, cluster, "default", "second", false, func(r *Reconciler) {
		r.FirstSpec = &configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &spec{Mode: "disabled"}}
	})
	serve := func() {
		t.Helper()
		testkit.Eventually(t, waitLimit, func() error {
			for _, replica := range []*replica{leader, follower} {
				if serving := replica.Holder.Current(); serving == nil || serving.SHA256() != leafSHA256(t, good) {
					return fmt.Errorf("%+v is served", serving)
				}
				if err := replica.Ready(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	serve()
	leader.leading.Store(false)
	follower.leading.Store(true)
	follower.notify()
	for range 5 {
		if _, err := follower.theIssuer(t); !apierrors.IsNotFound(err) {
			t.Fatalf("it was made again: %v", err)
		}
		time.Sleep(firstAfter / 4)
		follower.notify()
	}
	serve()
	follower.putSecret(t, "external", good, pki.CertPEM())
	follower.create(t, configured)
	follower.waitFor(t, "Listening", messageListening)
	serve()
}

func leafSHA256(t *testing.T, pair *certs.KeyPair) string {
	t.Helper()
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	return certs.Fingerprint(certificate.Leaf.Raw)
}
