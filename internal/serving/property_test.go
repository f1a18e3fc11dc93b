package serving_test

import (
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// certificate models a serving certificate: one letter for its CA, and one for each name.
type certificate struct{ ca, names string }

// client models a group of clients: the CAs that it trusts, in letters, and the name that it uses.
type client struct {
	cas, name string
	at        time.Time     // when it was last issued
	of        time.Duration // how long it was issued in total
}

func (c client) works(with certificate) bool {
	return strings.Contains(c.cas, with.ca) && strings.Contains(with.names, c.name)
}

// world models an agent and its clients with letters, next to the History that the agent keeps. The tests compare the
// verdicts of this package with the model.
type world struct {
	t       *testing.T
	p       *pki
	chains  map[certificate][]*x509.Certificate
	now     time.Time
	history serving.History
	serving certificate
	bundle  string
	clients map[string]client
}

func (w *world) chain(of certificate) []*x509.Certificate {
	w.t.Helper()
	if w.chains[of] == nil {
		var names []string
		for _, letter := range strings.Split(of.names, "") {
			names = append(names, letter+".example.com")
		}
		w.chains[of] = w.p.chain(of.ca, names...)
	}
	return w.chains[of]
}

// serve makes the agent serve and publish this for a period in which clients get kubeconfigs.
func (w *world) serve(of certificate, bundle string, lasts time.Duration) {
	w.t.Helper()
	w.serving, w.bundle = of, bundle
	w.history = used(w.t, w.history, serving.Published{
		Endpoint: "https://p.example.com", Bundle: w.p.bundle(bundle), Chain: w.chain(of),
	}, w.now)
	w.now = w.now.Add(lasts)
	for _, name := range strings.Split(of.names, "") {
		// Clients with the same CAs but other names belong to other revisions, so their time counts separately.
		key := bundle + "/" + of.names + "/" + name
		was := w.clients[key]
		w.clients[key] = client{cas: bundle, name: name, at: w.now, of: was.of + lasts}
	}
}

// judge returns the verdict on a change to another certificate.
func (w *world) judge(next certificate) serving.Judgement {
	w.t.Helper()
	return serving.Judge(serving.Effect(w.history, serving.Served{Chain: w.chain(w.serving)},
		serving.Served{Chain: w.chain(next)}, w.now))
}

// lost returns the clients that verify now and would fail with next.
func (w *world) lost(next certificate) (lost []client) {
	for _, c := range w.clients {
		if c.works(w.serving) && !c.works(next) {
			lost = append(lost, c)
		}
	}
	return lost
}

// TestNoClientBreaks makes random changes and renewals and checks every client of every past revision: a change that
// is not refused breaks no client.
func TestNoClientBreaks(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	chains := map[certificate][]*x509.Certificate{}
	accepted, refused, renewals := 0, 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 29))
		pick := func(from ...string) string { return from[random.IntN(len(from))] }
		lasts := func() time.Duration {
			return []time.Duration{time.Second, 5 * time.Second, time.Minute, time.Hour, 10 * day}[random.IntN(5)]
		}
		w := &world{t: t, p: p, chains: chains, now: noon, clients: map[string]client{}}
		w.serve(certificate{pick("a", "b"), pick("p", "pq")}, "ab", lasts())
		steps := []string{fmt.Sprintf("seed %d: %+v", seed, w.serving)}
		for range 12 {
			next, bundle := certificate{pick("a", "b", "c"), pick("p", "pq", "pqr")}, pick("a", "b", "c", "ab", "abc")
			if !strings.Contains(bundle, next.ca) {
				continue // the agent refuses it
			}
			lost := w.lost(next)
			if random.IntN(3) == 0 { // an unattended renewal: the agent waits if it would break clients
				renewals++
				j := w.judge(next)
				if len(j.Broken) > 0 {
					w.serve(w.serving, union(w.bundle, bundle), lasts())
				} else if len(lost) > 0 {
					t.Fatalf("%s: a renewal to %+v locks out %+v", strings.Join(steps, ", "), next, lost)
				} else {
					w.serve(next, bundle, lasts())
				}
				steps = append(steps, fmt.Sprintf("renewed %+v with %s", next, bundle))
				continue
			}
			j := w.judge(next)
			steps = append(
				steps,
				fmt.Sprintf("%s: %+v with %s (refused: %v)", w.now.Format(time.RFC3339), next, bundle, j.Refused),
			)
			switch {
			case j.Refused:
				refused++
				if len(j.Broken) == 0 || len(lost) == 0 {
					t.Fatalf("%s: it is refused for %v", strings.Join(steps, ", "), j.Sentences())
				}
				w.now = w.now.Add(lasts())
				continue
			case len(lost) > 0:
				t.Fatalf("%s: %+v are broken", strings.Join(steps, ", "), lost)
			}
			accepted++
			w.serve(next, bundle, lasts())
		}
	}
	t.Logf("%d changes taken, %d refused; %d renewals", accepted, refused, renewals)
	if accepted < 100 || refused < 100 || renewals < 100 {
		t.Error("the test does not reach all that it is about")
	}
}

func union(a, b string) string {
	all := strings.Split(a+b, "")
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "")
}

// TestRetired shows that a retired revision has no clients until it is published again.
func TestRetired(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	var h serving.History
	var retired serving.Revision
	tell := func(bundle string, chain []*x509.Certificate, at time.Time) {
		t.Helper()
		h = used(t, h, p.published(bundle, chain), at)
	}
	refused := func() bool {
		t.Helper()
		key, value := retired.Retirement(noon.Add(240 * day)) // the administrator's clock is wrong
		read := must.Get(serving.Read(map[string]string{serving.RevisionsKey: string(h.Encode()), key: value}))(t)
		return refusedBy(read, serving.Served{Chain: a}, serving.Served{Chain: b})
	}
	tell("a", a, noon.Add(-2*day))
	retired = h.Revisions[0]
	tell("ab", a, noon.Add(-day))
	if refused() {
		t.Error("what is retired counts")
	}
	tell("a", a, noon.Add(time.Hour))
	h.Revisions = []serving.Revision{h.Revisions[1], h.Revisions[0]} // its ID is the retired one
	tell("ab", a, noon.Add(2*time.Hour))
	for i := range h.Revisions {
		if certs.SameBundle(h.Revisions[i].Bundle, p.bundle("a")) {
			h.Revisions[0], h.Revisions[i] = h.Revisions[i], h.Revisions[0]
		}
	}
	if !refused() {
		t.Error("what was published again after it was retired does not count")
	}
}
