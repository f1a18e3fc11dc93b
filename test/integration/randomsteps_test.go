package integration

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	cliresult "github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// event is a change of the certificate: by a command of ours, a renewal, or another tool.
type event struct {
	what string
	// happen makes the change, waits until the agent has processed it, and returns the result.
	happen func(t *testing.T) result
	// breaks means that it may break clients, because ip-tls does not check it.
	breaks bool
}

// TestNoClientBreaks makes the changes of administrators, cert-manager and other tools in random order, and checks
// clients of all past revisions. No command without --allow and no renewal breaks a client, and after each change line
// one of `ip-tls status` is true. STEPS_SEED selects another order.
func TestNoClientBreaks(t *testing.T) {
	seed := must.Get(strconv.ParseUint(cmp.Or(os.Getenv("STEPS_SEED"), "3"), 10, 64))(t)
	w := newFleet(t)
	w.onlyNow(t) // the generated certificate has no clients
	w.shares(t)
	random := rand.New(rand.NewPCG(seed, 29))
	happened := map[string]int{}
	for range 50 {
		e := w.anyEvent(t, random)
		before := w.working(t)
		got := e.happen(t)
		after := w.working(t)
		t.Logf("%s: %d", e.what, got.code)
		lost := func(c *oldClient) bool { return !slices.Contains(after, c) && slices.Contains(w.clients, c) }
		if i := slices.IndexFunc(before, lost); i >= 0 && !e.breaks {
			c := before[i]
			t.Fatalf("%s ended with %d, and the client from %s with the name %s is refused now:\n%s%s",
				e.what, got.code, c.of, c.name, got.out, got.errOut)
		}
		w.addClients(t)
		users := w.lineOneIsTrue(t, e.what)
		kind, _, _ := strings.Cut(e.what, " --")
		happened[fmt.Sprintf("%s (%d)", kind, got.code)]++
		happened["USERS: "+string(users)]++
	}
	t.Logf("%d clients; %v", len(w.clients), happened)
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS = nil })
}

// anyEvent picks the next event.
func (w *fleet) anyEvent(t *testing.T, random *rand.Rand) event {
	t.Helper()
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	secret := pick("lock-a", "lock-b", "lock-a-one", "lock-b-one", sharedTLS)
	bundle := "--ca-bundle=" + w.bundles[pick("a", "b", "ab")]
	command := func(args ...string) event {
		return event{what: strings.Join(args, " "), happen: func(t *testing.T) result {
			t.Helper()
			return w.ipTLS(t, args...)
		}}
	}
	ca, names := pick("a", "b"), [][]string{{"localhost", secondName}, {"localhost"}}[random.IntN(2)]
	events := []event{
		command("set", "--secret="+secret, bundle),
		command("set", "--secret="+secret, "--ca-from-secret"),
		command("set", "--secret="+secret),
		command("unset"),
		command("undo"),
		command("set", "--secret="+secret, bundle, "--activate-after=1h"),
		command("delegate", sharedTLS),
		w.revoke(),
		{what: "history --retire", happen: w.retire},
		w.renewal(ca, names),
		w.renewal(ca, names),
		w.renewal(ca, names),
		{what: "kubectl removes tls", breaks: true, happen: func(t *testing.T) result {
			t.Helper()
			w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS = nil })
			w.generatedServes(t)
			return result{}
		}},
		{what: "kubectl configures a Secret", breaks: true, happen: func(t *testing.T) result {
			t.Helper()
			w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
				s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "lock-a"}
			})
			w.concludes(t, "lock-a", "")
			return result{}
		}},
	}
	return events[random.IntN(len(events))]
}

// shares creates a certificate in another namespace and delegates it to the agent.
func (w *fleet) shares(t *testing.T) {
	t.Helper()
	w.owners(t)
	must.Do(t, w.Cluster.Install(t.Context(), filepath.Join(w.Deploy, "tlscertificatedelegation")))
	w.fill(t, sharedTLS, "b", "localhost", secondName)
	testkit.Eventually(t, 20*time.Second, func() error { // until the API server serves the kind
		return w.ipTLS(t, "delegate", sharedTLS).err()
	})
}

