package serving_test

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
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
		ca := must.Get(certs.NewCA(name, noon.Add(-400*day), 4000*day))(p.t)
		p.cas[name] = ca
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
		return used(t, h, serving.Published{Endpoint: endpoint, Bundle: p.bundle(bundle), Chain: chain}, at)
	}
	for _, test := range []struct {
		name      string
		history   func() serving.History
		now, next []*x509.Certificate
		refused   bool
		lost      []string
	}{
		{
			name:    "refuses another CA",
			history: func() serving.History { return told(serving.History{}, "a", a, noon.Add(-9*day)) },
			now:     a, next: b, refused: true, lost: []string{"BundleDoesNotVerify"},
		},
		{
			name: "refuses another CA a second after the bundle became wider",
			history: func() serving.History {
				return told(told(serving.History{}, "a", a, noon.Add(-9*day)), "ab", a, noon.Add(-time.Second))
			},
			now: a, next: b, refused: true, lost: []string{"BundleDoesNotVerify"},
		},
		{
			name:    "refuses a certificate that lacks a name which was covered",
			history: func() serving.History { return told(serving.History{}, "a", wide, noon.Add(-9*day)) },
			now:     wide, next: a, refused: true, lost: []string{"NameNotCovered"},
		},
		{
			name:    "refuses to switch the proxy off",
			history: func() serving.History { return told(serving.History{}, "a", a, noon.Add(-9*day)) },
			now:     a, refused: true, lost: []string{"SwitchedOff"},
		},
		{
			name:    "refuses another CA for who worked before the proxy was switched off",
			history: func() serving.History { return told(serving.History{}, "a", a, noon.Add(-9*day)) },
			next:    b, refused: true, lost: []string{"BundleDoesNotVerify"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := serving.Judge(serving.Effect(
				test.history(),
				serving.Served{
					Chain: test.now,
					Off:   test.now == nil,
				},
				serving.Served{Chain: test.next, Off: test.next == nil},
				noon,
			))
			var lost []string
			for _, o := range got.Broken {
				lost = append(lost, string(o.After))
			}
			if diff := cmp.Diff(test.lost, lost); diff != "" || got.Refused != test.refused {
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
		published := serving.Published{Endpoint: endpoint, Bundle: p.bundle(bundle), Chain: chain}
		h = must.Get(h.Append(published, at, serving.DefaultRetention))(t)
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
		h = must.Get(h.Append(
			serving.Published{Endpoint: endpoint, Bundle: p.bundle("a"), Chain: chain},
			at,
			serving.DefaultRetention,
		))(t)
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
