package credentialissuer

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"testing"
	"time"

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
	r.create(t, spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com"})
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
	pair := must.Get(pki.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), 20*time.Hour))(t)
	r.putSecret(t, "external", pair, pki.CertPEM())
	r.configure(t, func(s *spec) { s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"} })
	r.waitForServed(t, certs.Fingerprint(leaf(t, pair).Raw), 1, 1)
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
	leader.create(t, spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: "proxy.example.com"})
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
	certificate := must.Get(x509.ParseCertificate(block.Bytes))(t)
	return certificate
}

func leaf(t *testing.T, pair *certs.KeyPair) *x509.Certificate {
	t.Helper()
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	return certificate.Leaf
}
