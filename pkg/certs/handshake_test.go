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
	at := func(chain ...*x509.Certificate) []Served { return []Served{{Address: "203.0.113.7:443", Chain: chain}} }
	good := at(chain...)
	second := Served{Address: "203.0.113.8:443", Chain: chain}
	wrong := Served{Address: "203.0.113.8:443", Chain: []*x509.Certificate{other.leaf.Certificate}}
	for _, tt := range []struct {
		name    string
		want    Expected
		seen    []Served
		code    Code // of the only finding, if there is one
		message string
	}{
		{"takes the expected certificate at every address", want, append(good, second), "", ""},
		{
			"names the address that presents another one", want, append(good, wrong), EndpointServesOther,
			"203.0.113.8:443 presents another certificate",
		},
		{
			"names the address that does not respond", want,
			[]Served{{Address: "203.0.113.7:443", Err: errors.New("connection refused")}},
			EndpointUnreachable, "connection refused",
		},
		{"wants the intermediates", want, at(chain[0]), BundleDoesNotVerify, "does not verify it"},
		{
			"wants the host's name", with(func(e *Expected) { e.Host = "other.example.com" }), good,
			NameNotCovered, "not valid for",
		},
		{
			"uses the system roots without a bundle", with(func(e *Expected) { e.Bundle, e.Roots = nil, x509.NewCertPool() }),
			good, BundleDoesNotVerify, "does not verify it",
		},
		{"takes any certificate that clients can verify", with(func(e *Expected) { e.SHA256 = "" }), good, "", ""},
		{
			"takes none that they cannot verify", with(func(e *Expected) { e.SHA256 = "" }),
			at(other.leaf.Certificate), BundleDoesNotVerify,
			"presents a certificate, but the published CA bundle does not verify it",
		},
		{
			"tells an expired one from one that nothing verifies",
			with(func(e *Expected) { e.Now = p.leaf.NotAfter.Add(time.Hour) }), good, Expired, "which expired on",
		},
		{
			"tells one that is not valid yet", with(func(e *Expected) { e.Now = p.leaf.NotBefore.Add(-time.Hour) }),
			good, NotYetValid, "which is not valid before",
		},
		{"wants an address", want, nil, EndpointUnreachable, "resolves to no address"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := CheckServed(tt.want, tt.seen)
			if tt.code == "" && len(got) > 0 || tt.code != "" &&
				(len(got) != 1 || got[0].Code != tt.code || !strings.Contains(got[0].Message, tt.message)) {
				t.Errorf("got %v, want %s with %q", got, tt.code, tt.message)
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
