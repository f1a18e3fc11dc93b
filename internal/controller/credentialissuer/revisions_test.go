package credentialissuer

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// remembered returns the ConfigMap of the revision history, and the history.
func (r *replica) remembered(t *testing.T) (*corev1.ConfigMap, serving.History, error) {
	t.Helper()
	var there corev1.ConfigMap
	name := types.NamespacedName{Namespace: r.Namespace, Name: testNames.RevisionsConfigMap}
	if err := r.live.Get(t.Context(), name, &there); err != nil {
		return nil, serving.History{}, err
	}
	history, err := serving.Read(there.Data)
	return &there, history, err
}

// history returns the revision history.
func (r *replica) history(t *testing.T) serving.History {
	t.Helper()
	_, history, err := r.remembered(t)
	must.Do(t, err)
	return history
}

// waitForStates waits until the history has revisions with these CAs in their bundles, the latest last, and the status
// lists the same.
func (r *replica) waitForStates(t *testing.T, want ...string) serving.History {
	t.Helper()
	var history serving.History
	r.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		var err error
		if _, history, err = r.remembered(t); err != nil {
			return err
		}
		var got, told []string
		for _, s := range history.Revisions {
			got = append(got, commonNames(s.Bundle))
			if !s.Ended() {
				told = append(told, s.ID)
			}
		}
		var summed []string
		for _, s := range issuer.Status.Revisions {
			summed = append(summed, s.ID)
		}
		if !slices.Equal(got, want) || !slices.Equal(told, summed) {
			return fmt.Errorf("remembered is %q, want %q; the status has %q of %q", got, want, summed, told)
		}
		return nil
	})
	if r.leading.Load() && history.Current() != nil {
		history = r.use(t, "")
	}
	return history
}

// use simulates a client that uses the proxy by this name, and waits until the history and the status record it.
func (r *replica) use(t *testing.T, name string) serving.History {
	t.Helper()
	var history serving.History
	testkit.Eventually(t, waitLimit, func() error {
		var leaf *x509.Certificate
		var bundle []byte
		if current := r.Holder.Current(); current != nil {
			leaf, bundle = current.Certificate.Leaf, current.Bundle
		}
		r.Usage.Note(name, leaf)
		var issuer configv1alpha1.CredentialIssuer
		if err := r.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer); err != nil {
			return err
		}
		var err error
		if _, history, err = r.remembered(t); err != nil {
			return err
		}
		// A certificate that has just been put into service is published a moment later.
		if current := history.Current(); current == nil || current.LastUsed.IsZero() ||
			!certs.SameBundle(current.Bundle, bundle) ||
			issuer.Status.Revisions[len(issuer.Status.Revisions)-1].LastUsed == nil {
			return fmt.Errorf("the use is not known: %+v, %+v", current, issuer.Status.Revisions)
		}
		return nil
	})
	return history
}

func commonNames(bundle []byte) string {
	members, _ := certs.ParseBundle(bundle)
	var names []string
	for _, member := range members {
		names = append(names, member.Subject.CommonName)
	}
	return strings.Join(names, "+")
}

// waitForEvent waits for an event that starts with want and contains text, and returns it.
func (r *replica) waitForEvent(t *testing.T, want, text string) string {
	t.Helper()
	var got string
	testkit.Eventually(t, waitLimit, func() error {
		for {
			select {
			case got = <-r.events.Events:
				if strings.HasPrefix(got, want) && strings.Contains(got, text) {
					return nil
				}
			default:
				return fmt.Errorf("there is no event %q with %q", want, text)
			}
		}
	})
	return got
}

