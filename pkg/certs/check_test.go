package certs

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestGoodCertificates(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	wantFindings(t, p.input(t))
	direct := p.root.newLeaf(t)
	report := wantFindings(t, inputFor(t, p.root, direct))
	if report.Findings == nil {
		t.Error("no findings are null in JSON, not []")
	}
}

func TestDamagedLeaf(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.CertPEM = concat(block("CERTIFICATE", p.leaf.Raw[:300]), p.inter.pem())
	if report := wantFindings(t, in, "error NotACertificate"); report.Leaf != nil {
		t.Errorf("the intermediate %s is taken for the serving certificate", report.Subject)
	}
	in.CertPEM = concat(p.leaf.keyPEM(t), p.leaf.pem(), p.inter.pem())
	if report := wantFindings(t, in, "error NotACertificate"); report.SHA256 != Fingerprint(p.leaf.Raw) {
		t.Errorf("the serving certificate behind a key is not found: %s", report.Subject)
	}
}

// TestExpiredIsReportedOnce shows that there is no second finding with another fix if a CA has expired, too, or was issued
// later.
func TestExpiredIsReportedOnce(t *testing.T) {
	t.Parallel()
	root := newRoot(t, "Root", validity(-100*day, -10*day))
	in := inputFor(t, root, root.newLeaf(t, validity(-50*day, -2*day)))
	report := Check(in)
	if errs := report.Errors(); len(errs) != 1 || errs[0].Code != Expired {
		t.Errorf("the errors are %v", errs)
	}
}

// TestExpiresWithin shows that errors name what expires too soon, and not a CA that clients do not need.
func TestExpiresWithin(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	// The certificates have been valid for an hour.
	ca := must.Get(NewCA("Short CA", now.Add(-time.Hour), 60*day))(t)
	pair := must.Get(ca.IssueServing(SANs{DNSNames: []string{"proxy.example.com"}}, now.Add(-time.Hour), 20*day))(t)
	other := must.Get(NewCA("Unneeded CA", now.Add(-time.Hour), 3*day))(t)
	for _, tt := range []struct {
		name   string
		within time.Duration
		at     time.Time
		bundle []byte
		want   []string // parts of the errors, in order
	}{
		{name: "is off"},
		{name: "takes what lasts longer", within: 10 * day},
		{
			name: "names the serving certificate", within: 30 * day,
			want: []string{"ExpiresSoon: the serving certificate (no subject, DNS name \"proxy.example.com\") expires on "},
		},
		{
			name: "names the CA, too", within: 90 * day,
			want: []string{"the serving certificate", "ExpiresSoon: a CA that clients need (\"CN=Short CA\") expires on "},
		},
		{
			name: "passes over a CA that clients do not need", within: 10 * day,
			bundle: slices.Concat(ca.CertPEM(), other.CertPEM()),
		},
		{
			name: "replaces the warning about the share of the lifetime", within: 10 * day, at: now.Add(15 * day),
			want: []string{"it must be valid for 10 days"},
		},
		{name: "adds nothing to what has expired", within: 10 * day, at: now.Add(30 * day), want: []string{"Expired: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := Input{
				CertPEM: pair.CertPEM, KeyPEM: pair.KeyPEM, Bundle: ca.CertPEM(), Now: now, ExpiresWithin: tt.within,
				Endpoint: "proxy.example.com",
			}
			if !tt.at.IsZero() {
				in.Now = tt.at
			}
			if tt.bundle != nil {
				in.Bundle = tt.bundle
			}
			report := Check(in)
			errs := report.Errors()
			if len(errs) != len(tt.want) {
				t.Fatalf("errors %q, want %q", errs, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(errs[i].String(), want) {
					t.Errorf("%q does not say %q", errs[i], want)
				}
			}
			soon := 0
			for _, f := range report.Findings {
				if f.Code == ExpiresSoon && strings.Contains(f.Message, "serving certificate") {
					soon++
				}
			}
			if soon > 1 {
				t.Errorf("that it expires soon is told %d times: %v", soon, report.Findings)
			}
		})
	}
}

