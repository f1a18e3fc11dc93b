package serving_test

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	day      = 24 * time.Hour
	endpoint = "https://proxy.example.com"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// pki issues certificates of CAs that are named by letters.
type pki struct {
	t   *testing.T
	cas map[string]*certs.CA
}

func newPKI(t *testing.T) *pki { t.Helper(); return &pki{t: t, cas: map[string]*certs.CA{}} }

func (p *pki) ca(name string) *certs.CA {
	p.t.Helper()
	if p.cas[name] == nil {
		p.cas[name] = must.Get(certs.NewCA(name, noon.Add(-400*day), 4000*day))(p.t)
	}
	return p.cas[name]
}

// bundle returns the CAs that these letters name.
func (p *pki) bundle(names string) []byte {
	p.t.Helper()
	var all []byte
	for _, name := range strings.Split(names, "") {
		all = append(all, p.ca(name).CertPEM()...)
	}
	return all
}

func (p *pki) chain(ca string, names ...string) []*x509.Certificate {
	p.t.Helper()
	if len(names) == 0 {
		names = []string{"proxy.example.com"}
	}
	pair := must.Get(p.ca(ca).IssueServing(certs.SANs{DNSNames: names}, noon.Add(-300*day), 900*day))(p.t)
	chain, findings := certs.ParseBundle(pair.CertPEM)
	if len(findings) > 0 {
		p.t.Fatal(findings)
	}
	return chain
}

// published is the endpoint with these CAs and this chain.
func (p *pki) published(cas string, chain []*x509.Certificate) serving.Published {
	p.t.Helper()
	return serving.Published{Endpoint: endpoint, Bundle: p.bundle(cas), Chain: chain}
}

// used publishes a revision and records a use of it.
func used(t *testing.T, h serving.History, published serving.Published, at time.Time) serving.History {
	t.Helper()
	h = must.Get(h.Append(published, at, serving.DefaultRetention))(t)
	h, _ = h.Used(h.Current().ID, "", at)
	return h
}

func TestEffect(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	wide := p.chain("a", "proxy.example.com", "old.example.com")
	told := func(h serving.History, bundle string, chain []*x509.Certificate, at time.Time) serving.History {
		return used(t, h, p.published(bundle, chain), at)
	}
	first := func() serving.History { return told(serving.History{}, "a", a, noon.Add(-9*day)) }
	for _, test := range []struct {
		name      string
		history   serving.History
		now, next []*x509.Certificate
		lost      string
	}{
		{"refuses another CA", first(), a, b, "BundleDoesNotVerify"},
		{
			"refuses another CA a second after the bundle became wider",
			told(first(), "ab", a, noon.Add(-time.Second)), a, b, "BundleDoesNotVerify",
		},
		{
			"refuses a certificate that lacks a name which was covered",
			told(serving.History{}, "a", wide, noon.Add(-9*day)), wide, a, "NameNotCovered",
		},
		{"refuses to switch the proxy off", first(), a, nil, "SwitchedOff"},
		{"refuses another CA for who worked before the proxy was switched off", first(), nil, b, "BundleDoesNotVerify"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			now := serving.Served{Chain: test.now, Off: test.now == nil}
			next := serving.Served{Chain: test.next, Off: test.next == nil}
			got := serving.Judge(serving.Effect(test.history, now, next, noon))
			var lost []string
			for _, o := range got.Broken {
				lost = append(lost, string(o.After))
			}
			if diff := cmp.Diff([]string{test.lost}, lost); diff != "" || !got.Refused {
				t.Errorf("refused: %v; lost (-want +got):\n%s%s", got.Refused, diff, strings.Join(got.Sentences(), "\n"))
			}
		})
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	at := noon
	var h serving.History
	tell := func(bundle string, chain []*x509.Certificate, after time.Duration) {
		t.Helper()
		at = at.Add(after)
		h = must.Get(h.Append(p.published(bundle, chain), at, serving.DefaultRetention))(t)
		again := must.Get(serving.Decode(h.Encode()))(t)
		if diff := cmp.Diff(h.Revisions, again.Revisions); diff != "" {
			t.Fatalf("it is kept as something else (-want +got):\n%s", diff)
		}
		h = again
	}
	tell("a", a, 0)
	tell("a", a, day)
	tell("b", b, day)
	tell("a", a, day)
	if len(h.Revisions) != 2 || h.Current() == nil || !h.Current().Since.Equal(noon) {
		t.Fatalf("a state that came back: %+v", h.Revisions)
	}
	if len(h.Chain) != 1 || !h.Chain[0].Equal(a[0]) {
		t.Errorf("in service: %v", h.Chain)
	}
	at = at.Add(serving.DefaultRetention)
	h, _ = h.Append(serving.Published{}, at, serving.DefaultRetention)
	if len(h.Revisions) != 1 || h.Current() != nil {
		t.Errorf("a year later, with nothing published: %+v", h.Revisions)
	}
	for i := range 3 * serving.MaxRevisions { // none is used
		at = at.Add(time.Minute)
		chain := p.chain("a", "proxy.example.com", fmt.Sprintf("n%d.example.com", i))
		h = must.Get(h.Append(p.published("a", chain), at, serving.DefaultRetention))(t)
	}
	if len(h.Revisions) != serving.MaxRevisions ||
		!slices.Contains(h.Revisions[0].Names, fmt.Sprintf("n%d.example.com", 2*serving.MaxRevisions)) {
		t.Errorf("%d states, the first with %v", len(h.Revisions), h.Revisions[0].Names)
	}
	many := make([]string, 4000)
	for i := range many {
		many[i] = fmt.Sprintf("a-name-that-is-not-short-%d.example.com", i)
	}
	tell("a", p.chain("a", many...), time.Minute)
	tell("b", p.chain("a", many...), time.Minute)
	if size := len(h.Encode()); size > serving.MaxBytes && len(h.Revisions) > 1 {
		t.Errorf("%d states in %d bytes", len(h.Revisions), size)
	}
}