// fill puts a new certificate of a CA into a Secret, with ca.crt.
func (w *fleet) fill(t *testing.T, secret, ca string, names ...string) (sha256 string) {
	t.Helper()
	pair := issueAt(t, w.cas[ca], time.Now(), 90*24*time.Hour, names...)
	data := withCA(pair, w.cas[ca].CertPEM())
	if secret == sharedTLS {
		w.putSharedData(t, data)
	} else {
		w.putSecret(t, secret, data)
	}
	leaf := must.Get(leafOf(pair))(t)
	return certs.Fingerprint(leaf.Raw)
}

// renewal renews the Secret in service, unless it is the agent's own.
func (w *fleet) renewal(ca string, names []string) event {
	what := fmt.Sprintf("a renewal by CA %s for %s", ca, strings.Join(names, " and "))
	return event{what: what, happen: func(t *testing.T) result {
		t.Helper()
		tls := w.issuer(t).Spec.ImpersonationProxy.TLS
		if tls != nil && (tls.SecretName == sharedTLS || strings.HasPrefix(tls.SecretName, "lock-")) {
			w.concludes(t, tls.SecretName, w.fill(t, tls.SecretName, ca, names...))
		}
		return result{}
	}}
}

// revoke revokes the delegation, which takes effect later.
func (w *fleet) revoke() event {
	return event{what: "delegate --revoke", happen: func(t *testing.T) result {
		t.Helper()
		got := w.ipTLS(t, "delegate", sharedTLS, "--revoke")
		if tls := w.issuer(t).Spec.ImpersonationProxy.TLS; got.code == 0 && tls != nil && tls.SecretName == sharedTLS {
			w.generatedServes(t)
		}
		return got
	}}
}

// generatedServes waits until the generated certificate is in service and in the status.
func (w *fleet) generatedServes(t *testing.T) {
	t.Helper()
	w.bothGenerated(t, 20*time.Second)
	testkit.Eventually(t, 20*time.Second, w.isReported(t))
}

// isReported checks that each replica presents the certificate in the status.
func (w *fleet) isReported(t *testing.T) func() error {
	t.Helper()
	return func() error {
		inService := w.issuer(t).Status.ServingCertificate
		for _, agent := range w.agents {
			leaf, err := presented(agent.ProxyAddress())
			if err != nil {
				return err
			}
			if inService == nil || inService.SHA256 != certs.Fingerprint(leaf.Raw) {
				return fmt.Errorf("presented is %s, and the status has %+v", certs.Fingerprint(leaf.Raw), inService)
			}
		}
		return nil
	}
}

// concludes waits until the agent has processed the certificate in a Secret: it serves it, waits with it, or reports an
// error. An empty sha256 means the current certificate of the Secret.
func (w *fleet) concludes(t *testing.T, secret, sha256 string) {
	t.Helper()
	if sha256 == "" {
		var there corev1.Secret
		must.Do(t, w.admin.Get(t.Context(), ours(secret), &there))
		chain, _ := certs.ParseBundle(there.Data[corev1.TLSCertKey])
		sha256 = certs.Fingerprint(chain[0].Raw)
	}
	var last configv1alpha1.CredentialIssuerStrategy
	var since time.Time
	testkit.Eventually(t, 30*time.Second, func() error {
		if err := w.isReported(t)(); err != nil {
			return err
		}
		issuer, strategy := w.issuer(t), w.strategy(t)
		waits := func(f configv1alpha1.StrategyFinding) bool {
			return f.Code == configv1alpha1.CodeTransitionPrepared && strings.Contains(f.Message, sha256)
		}
		if issuer.Status.ServingCertificate.SHA256 == sha256 || slices.ContainsFunc(strategy.Findings, waits) {
			return nil
		}
		// An unchanged error may be from before: wait until it is stable for a second.
		strategy.LastUpdateTime = metav1.Time{}
		if !reflect.DeepEqual(strategy, last) {
			last, since = strategy, time.Now()
		}
		if strategy.Status != configv1alpha1.StrategyError || time.Since(since) < time.Second {
			return fmt.Errorf("%s is not served, and the status is %+v", sha256, strategy)
		}
		return nil
	})
}

