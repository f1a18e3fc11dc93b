package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestRehearse(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	pair := must.Get(tls.X509KeyPair(in.CertPEM, in.KeyPEM))(t)
	good, foreign := x509.NewCertPool(), x509.NewCertPool()
	good.AddCert(p.root.Certificate)
	foreign.AddCert(newRoot(t, "Foreign").Certificate)
	for _, tt := range []struct {
		name, host string
		roots      *x509.CertPool
		at         time.Time
		fails      string
	}{
		{name: "connects", host: testName, roots: good, at: testNow()},
		{name: "connects to a name with a dot at its end", host: testName + ".", roots: good, at: testNow()},
		{
			name: "fails for another name", host: "other.example.com", roots: good, at: testNow(),
			fails: "not other.example.com",
		},
		{name: "fails for an address", host: "203.0.113.7", roots: good, at: testNow(), fails: "IP SANs"},
		{name: "fails with another bundle", host: testName, roots: foreign, at: testNow(), fails: "unknown authority"},
		{name: "fails at another time", host: testName, roots: good, at: testNow().Add(100 * day), fails: "expired"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(tt.name+" with "+tls.VersionName(version), func(t *testing.T) {
				t.Parallel()
				err := rehearse(pair, tt.roots, tt.host, version, tt.at)
				if (err != nil) != (tt.fails != "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("got %v, want %q", err, tt.fails)
				}
			})
		}
	}
}

// TestHandshakeFailed runs without the other checks, after which HandshakeFailed is the last resort.
func TestHandshakeFailed(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	r := newRun(p.input(t))
	r.files()
	r.anchor = anchors{name: "the CA bundle", pool: x509.NewCertPool()}
	r.clients()
	if got := r.found.result(); len(got) != 1 || got[0].Code != HandshakeFailed || !got[0].Refuses() {
		t.Errorf("got %v", got)
	}
}

func TestCheckServed(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	chain := []*x509.Certificate{p.leaf.Certificate, p.inter.Certificate}
	other := newPKI(t)
	want := Expected{SHA256: Fingerprint(p.leaf.Raw), Host: testName, Bundle: p.root.pem(), Now: testNow()}
	with := func(change func(*Expected)) Expected {
		changed := want
		change(&changed)
		return changed
	}
	for _, tt := range []struct {
		name    string
		want    Expected
		seen    []Served
		message string
		number  int
		code    Code
	}{
		{
			name: "takes the expected certificate at every address", want: want,
			seen: []Served{{Address: "203.0.113.7:443", Chain: chain}, {Address: "203.0.113.8:443", Chain: chain}},
		},
		{
			name: "names the address that presents another one", want: want, number: 1, code: EndpointServesOther, message: "203.0.113.8:443 presents " +
				"another certificate",
			seen: []Served{
				{Address: "203.0.113.7:443", Chain: chain},
				{Address: "203.0.113.8:443", Chain: []*x509.Certificate{other.leaf.Certificate}},
			},
		},
		{
			name: "names the address that does not respond", want: want, number: 1, code: EndpointUnreachable, message: "connection refused",
			seen: []Served{{Address: "203.0.113.7:443", Err: errors.New("connection refused")}},
		},
		{
			name: "wants the intermediates", want: want, number: 1, code: BundleDoesNotVerify, message: "does not verify it",
			seen: []Served{{Address: "203.0.113.7:443", Chain: chain[:1]}},
		},
		{
			name: "wants the host's name", want: with(
				func(e *Expected) { e.Host = "other.example.com" },
			), number: 1, code: NameNotCovered, message: "not valid for",
			seen: []Served{{Address: "203.0.113.7:443", Chain: chain}},
		},
		{
			name: "uses the system roots without a bundle", want: with(
				func(e *Expected) { e.Bundle, e.Roots = nil, x509.NewCertPool() },
			), number: 1, code: BundleDoesNotVerify,
			message: "does not verify it", seen: []Served{{Address: "203.0.113.7:443", Chain: chain}},
		},
		{
			name: "takes any certificate that clients can verify", want: with(func(e *Expected) { e.SHA256 = "" }),
			seen: []Served{{Address: "203.0.113.7:443", Chain: chain}},
		},
		{
			name: "takes none that they cannot verify", want: with(func(e *Expected) { e.SHA256 = "" }), number: 1, code: BundleDoesNotVerify,
			message: "presents a certificate, but the published CA bundle does not verify it",
			seen:    []Served{{Address: "203.0.113.7:443", Chain: []*x509.Certificate{other.leaf.Certificate}}},
		},
		{
			name: "tells an expired one from one that nothing verifies", number: 1, code: Expired, message: "which expired on",
			want: with(func(e *Expected) { e.Now = p.leaf.NotAfter.Add(time.Hour) }),
			seen: []Served{{Address: "203.0.113.7:443", Chain: chain}},
		},
		{
			name: "tells one that is not valid yet", number: 1, code: NotYetValid, message: "which is not valid before",
			want: with(func(e *Expected) { e.Now = p.leaf.NotBefore.Add(-time.Hour) }),
			seen: []Served{{Address: "203.0.113.7:443", Chain: chain}},
		},
		{name: "wants an address", want: want, number: 1, code: EndpointUnreachable, message: "resolves to no address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := CheckServed(tt.want, tt.seen)
			if len(got) != tt.number ||
				len(got) > 0 && (got[0].Code != tt.code || !strings.Contains(got[0].Message, tt.message)) {
				t.Errorf("got %v, want %d with %q", got, tt.number, tt.message)
			}
		})
	}
}

func TestCheckLoadBalancerIP(t *testing.T) {
	t.Parallel()
	one, other := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("::ffff:203.0.113.8")
	for _, tt := range []struct {
		name, ip string
		resolved []netip.Addr
		want     int
	}{
		{"is silent when the endpoint leads there", "203.0.113.8", []netip.Addr{one, other}, 0},
		{"warns when it leads elsewhere", "203.0.113.9", []netip.Addr{one, other}, 1},
		{"is silent when nothing is resolved", "203.0.113.9", nil, 0},
		{"is silent without an address", "", []netip.Addr{one}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := CheckLoadBalancerIP(tt.ip, "proxy.example.com", tt.resolved)
			if len(got) != tt.want || len(got) > 0 && (got[0].Code != LoadBalancerIPUnused || got[0].Refuses()) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.Names = append(in.Names, Name{Value: "other.example.com", Source: "test"})
	in.Bundle = concat(in.Bundle, in.Bundle)
	report := Check(in)
	if report.OK() || len(report.Errors()) != 1 || len(report.Warnings()) != 1 {
		t.Errorf("OK %v, errors %v, warnings %v", report.OK(), report.Errors(), report.Warnings())
	}
	if first, ok := report.First(); !ok || first.Code != NameNotCovered {
		t.Errorf("First = %v, %v", first, ok)
	}
	if report.SHA256 != Fingerprint(p.leaf.Raw) || report.Leaf == nil || !report.NotAfter.Equal(p.leaf.NotAfter) ||
		report.Key != "ECDSA P-256" {
		t.Errorf("facts: %+v", report)
	}
	in.Allow = []Code{NameNotCovered}
	report = Check(in)
	if !report.OK() || len(report.Warnings()) != 2 {
		t.Errorf("allowed: OK %v, warnings %v", report.OK(), report.Warnings())
	}
}