// refusedBy reports whether a change from one chain to another breaks clients of the history.
func refusedBy(h serving.History, now, next serving.Served) bool {
	return serving.Judge(serving.Effect(h, now, next, noon)).Refused
}

// TestUnusedRevisions shows that a revision that was never used has no clients.
func TestUnusedRevisions(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	h := must.Get(serving.History{}.Append(p.published("a", a), noon.Add(-day), serving.DefaultRetention))(t)
	if refusedBy(h, serving.Served{Chain: a}, serving.Served{Chain: b}) {
		t.Error("a revision that nobody used counts")
	}
	id := h.Current().ID
	h, changed := h.Used(id, "", noon.Add(-time.Hour))
	if !changed || !refusedBy(h, serving.Served{Chain: a}, serving.Served{Chain: b}) {
		t.Error("a revision that was used does not count")
	}
	if _, again := h.Used(id, "", noon.Add(-time.Hour+time.Minute)); again {
		t.Error("a use in the same hour is written again")
	}
	if _, unknown := h.Used("another", "", noon); unknown {
		t.Error("a revision that is not known was used")
	}
}

// TestWildcardNames shows that names under a wildcard count once they have been used.
func TestWildcardNames(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	wild, narrow := p.chain("a", "proxy.example.com", "*.example.com"), p.chain("a", "proxy.example.com")
	h := used(t, serving.History{}, p.published("a", wild), noon.Add(-day))
	if refusedBy(h, serving.Served{Chain: wild}, serving.Served{Chain: narrow}) {
		t.Error("a name that nobody used counts")
	}
	h, _ = h.Used(h.Current().ID, "elsewhere.example.net", noon)
	h, _ = h.Used(h.Current().ID, "Foo.example.com", noon)
	if names := h.Current().UsedNames; !slices.Equal(names, []string{"foo.example.com"}) {
		t.Errorf("used are %q", names)
	}
	if !refusedBy(h, serving.Served{Chain: wild}, serving.Served{Chain: narrow}) {
		t.Error("a name that was used does not count")
	}
}

// TestFullOfUsedRevisions shows that no revision with clients is evicted: neither if many unused ones follow, nor if
// all are in use.
func TestFullOfUsedRevisions(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	publish := func(h serving.History, i int) (serving.History, error) {
		t.Helper()
		return h.Append(serving.Published{
			Endpoint: fmt.Sprintf("https://p%d.example.com", i), Bundle: p.bundle("b"), Chain: b,
			Names: []string{"proxy.example.com"},
		}, noon.Add(time.Duration(i)*time.Second), serving.DefaultRetention)
	}
	h := used(t, serving.History{}, p.published("a", a), noon.Add(-day))
	for i := range 2 * serving.MaxRevisions {
		h = must.Get(publish(h, i))(t)
	}
	if !refusedBy(h, serving.Served{Chain: a}, serving.Served{Chain: b}) {
		t.Error("a used revision was evicted")
	}
	full := serving.History{}
	for i := range serving.MaxRevisions {
		full = must.Get(publish(full, i))(t)
		full, _ = full.Used(full.Current().ID, "", noon)
	}
	if _, err := publish(full, serving.MaxRevisions); !errors.Is(err, serving.ErrFull) {
		t.Errorf("a full history gives %v", err)
	}
}