// history returns the agent's revision history.
func (w *fleet) history(t *testing.T) serving.History {
	t.Helper()
	var kept corev1.ConfigMap
	must.Do(t, w.admin.Get(t.Context(), ours(w.issuer(t).Status.Objects.RevisionsConfigMap), &kept))
	history := must.Get(serving.Read(kept.Data))(t)
	return history
}

// has reports whether the client may be one of the revision.
func (c *oldClient) has(s serving.Revision) bool {
	return certs.SameBundle(s.Bundle, c.bundle) && (s.Host() == c.name || slices.Contains(s.Names, c.name))
}

// retire retires the revisions whose clients are broken, and forgets these clients.
func (w *fleet) retire(t *testing.T) result {
	t.Helper()
	var found cliresult.History
	decoded(t, w.ipTLS(t, "history", "-o", "json"), 0, &found)
	for _, state := range found.Revisions {
		if state.Outcome == cliresult.ClientsRefused && state.Until != nil {
			if got := w.ipTLS(t, "history", "--retire="+state.ID); got.code != 0 {
				return got
			}
		}
	}
	history := w.history(t)
	w.clients = slices.DeleteFunc(w.clients, func(c *oldClient) bool {
		return !slices.ContainsFunc(history.Revisions, func(s serving.Revision) bool { return !s.Ended() && c.has(s) })
	})
	return result{}
}

// fares returns the errors of the clients of all revisions that were used and are not retired, by revision, and the number of clients
// that can use the endpoint's own name.
func (w *fleet) fares(t *testing.T, history serving.History) (refused map[string]string, work int) {
	t.Helper()
	refused = map[string]string{}
	for i := range history.Revisions {
		s := &history.Revisions[i]
		if s.Ended() || !s.Until.IsZero() && !s.HasClients() {
			continue
		}
		for _, c := range s.Clients() {
			switch why := w.meets(t, &oldClient{bundle: c.Bundle, name: c.Name}); {
			case why != nil:
				refused[s.ID] += fmt.Sprintf("%s: %v\n", c.Who(), why)
			case c.Name == s.Host():
				work++
			}
		}
	}
	return refused, work
}

// lineOneIsTrue compares line one of the status, its exit code and the status of each revision with the results of
// these revisions' clients. It also checks that the history has all clients of this test.
func (w *fleet) lineOneIsTrue(t *testing.T, when string) cliresult.UsersState {
	t.Helper()
	history := w.history(t)
	for _, c := range w.clients {
		if !slices.ContainsFunc(history.Revisions, c.has) && len(history.Revisions) < serving.MaxRevisions {
			t.Errorf("after %s, nobody remembers what the client from %s with the name %s was told", when, c.of, c.name)
		}
	}
	var status cliresult.Status
	var got result
	refused, work := w.fares(t, history)
	for { // until the results are stable: a renewed certificate may become active by itself
		got = w.ipTLS(t, "status", "-o", "json")
		again, working := w.fares(t, history)
		if maps.Equal(refused, again) && work == working {
			break
		}
		refused, work = again, working
	}
	decoded(t, got, got.code, &status)
	want := cliresult.UsersSomeRefused
	switch {
	case len(refused) == 0:
		want = cliresult.UsersNotAffected
	case work == 0:
		want = cliresult.UsersAllRefused
	}
	if status.Users.State != want {
		t.Errorf("after %s, line one says %q, want %s, as these are refused: %v",
			when, status.Users.Message, want, refused)
	}
	for i := range status.Clients {
		if s := &status.Clients[i]; s.Refused() != (refused[s.ID] != "") {
			t.Errorf("after %s, the status says of %s: %s; refused are %q", when, s.ID, s.Outcome, refused[s.ID])
		}
	}
	code := 0
	switch {
	case !status.InEffect:
		code = 5
	case want != cliresult.UsersNotAffected:
		code = 8
	}
	if got.code != code {
		t.Errorf("after %s, status ended with %d, want %d: %s", when, got.code, code, got.errOut)
	}
	return status.Users.State
}
