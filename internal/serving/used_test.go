package serving_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// refusedBy reports whether a change from one chain to another breaks clients of the history.
func refusedBy(h serving.History, now, next serving.Served) bool {
	return serving.Judge(serving.Effect(h, now, next, noon)).Refused
}

// TestUnusedRevisions shows that a revision that was never used has no clients.
func TestUnusedRevisions(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	a, b := p.chain("a"), p.chain("b")
	h := must.Get(serving.History{}.Append(
		serving.Published{Endpoint: endpoint, Bundle: p.bundle("a"), Chain: a}, noon.Add(-day), serving.DefaultRetention))(t)
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
	h := used(
		t,
		serving.History{},
		serving.Published{Endpoint: endpoint, Bundle: p.bundle("a"), Chain: wild},
		noon.Add(-day),
	)
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
			Endpoint: fmt.Sprintf(
				"https://p%d.example.com",
				i,
			),
			Bundle: p.bundle("b"),
			Chain:  b,
			Names:  []string{"proxy.example.com"},
		}, noon.Add(time.Duration(i)*time.Second), serving.DefaultRetention)
	}
	h := used(t, serving.History{}, serving.Published{Endpoint: endpoint, Bundle: p.bundle("a"), Chain: a}, noon.Add(-day))
	var err error
	for i := range 2 * serving.MaxRevisions {
		if h, err = publish(h, i); err != nil {
			t.Fatal(err)
		}
	}
	if !refusedBy(h, serving.Served{Chain: a}, serving.Served{Chain: b}) {
		t.Error("a used revision was evicted")
	}
	full := serving.History{}
	for i := range serving.MaxRevisions {
		if full, err = publish(full, i); err != nil {
			t.Fatal(err)
		}
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
	h := used(
		t,
		serving.History{},
		serving.Published{Endpoint: endpoint, Bundle: p.bundle("a"), Chain: a},
		noon.Add(-2*day),
	)
	h = used(t, h, serving.Published{Endpoint: endpoint, Bundle: p.bundle("ab"), Chain: a}, noon.Add(-day))
	var summary []serving.Revision
	for _, s := range h.Revisions {
		summary = append(summary, serving.Revision{
			ID:       s.ID,
			Since:    s.Since,
			Until:    s.Until,
			LastUsed: s.LastUsed,
			Endpoint: s.Endpoint,
			Names:    s.Names,
			Lost:     s.Fingerprints(),
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
	h := used(t, serving.History{}, serving.Published{Endpoint: endpoint, Bundle: p.bundle("a"), Chain: a}, noon.Add(-day))
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