// TestRevisions tests the revision history during a migration from upstream Pinniped and back, restarts, deletion of
// the CredentialIssuer and of the history, and while the proxy is off.
func TestRevisions(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	ctx := t.Context()
	newCA := func(name string) *certs.CA { return must.Get(certs.NewCA(name, time.Now(), 24*time.Hour))(t) }
	pinniped, one, two := newCA("pinniped"), newCA("one"), newCA("two")
	const name, other = "proxy.example.com", "other.example.com"

	// Upstream Pinniped has published its own CA for an hour.
	observer := startNamedReplica(t, cluster, "default", "first", false)
	observer.putSecret(t, "first", issue(t, one, name, other), one.CertPEM())
	observer.create(t, fromSecret("first"))
	began := metav1.NewTime(time.Now().Add(-time.Hour)).Rfc3339Copy()
	reports := func(status func(issuer *configv1alpha1.CredentialIssuer)) {
		t.Helper()
		observer.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
			status(issuer)
			return observer.live.Status().Update(ctx, issuer)
		})
	}
	asPinniped := func(since metav1.Time) func(issuer *configv1alpha1.CredentialIssuer) {
		return func(issuer *configv1alpha1.CredentialIssuer) {
			strategy := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
			strategy.LastUpdateTime = since
			strategy.Frontend = frontend(serving.Endpoint{Host: name, Port: "443"}, pinniped.CertPEM())
			issuer.Status = configv1alpha1.CredentialIssuerStatus{
				Strategies: []configv1alpha1.CredentialIssuerStrategy{strategy},
			}
		}
	}
	reports(asPinniped(began))
	leader := observer
	leads := func(next *replica) {
		t.Helper()
		leader.leading.Store(false)
		leader.notify()
		leader = next
		leader.leading.Store(true)
		leader.notify()
	}
	leads(observer)
	history := leader.waitForStates(t, "pinniped", "one")
	if was := history.Revisions[0]; !was.Since.Equal(began.Time) || was.Until.IsZero() || was.Endpoint != "https://"+name {
		t.Errorf("of Pinniped, it remembers %+v", was)
	}
	if got := history.Current(); len(got.Names) != 2 || len(history.Chain) != 1 {
		t.Errorf("it remembers the names %q and %d certificates", got.Names, len(history.Chain))
	}
	leader.waitForEvent(t, "Warning OldClientsBreak", `trust "pinniped"`)

	// Another replica becomes the leader; a retired revision stays retired and is removed from the status.
	key, value := history.Revisions[0].Retirement(time.Now())
	retire := corev1ac.ConfigMap(testNames.RevisionsConfigMap, "default").WithData(map[string]string{key: value})
	must.Do(t, leader.live.Apply(ctx, retire, client.FieldOwner("cli")))
	leads(startNamedReplica(t, cluster, "default", "second", false))
	leader.putSecret(t, "first", issue(t, one, name, other), one.CertPEM())
	chain := history.Chain[0]
	testkit.Eventually(t, waitLimit, func() error {
		_, h, err := leader.remembered(t)
		if err == nil && (len(h.Chain) == 0 || h.Chain[0].Equal(chain)) {
			err = errors.New("the certificate in service is not the one that is remembered")
		}
		return err
	})
	history = leader.waitForStates(t, "pinniped", "one")
	if !history.Revisions[0].Ended() {
		t.Error("it is not retired any more")
	}

	// The block tls is removed, so the generated certificate is served: all clients break, which is reported.
	leader.configure(t, func(s *spec) { s.TLS = nil })
	history = leader.waitForStates(t, "pinniped", "one", "Pinniped Impersonation Proxy Serving CA")
	event := leader.waitForEvent(t, "Warning OldClientsBreak", `trust "one"`)
	if strings.Contains(event, `"pinniped"`) {
		t.Errorf("it names who was retired: %s", event)
	}

	// The CredentialIssuer is deleted, and recreated without a status; then the history is deleted.
	must.Do(t, leader.live.Delete(ctx, must.Get(leader.theIssuer(t))(t)))
	leader.create(t, enabled())
	leader.waitFor(t, "Listening", messageListening)
	again := leader.waitForStates(t, "pinniped", "one", "Pinniped Impersonation Proxy Serving CA")
	if !again.Current().Since.Equal(history.Current().Since) {
		t.Errorf("it began again: %+v", again.Current())
	}
	lost := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: testNames.RevisionsConfigMap}}
	must.Do(t, leader.live.Delete(ctx, lost))
	leader.waitForStates(t, "pinniped", "one", "Pinniped Impersonation Proxy Serving CA")

	// Upstream Pinniped takes over, and then this agent again.
	leader.leading.Store(false)
	leader.notify()
	reports(asPinniped(metav1.Now().Rfc3339Copy()))
	leads(observer)
	leader.waitForStates(t, "one", "pinniped", "Pinniped Impersonation Proxy Serving CA")

	// Off: nothing is published. Then another certificate: clients that trust its CA verify again, and a name is
	// dropped.
	leader.configure(t, func(s *spec) { s.Mode = "disabled" })
	testkit.Eventually(t, waitLimit, func() error {
		if _, h, err := leader.remembered(t); err != nil || h.Current() != nil {
			return fmt.Errorf("it is still told to clients: %+v (%w)", h.Current(), err)
		}
		return nil
	})
	leader.putSecret(t, "second", issue(t, one, name), certs.UnionBundle(one.CertPEM(), two.CertPEM()))
	leader.configure(t, func(s *spec) {
		s.Mode, s.TLS = "enabled", &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "second"}
	})
	leader.waitForStates(t, "one", "pinniped", "Pinniped Impersonation Proxy Serving CA", "one+two")
	leader.configure(t, func(s *spec) { s.TLS.SecretName = "first" })
	leader.waitForStates(t, "pinniped", "Pinniped Impersonation Proxy Serving CA", "one+two", "one")
	leader.configure(t, func(s *spec) { s.TLS.SecretName = "second" })
	leader.waitForEvent(t, "Warning OldClientsBreak", "expect "+other+", which the certificate does not cover")
}

// applying is a client that calls before with every object that it applies, and fails if that does.
type applying struct {
	client.Client
	before func(object runtime.ApplyConfiguration) error
}

