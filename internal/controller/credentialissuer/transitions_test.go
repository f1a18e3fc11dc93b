package credentialissuer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// serves waits until a replica serves a certificate of this CA and publishes these CAs.
func (r *replica) serves(t *testing.T, ca, bundle string) {
	t.Helper()
	testkit.Eventually(t, waitLimit, func() error {
		current := r.Holder.Current()
		if current == nil {
			return errors.New("it serves nothing")
		}
		if got := current.Certificate.Leaf.Issuer.CommonName; got != ca || commonNames(current.Bundle) != bundle {
			return fmt.Errorf("it serves a certificate of %q, and publishes %q", got, commonNames(current.Bundle))
		}
		return r.Ready()
	})
}

// retire retires the revisions that a transition waits for.
func (r *replica) retire(t *testing.T, transition *configv1alpha1.TransitionStatus) {
	t.Helper()
	_, history, err := r.remembered(t)
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	for _, id := range transition.WaitsFor {
		key, value := history.Find(id).Retirement(time.Now().Add(240 * time.Hour)) // a clock that is ahead
		data[key] = value
	}
	content := corev1ac.ConfigMap(testNames.RevisionsConfigMap, "default").WithData(data)
	must.Do(t, r.live.Apply(t.Context(), content, client.FieldOwner("cli")))
}

// TestNoClientBreaks changes the certificate in ways that used to break clients silently.
func TestNoClientBreaks(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	const generated, name = "Pinniped Impersonation Proxy Serving CA", "proxy.example.com"
	r := startNamedReplica(t, cluster, "default", "first", true)
	cas := map[string]*certs.CA{}
	put := func(secret, ca string) *certs.KeyPair {
		t.Helper()
		if cas[ca] == nil {
			made := must.Get(certs.NewCA(ca, time.Now(), 2400*time.Hour))(t)
			cas[ca] = made
		}
		pair := must.Get(cas[ca].IssueServing(certs.SANs{DNSNames: []string{name}}, time.Now(), 2000*time.Hour))(t)
		r.putSecret(t, secret, pair, cas[ca].CertPEM())
		return pair
	}
	names := func(secret string) func(*configv1alpha1.ImpersonationProxySpec) {
		return func(proxy *configv1alpha1.ImpersonationProxySpec) {
			proxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
				SecretName: secret, CATransition: configv1alpha1.CATransitionDualTrust,
			}
		}
	}
	first := put("a", "one")
	proxy := spec{Mode: "enabled", Service: svc{Type: "None"}, ExternalEndpoint: name}
	names("a")(&proxy)
	r.create(t, proxy)
	r.serves(t, "one", "one")
	r.waitForStates(t, "one") // and it is used

	// Switching to the generated certificate is a transition, and so is switching back.
	r.configure(t, names(""))
	r.serves(t, "one", "one+"+generated)
	if transition := r.waiting(t); transition.SecretName != "" {
		t.Errorf("it waits with Secret %q", transition.SecretName)
	}
	second := startNamedReplica(t, cluster, "default", "second", false)
	second.serves(t, "one", "one+"+generated)
	r.configure(t, names("a"))
	r.serves(t, "one", "one")
	r.waitForTransition(t, "", "")
	r.configure(t, names(""))
	r.serves(t, "one", "one+"+generated)
	r.retire(t, r.waiting(t))
	r.serves(t, generated, generated)
	second.serves(t, generated, generated)
	r.use(t, "")

	// The generated certificate stays in service, also on new replicas, and after the proxy was off.
	put("b", "two")
	r.configure(t, names("b"))
	r.serves(t, generated, generated+"+two")
	third := startNamedReplica(t, cluster, "default", "third", false)
	third.serves(t, generated, generated+"+two")
	r.configure(t, func(proxy *configv1alpha1.ImpersonationProxySpec) { proxy.Mode = "disabled" })
	r.waitFor(t, "Disabled", messageDisabled)
	put("c", "three")
	r.configure(t, names("c"))
	r.configure(t, func(proxy *configv1alpha1.ImpersonationProxySpec) { proxy.Mode = "enabled" })
	r.serves(t, generated, generated+"+three")

	// The history is lost while no replica leads.
	r.waiting(t)
	r.leading.Store(false)
	lost := &corev1.ConfigMap{}
	lost.Namespace, lost.Name = "default", testNames.RevisionsConfigMap
	must.Do(t, r.live.Delete(t.Context(), lost))
	r = third
	r.leading.Store(true)
	r.notify()
	testkit.Eventually(t, waitLimit, func() error { _, _, err := r.remembered(t); return err })
	r.serves(t, generated, generated+"+three")
	r.retire(t, r.waiting(t))
	r.serves(t, "three", "three")
	r.use(t, "")

	// GitOps adds the next CA to the bundle in the spec, then that CA renews the certificate.
	r.configure(t, func(proxy *configv1alpha1.ImpersonationProxySpec) {
		proxy.TLS.CertificateAuthorityData = base64.StdEncoding.EncodeToString(cas["one"].CertPEM())
	})
	r.waitFor(t, "ErrorDuringSetup", string(certs.BundleDoesNotVerify))
	put("c", "one")
	r.serves(t, "three", "three+one")
	r.retire(t, r.waiting(t))
	r.serves(t, "one", "one")

	// ca.crt disappears.
	r.configure(t, names("a"))
	r.waitForTransition(t, "", "")
	r.use(t, "")
	r.putSecret(t, "a", first, nil)
	r.waitForCodes(t, "Listening", messageListening+", but: BundleEmpty", "BundleEmpty")
	r.serves(t, "one", "one")

	// An old Secret is restored: clients of the certificate in between count.
	put("a", "four")
	r.serves(t, "one", "one+four")
	r.retire(t, r.waiting(t))
	r.serves(t, "four", "four")
	r.use(t, "")
	r.putSecret(t, "a", first, cas["one"].CertPEM())
	r.serves(t, "four", "four+one")
}

// waiting waits for a transition.
func (r *replica) waiting(t *testing.T) *configv1alpha1.TransitionStatus {
	t.Helper()
	var transition *configv1alpha1.TransitionStatus
	testkit.Eventually(t, waitLimit, func() error {
		issuer, err := r.theIssuer(t)
		if err != nil {
			return err
		}
		if transition = issuer.Status.Transition; transition == nil || len(transition.WaitsFor) == 0 {
			return fmt.Errorf("the transition is %+v", transition)
		}
		return nil
	})
	return transition
}
