package certs

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTimeline(t *testing.T) {
	t.Parallel()
	ends := func(after time.Duration) change {
		return func(c *x509.Certificate) { c.NotAfter = testNow().Add(after) }
	}
	lives := func(from, to time.Duration) change {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = testNow().Add(from), testNow().Add(to) }
	}
	root, short := newRoot(t, "Root", ends(1000*day)), newRoot(t, "Short root", ends(50*day))
	for _, tt := range []struct {
		name string
		in   func(t *testing.T) Input
		want []string
	}{
		{
			name: "tells when it grows old and when it ends",
			in:   func(t *testing.T) Input { t.Helper(); return inputFor(t, root, root.newLeaf(t, lives(0, 90*day))) },
			want: []string{"60d1s ExpiresSoon warning", "81d1s ExpiresSoon error", "90d1s Expired error breaks"},
		},
		{
			name: "tells when the CA ends first",
			in:   func(t *testing.T) Input { t.Helper(); return inputFor(t, short, short.newLeaf(t, lives(0, 90*day))) },
			want: []string{
				"50d1s BundleDoesNotVerify error breaks", "60d1s ExpiresSoon warning", "81d1s ExpiresSoon error",
				"90d1s Expired error BundleMember warning breaks",
			},
		},
		{
			name: "tells when an intermediate ends",
			in: func(t *testing.T) Input {
				t.Helper()
				inter := root.newCA(t, "Intermediate", ends(10*day))
				return inputFor(t, root, inter.newLeaf(t, lives(0, 90*day)), inter)
			},
			want: []string{
				"10d1s IntermediateInvalid error OutlivesIssuer warning breaks", "60d1s ExpiresSoon warning",
				"81d1s ExpiresSoon error", "90d1s Expired error breaks",
			},
		},
		{
			name: "takes the beginning for no trouble",
			in:   func(t *testing.T) Input { t.Helper(); return inputFor(t, root, root.newLeaf(t, lives(9*day, 99*day))) },
			want: []string{"69d1s ExpiresSoon warning", "90d1s ExpiresSoon error", "99d1s Expired error breaks"},
		},
		{
			name: "has nothing to say about what never ends",
			in: func(t *testing.T) Input {
				t.Helper()
				never := func(c *x509.Certificate) { c.NotAfter = lastInstant() }
				root := newRoot(t, "Root", never)
				return inputFor(t, root, root.newLeaf(t, never))
			},
		},
		{
			name: "ends with what has expired",
			in:   func(t *testing.T) Input { t.Helper(); return inputFor(t, root, root.newLeaf(t, lives(-9*day, -day))) },
		},
		{
			name: "has nothing to say about what cannot be read",
			in:   func(*testing.T) Input { return Input{CertPEM: []byte("x"), Now: testNow()} },
		},
		{
			name: "needs no private key",
			in: func(t *testing.T) Input {
				t.Helper()
				in := inputFor(t, root, root.newLeaf(t, lives(-89*day, day)))
				in.KeyPEM, in.NoKey = nil, true
				return in
			},
			want: []string{"1d1s Expired error breaks"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, event := range Timeline(tt.in(t)) {
				after := event.At.Sub(testNow())
				line := fmt.Sprintf("%dd%.0fs", after/day, (after % day).Seconds())
				for _, f := range event.Findings {
					line += fmt.Sprintf(" %s %s", f.Code, f.Severity)
				}
				if event.Breaks {
					line += " breaks"
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTimelineCanBeWritten encodes as JSON certificates that never expire, and whose lifetime exceeds a Duration.
func TestTimelineCanBeWritten(t *testing.T) {
	t.Parallel()
	for _, end := range []time.Time{
		lastInstant(), lastInstant().Add(-time.Second), time.Date(5000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		long := func(c *x509.Certificate) { c.NotAfter = end }
		root := newRoot(t, "Root")
		in := inputFor(t, root, root.newLeaf(t, long))
		events := Timeline(in)
		if len(events) == 0 {
			t.Errorf("nothing is said of the root that ends before %s", end)
		}
		if data, err := json.Marshal(struct {
			Report Report
			Events []Event
		}{Check(in), events}); err != nil {
			t.Errorf("%s: %v", data, err)
		}
	}
}

// TestDatesWithAnOffset has a date in the year 9999 in its own time zone, and in the year 10000 in UTC.
func TestDatesWithAnOffset(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	end := time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -8*60*60))
	dated := *p.leaf.Certificate
	dated.NotAfter = end
	leaf := p.inter.written(t, entity{&dated, p.leaf.key}, asn1.TagGeneralizedTime, "20060102150405Z0700")
	if leaf.NotAfter.UTC().Year() != 10000 {
		t.Fatalf("the test does not test it: %s", leaf.NotAfter)
	}
	in := inputFor(t, p.root, leaf, p.inter)
	if _, err := json.Marshal(Check(in)); err != nil {
		t.Error(err)
	}
	if _, err := json.Marshal(Timeline(in)); err != nil {
		t.Error(err)
	}
}

func TestNoKey(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.KeyPEM, in.NoKey = []byte("not looked at"), true
	if got := Check(in); !got.OK() {
		t.Errorf("a good chain without its key: %v", got.Errors())
	}
	in.NoKey = false
	if got := Check(in); !got.Has(KeyUnreadable) && !got.Has(NotACertificate) {
		t.Errorf("a key that cannot be read: %v", got.Findings)
	}
}