func (a *applying) Apply(
	ctx context.Context, object runtime.ApplyConfiguration, options ...client.ApplyOption,
) error {
	if err := a.before(object); err != nil {
		return err
	}
	return a.Client.Apply(ctx, object, options...)
}

// TestWithoutHistory prevents the agent from writing the history: it publishes anyway and reports the problem. The
// history is completed as soon as it can be written.
func TestWithoutHistory(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	leader := startReplicaWith(t, startCluster(t), "default", "leader", true, func(r *Reconciler) {
		r.Client = &applying{r.Client, func(object runtime.ApplyConfiguration) error {
			if _, ok := object.(*corev1ac.ConfigMapApplyConfiguration); ok && refuses.Load() {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, testNames.RevisionsConfigMap, nil)
			}
			return nil
		}}
	})
	const generated = "Pinniped Impersonation Proxy Serving CA"
	leader.create(t, enabled())
	leader.waitForStates(t, generated)
	refuses.Store(true)
	ca := must.Get(certs.NewCA("one", time.Now(), 24*time.Hour))(t)
	pair := issue(t, ca, "proxy.example.com")
	leader.putSecret(t, "external", pair, ca.CertPEM())
	leader.configure(t, func(s *spec) { s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "external"} })
	leader.waitForServed(t, leafSHA256(t, pair), 1, 1)
	leader.waitForCodes(t, "Listening", messageListening+", but: writing the revision history", "RevisionsNotKept")
	leader.waitForEvent(t, "Warning OldClientsBreak", generated)
	leader.configure(t, func(s *spec) { s.TLS = nil })
	leader.waitForServed(t, "", 1, 1)
	leader.eventually(t, func(issuer *configv1alpha1.CredentialIssuer) error {
		if all := issuer.Status.Revisions; len(all) != 2 || all[0].Until == nil || all[1].Until != nil {
			return fmt.Errorf("the status has %+v", all)
		}
		return nil
	})
	refuses.Store(false)
	leader.waitForStates(t, "one", generated)
	leader.waitForCodes(t, "Listening", messageListening)
}

// TestSinceStatus shows which revisions are recorded from a status that another program has written.
func TestSinceStatus(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const at = "https://proxy.example.com"
	ca := must.Get(certs.NewCA("one", noon, 24*time.Hour))(t)
	open, _ := serving.History{}.Append(serving.Published{Endpoint: at}, noon, serving.DefaultRetention)
	open.Chain = []*x509.Certificate{ca.Certificate()}
	issuer := func(bundle string, since time.Time) *configv1alpha1.CredentialIssuer {
		strategy := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonPending, "m")
		strategy.Frontend = &configv1alpha1.CredentialIssuerFrontend{
			ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{Endpoint: at, CertificateAuthorityData: bundle},
		}
		strategy.LastUpdateTime = metav1.NewTime(since)
		return &configv1alpha1.CredentialIssuer{Status: configv1alpha1.CredentialIssuerStatus{
			Strategies: []configv1alpha1.CredentialIssuerStrategy{strategy},
		}}
	}
	bundle := base64.StdEncoding.EncodeToString(ca.CertPEM())
	for _, test := range []struct {
		name   string
		before serving.History
		issuer *configv1alpha1.CredentialIssuer
		states int
		since  time.Time // of the published revision
	}{
		{name: "remembers it where nothing is remembered", issuer: issuer(bundle, noon), states: 1, since: noon},
		{
			name: "closes what was published before", before: open, issuer: issuer(bundle, noon.Add(time.Minute)),
			states: 2, since: noon.Add(time.Minute),
		},
		{
			name: "knows what is remembered already", before: open, issuer: issuer("", noon.Add(time.Minute)), states: 1,
			since: noon,
		},
		{
			name: "takes an entry that is older than the memory for one that lasts", before: open,
			issuer: issuer(bundle, noon.Add(-time.Minute)), states: 2, since: noon,
		},
		{
			name: "believes in no future", issuer: issuer(bundle, noon.Add(48*time.Hour)), states: 1,
			since: noon.Add(time.Hour),
		},
		{name: "knows no time for what has none", issuer: issuer(bundle, time.Time{}), states: 1, since: noon.Add(time.Hour)},
		{name: "reads no bundle that is none", before: open, issuer: issuer("?", noon), states: 1, since: noon},
		{name: "goes on where nothing is published", before: open, issuer: &configv1alpha1.CredentialIssuer{}, states: 1, since: noon},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := test.before.SinceStatus(test.issuer, noon.Add(time.Hour), serving.DefaultRetention)
			if len(got.Revisions) != test.states || got.Current() == nil || !got.Current().Since.Equal(test.since) ||
				len(got.Chain) != len(test.before.Chain) {
				t.Errorf("%d states: %+v", len(got.Revisions), got.Revisions)
			}
		})
	}
}
