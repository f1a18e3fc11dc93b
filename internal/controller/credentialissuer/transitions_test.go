package credentialissuer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
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
	history := r.history(t)
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
			cas[ca] = must.Get(certs.NewCA(ca, time.Now(), 2400*time.Hour))(t)
		}
		pair := must.Get(cas[ca].IssueServing(certs.SANs{DNSNames: []string{name}}, time.Now(), 2000*time.Hour))(t)
		r.putSecret(t, secret, pair, cas[ca].CertPEM())
		return pair
	}
	names := func(secret string) func(*configv1alpha1.ImpersonationProxySpec) {
		return func(proxy *spec) {
			proxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
				SecretName: secret, CATransition: configv1alpha1.CATransitionDualTrust,
			}
		}
	}
	first := put("a", "one")
	proxy := enabled()
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
	r.configure(t, func(proxy *spec) { proxy.Mode = "disabled" })
	r.waitFor(t, "Disabled", messageDisabled)
	put("c", "three")
	r.configure(t, names("c"))
	r.configure(t, func(proxy *spec) { proxy.Mode = "enabled" })
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
	r.configure(t, func(proxy *spec) {
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
	r.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		if transition = issuer.Status.Transition; transition == nil || len(transition.WaitsFor) == 0 {
			return fmt.Errorf("the transition is %+v", transition)
		}
		return nil
	})
	return transition
}

// TestDualTrust renews the certificate with another CA: all replicas, including new ones, serve the old one until an
// administrator retires revisions, or no client trusts only the old CA.
func TestDualTrust(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	newCA := func(name string) *certs.CA { return must.Get(certs.NewCA(name, time.Now(), 2400*time.Hour))(t) }
	const name = "proxy.example.com"
	issue := func(ca *certs.CA) *certs.KeyPair {
		return must.Get(ca.IssueServing(certs.SANs{DNSNames: []string{name}}, time.Now(), 2000*time.Hour))(t)
	}
	serves := func(pair *certs.KeyPair, replicas ...*replica) {
		t.Helper()
		for _, r := range replicas {
			r.waitForCertificate(t, leafSHA256(t, pair))
		}
	}
	one, two, three := newCA("one"), newCA("two"), newCA("three")
	leader := startNamedReplica(t, cluster, "default", "first", true)
	follower := startNamedReplica(t, cluster, "default", "second", false)
	first := issue(one)
	leader.putSecret(t, "external", first, one.CertPEM())
	leader.create(t, fromSecret("external"))
	serves(first, leader, follower)
	leader.waitForStates(t, "one")

	renewed := issue(two)
	leader.putSecret(t, "external", renewed, two.CertPEM())
	leader.waitForStates(t, "one", "one+two")
	const waits = messageListening + ", but: the certificate in Secret external (SHA-256 "
	leader.waitForCodes(t, "Listening", waits, "TransitionPrepared")
	leader.waitForEvent(t, "Warning TransitionPrepared", leafSHA256(t, renewed))
	transition := leader.waitForTransition(t, "external", leafSHA256(t, renewed), "one")
	if until := transition.Until; until == nil || !until.After(time.Now()) {
		t.Errorf("it ends at %v", until)
	}
	serves(first, leader, follower)
	leader.waitForServed(t, leafSHA256(t, first), 2, 2)
	testkit.Eventually(t, waitLimit, func() error {
		kept, there := leader.secret(t, testNames.LastKnownGoodSecret)
		if !there || commonNames(kept.Data["ca.crt"]) != "one+two" {
			return errors.New("the copy is not what is served")
		}
		return nil
	})
	third := startNamedReplica(t, cluster, "default", "third", false)
	serves(first, third)

	// No such client is left: all replicas serve the new one.
	history := leader.waitForStates(t, "one", "one+two")
	key, value := history.Revisions[0].Retirement(time.Now())
	retire := corev1ac.ConfigMap(testNames.RevisionsConfigMap, "default").WithData(map[string]string{key: value})
	must.Do(t, leader.live.Apply(t.Context(), retire, client.FieldOwner("cli")))
	serves(renewed, leader, follower, third)
	leader.waitForStates(t, "one", "one+two", "two")
	leader.waitForCodes(t, "Listening", messageListening)
	leader.waitForTransition(t, "", "")
	leader.waitForEvent(t, "Normal TransitionEnded", leafSHA256(t, renewed)+" ended: the certificate is served")
	for len(leader.events.Events) > 0 {
		if event := <-leader.events.Events; strings.Contains(event, "TransitionPrepared") {
			t.Errorf("it is told twice: %s", event)
		}
	}

	// Once more, with another leader; an administrator retires the revisions that it waits for.
	leader.leading.Store(false)
	third.leading.Store(true)
	third.notify()
	last := issue(three)
	third.putSecret(t, "external", last, three.CertPEM())
	third.waitForStates(t, "one", "one+two", "two", "two+three")
	third.retire(t, third.waiting(t))
	serves(last, leader, follower, third)
}

// waitForTransition waits until the status says that a certificate waits for clients with these bundles, or, without
// any, that there is no transition.
func (r *replica) waitForTransition(
	t *testing.T, secret, sha256 string, bundles ...string,
) *configv1alpha1.TransitionStatus {
	t.Helper()
	var transition *configv1alpha1.TransitionStatus
	r.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		transition = issuer.Status.Transition
		if sha256 == "" || transition == nil {
			if (sha256 == "") != (transition == nil) {
				return fmt.Errorf("the transition is %+v", transition)
			}
			return nil
		}
		_, history, err := r.remembered(t)
		if err != nil {
			return err
		}
		var waitsFor []string
		for _, id := range transition.WaitsFor {
			if revision := history.Find(id); revision != nil {
				waitsFor = append(waitsFor, commonNames(revision.Bundle))
			}
		}
		if transition.Phase != configv1alpha1.TransitionPrepared || transition.SecretName != secret ||
			transition.SHA256 != sha256 || !slices.Equal(waitsFor, bundles) || transition.Since.IsZero() {
			return fmt.Errorf("the transition is %+v, and waits for %s", transition, waitsFor)
		}
		return nil
	})
	return transition
}

// TestDualTrustEnds moves the clock to the end of a transition.
func TestDualTrustEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.everything()
	old := *w.external
	old.Bundle = w.signer.CA.CertPEM()
	renewed := *w.generated
	renewed.Source, renewed.Secret = serving.SourceExternal, old.Secret
	s.serving, s.evaluation.Certificate = &old, &renewed
	d := decide(desired(t, fromSecret("external")), s)
	waiting := d.evaluation.Waiting
	if waiting == nil || waits(d.evaluation, "ns") == nil {
		t.Fatal("it does not wait")
	}
	var kept bool
	for _, a := range d.actions {
		if copied, ok := a.(writeCopy); ok {
			kept = copied.sha256 == old.SHA256() && string(copied.data[corev1.TLSCertKey]) != "" &&
				strings.Count(string(copied.data[serving.CACertKey]), "BEGIN") == 2
		}
	}
	if !kept {
		t.Errorf("the copy is not of what is served: %v", d.actions)
	}
	r := &Reconciler{Holder: &serving.Holder{}, Clock: &shifted{}}
	r.Holder.Serve(&old)
	waiting.Until = time.Now().Add(recheck / 2)
	r.Holder.Note(d.evaluation)
	issuer := &configv1alpha1.CredentialIssuer{}
	if wait := r.nextCheck(issuer); wait > recheck/2+time.Second {
		t.Errorf("it looks again in %s", wait)
	}
}