// TestMessagesAboutDatesStayTrue checks the same certificate twice, hours apart. Message stays the same; String says
// how far away the date is.
func TestMessagesAboutDatesStayTrue(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	const hour = time.Hour
	for _, tt := range []struct {
		name          string
		from, to      time.Duration
		within        time.Duration
		code          Code
		shown, latest string
	}{
		{name: "an end", from: -90 * day, to: -3 * hour, code: Expired, shown: ", 3 hours ago", latest: ", 5 hours ago"},
		{name: "a beginning", from: 9 * hour, to: 90 * day, code: NotYetValid, shown: ", in 9 hours", latest: ", in 7 hours"},
		{
			name: "a beginning within the skew", from: 2*hour + 4*time.Minute, to: 90 * day, code: NotYetValid,
			shown: ", in 2 hours", latest: ", in 4 minutes; clients",
		},
		{
			name: "an end soon", from: -90 * day, to: 9 * hour, code: ExpiresSoon,
			shown: ", in 9 hours: less than a tenth", latest: ", in 7 hours: less than a tenth",
		},
		{
			name: "an end that is sooner than asked for", from: -hour, to: 9 * hour, within: day, code: ExpiresSoon,
			shown: ", in 9 hours, but it must be valid for 24 hours", latest: ", in 7 hours, but it must be valid for 24 hours",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, p.inter.newLeaf(t, validity(tt.from, tt.to)), p.inter)
			in.ExpiresWithin = tt.within
			first, _ := Check(in).First()
			in.Now = in.Now.Add(2 * hour)
			later, _ := Check(in).First()
			if first.Code != tt.code || later.Code != tt.code {
				t.Fatalf("want %s twice, got %v and %v", tt.code, first, later)
			}
			if first.Message != later.Message && later.Severity == first.Severity {
				t.Errorf("the message has become %q, from %q", later.Message, first.Message)
			}
			for _, relative := range []string{" ago", ", in "} {
				if strings.Contains(first.Message, relative) {
					t.Errorf("want no %q in %q", relative, first.Message)
				}
			}
			if !strings.Contains(first.String(), tt.shown) || !strings.Contains(later.String(), tt.latest) {
				t.Errorf("want %q and later %q shown, got %q and %q", tt.shown, tt.latest, first, later)
			}
		})
	}
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	ends := func(after time.Duration) change {
		return func(c *x509.Certificate) { c.NotAfter = testNow().Add(after) }
	}
	root, short := newRoot(t, "Root", ends(1000*day)), newRoot(t, "Short root", ends(50*day))
	inter := root.newCA(t, "Intermediate", ends(10*day))
	never := func(c *x509.Certificate) { c.NotAfter = lastInstant() }
	immortal := newRoot(t, "Root", never)
	noKey := inputFor(t, root, root.newLeaf(t, validity(-89*day, day)))
	noKey.KeyPEM, noKey.NoKey = nil, true
	for _, tt := range []struct {
		name string
		in   Input
		want []string
	}{
		{
			name: "tells when it grows old and when it ends",
			in:   inputFor(t, root, root.newLeaf(t, validity(0, 90*day))),
			want: []string{"60d1s ExpiresSoon warning", "81d1s ExpiresSoon error", "90d1s Expired error breaks"},
		},
		{
			name: "tells when the CA ends first",
			in:   inputFor(t, short, short.newLeaf(t, validity(0, 90*day))),
			want: []string{
				"50d1s BundleDoesNotVerify error breaks", "60d1s ExpiresSoon warning", "81d1s ExpiresSoon error",
				"90d1s Expired error BundleMember warning breaks",
			},
		},
		{
			name: "tells when an intermediate ends",
			in:   inputFor(t, root, inter.newLeaf(t, validity(0, 90*day)), inter),
			want: []string{
				"10d1s IntermediateInvalid error OutlivesIssuer warning breaks", "60d1s ExpiresSoon warning",
				"81d1s ExpiresSoon error", "90d1s Expired error breaks",
			},
		},
		{
			name: "takes the beginning for no trouble",
			in:   inputFor(t, root, root.newLeaf(t, validity(9*day, 99*day))),
			want: []string{"69d1s ExpiresSoon warning", "90d1s ExpiresSoon error", "99d1s Expired error breaks"},
		},
		{
			name: "has nothing to say about what never ends",
			in:   inputFor(t, immortal, immortal.newLeaf(t, never)),
		},
		{
			name: "ends with what has expired",
			in:   inputFor(t, root, root.newLeaf(t, validity(-9*day, -day))),
		},
		{
			name: "has nothing to say about what cannot be read",
			in:   Input{CertPEM: []byte("x"), Now: testNow()},
		},
		{
			name: "needs no private key",
			in:   noKey,
			want: []string{"1d1s Expired error breaks"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, event := range Timeline(tt.in) {
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
		must.Get(json.Marshal([]any{Check(in), events}))(t)
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
	must.Get(json.Marshal(Check(in)))(t)
	must.Get(json.Marshal(Timeline(in)))(t)
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

func TestExplain(t *testing.T) {
	t.Parallel()
	codes := Codes()
	if len(codes) != 39 {
		t.Errorf("%d codes", len(codes))
	}
	for i, code := range codes {
		e, ok := Explain(code)
		if !ok || e.Code != code || e.Cause == "" || e.Consequence == "" || e.Fix == "" {
			t.Errorf("%s is not explained: %+v", code, e)
		}
		if slices.Contains(codes[i+1:], code) {
			t.Errorf("%s is there twice", code)
		}
	}
	if _, ok := Explain("NoSuchCode"); ok {
		t.Error("a code that does not exist is explained")
	}
}

func TestAllowable(t *testing.T) {
	t.Parallel()
	for code, want := range map[Code]bool{
		KeyMismatch: false, NotACertificate: false, TooLarge: false, SecretIncomplete: false,
		NameNotCovered: true, Expired: false, ExpiresSoon: true, OldClientsBreak: true, BundleDoesNotVerify: true,
		MustStaple: false, "NoSuchCode": false,
	} {
		if got := Allowable(code); got != want {
			t.Errorf("Allowable(%s) = %v", code, got)
		}
	}
}

func TestFindingJSON(t *testing.T) {
	t.Parallel()
	data := must.Get(json.Marshal(NewFinding(SecretNotFound, "no Secret")))(t)
	var back Finding
	must.Do(t, json.Unmarshal(data, &back))
	if back.Code != SecretNotFound || back.Severity != SeverityError || back.Message != "no Secret" || back.Hint == "" {
		t.Errorf("got %+v from %s", back, data)
	}
	var s Severity
	if err := s.UnmarshalText([]byte("fatal")); err == nil {
		t.Error("an unknown severity is read")
	}
}