// TestRestore shows that a lost history is restored from its summary, and its clients count.
func TestRestore(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	h := used(t, serving.History{}, p.published("a", a), noon.Add(-2*day))
	h = used(t, h, p.published("ab", a), noon.Add(-day))
	var summary []serving.Revision
	for _, s := range h.Revisions {
		summary = append(summary, serving.Revision{
			ID: s.ID, Since: s.Since, Until: s.Until, LastUsed: s.LastUsed, Endpoint: s.Endpoint, Names: s.Names,
			Lost: s.Fingerprints(),
		})
	}
	for name, known := range map[string][]byte{"with its certificates": p.bundle("ab"), "without them": nil} {
		lost, changed := serving.History{}.Restore(summary, known)
		if !changed || len(lost.Revisions) != 2 {
			t.Fatalf("%s: restored are %+v", name, lost.Revisions)
		}
		read := must.Get(serving.Decode(lost.Encode()))(t)
		if !refusedBy(read, serving.Served{Chain: a}, serving.Served{Chain: b}) {
			t.Errorf("%s: nobody is broken", name)
		}
		if _, again := read.Restore(summary, known); again {
			t.Errorf("%s: restored twice", name)
		}
	}
}

// TestExpiredInBetween shows that clients of a certificate that has expired or was switched off still count.
func TestExpiredInBetween(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	h := used(t, serving.History{}, p.published("a", a), noon.Add(-day))
	h = must.Get(h.Append(serving.Published{}, noon, serving.DefaultRetention))(t)
	if !refusedBy(h, serving.Served{Off: true}, serving.Served{Chain: b}) {
		t.Error("switched off: nobody is broken")
	}
	late := a[0].NotAfter.Add(time.Hour)
	b = p.chain("b")
	if !serving.Judge(serving.Effect(h, serving.Served{Chain: a}, serving.Served{Chain: b}, late)).Refused {
		t.Error("expired: nobody is broken")
	}
}

// TestHistoryKeepsSpecs: the history records which spec caused a revision, so that undo can restore it byte for byte.
func TestHistoryKeepsSpecs(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	data := base64.StdEncoding.EncodeToString(append([]byte("# our CA\n"), p.bundle("a")...))
	change := func(secret string, at time.Time, outcome serving.RevisionOutcome) serving.Change {
		return serving.Change{
			By: "kubectl", ChangedAt: at, Outcome: outcome,
			Spec: &serving.RevisionSpec{
				ExternalEndpoint: "proxy.example.com",
				TLS:              &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret, CertificateAuthorityData: data},
			},
		}
	}
	var h serving.History
	publish := func(after time.Duration, change serving.Change) {
		t.Helper()
		published := p.published("a", p.chain("a"))
		published.Change = change
		h = must.Get(h.Append(published, noon.Add(after), serving.DefaultRetention))(t)
	}
	first, second := change("one", noon, serving.OutcomeInService), change("two", noon.Add(day), serving.OutcomeRefused)
	publish(0, first)
	publish(day, second)
	if len(h.Revisions) != 2 {
		t.Fatalf("another Secret of the same CA is a revision of its own, as undo goes back to the first: %+v", h.Revisions)
	}
	second.Outcome = serving.OutcomeInService
	publish(2*day, second)
	second.Outcome = serving.OutcomeRefused
	publish(3*day, second) // its Secret broke later
	second.Outcome = serving.OutcomeInService
	content := h.Encode()
	again := must.Get(serving.Decode(content))(t)
	got := []serving.Change{again.Revisions[0].Change, again.Revisions[1].Change}
	if diff := cmp.Diff([]serving.Change{first, second}, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if count := strings.Count(string(content), data); count != 1 {
		t.Errorf("certificateAuthorityData is kept %d times", count)
	}
	if first.Spec.TLS.CertificateAuthorityData != data {
		t.Error("encoding a history has changed a spec")
	}
}
