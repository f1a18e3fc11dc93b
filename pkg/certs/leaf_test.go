package certs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"
	"time"
)

func usages(list ...x509.ExtKeyUsage) change {
	return func(c *x509.Certificate) { c.ExtKeyUsage = list }
}

func TestLeaf(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	mustStaple := asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}
	for _, tt := range []struct {
		name   string
		change change
		want   string
	}{
		{"takes serverAuth next to clientAuth", usages(x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth), ""},
		{"warns without extended key usage", usages(), "warning NoServerAuth"},
		{"warns of any extended key usage alone", usages(x509.ExtKeyUsageAny), "warning NoServerAuth"},
		{"refuses a client certificate", usages(x509.ExtKeyUsageClientAuth), "error NoServerAuth"},
		{"refuses an unknown usage alone", func(c *x509.Certificate) {
			c.ExtKeyUsage, c.UnknownExtKeyUsage = nil, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 17}}
		}, "error NoServerAuth"},
		{"takes digitalSignature with keyEncipherment", func(c *x509.Certificate) {
			c.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
		}, ""},
		{"takes a certificate without key usage", func(c *x509.Certificate) { c.KeyUsage = 0 }, ""},
		{
			"refuses keyAgreement alone", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement },
			"error KeyUsage",
		},
		{
			"refuses keyEncipherment alone", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment },
			"error KeyUsage",
		},
		{"warns of must-staple", with(mustStaple, false, []byte{0x30, 3, 2, 1, 5}), "warning MustStaple"},
		{"takes another TLS feature", with(mustStaple, false, []byte{0x30, 3, 2, 1, 17}), ""},
		{"refuses a common name without SANs", sans(), "error NoNames"},
		{"takes a leaf without subject key identifier", func(c *x509.Certificate) { c.SubjectKeyId = nil }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantFindings(t, inputFor(t, p.root, p.inter.newLeaf(t, tt.change), p.inter), tt.want)
		})
	}
}

func TestSelfSigned(t *testing.T) {
	t.Parallel()
	t.Run("warns of what plain openssl req -x509 makes", func(t *testing.T) {
		t.Parallel()
		ca := selfSignedLeaf(t, usages(), func(c *x509.Certificate) {
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, 0
		})
		report := wantFindings(t, inputFor(t, ca, ca), "warning LeafIsCA", "warning NoServerAuth", "warning StrictClients")
		if !report.OK() {
			t.Error("it is refused")
		}
	})
	t.Run("warns of a self-signed certificate as its own bundle", func(t *testing.T) {
		t.Parallel()
		leaf := selfSignedLeaf(t)
		wantFindings(t, inputFor(t, leaf, leaf), "warning BundleMember")
	})
	t.Run("refuses a self-signed certificate that is not in the bundle", func(t *testing.T) {
		t.Parallel()
		wantFindings(t, inputFor(t, newRoot(t, "Root"), selfSignedLeaf(t)), "error BundleDoesNotVerify")
	})
}

func TestDates(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	hour := time.Hour
	for _, tt := range []struct {
		name     string
		from, to time.Duration
		set      func(*Input)
		want     string
	}{
		{name: "takes a fresh one", from: -hour, to: 90 * day},
		{name: "takes one of six days", from: -hour, to: 6 * day},
		{name: "takes exactly a third", from: -60 * day, to: 30 * day},
		{name: "warns of less than a third", from: -60*day - hour, to: 30 * day, want: "warning ExpiresSoon"},
		{name: "warns at exactly a tenth", from: -90 * day, to: 10 * day, want: "warning ExpiresSoon"},
		{name: "refuses less than a tenth", from: -90*day - hour, to: 10 * day, want: "error ExpiresSoon"},
		{
			name: "lets an allowed code through", from: -90*day - hour, to: 10 * day,
			set: func(in *Input) { in.Allow = []Code{ExpiresSoon} }, want: "error(allowed) ExpiresSoon",
		},
		{name: "refuses an expired one", from: -90 * day, to: -time.Second, want: "error Expired"},
		{name: "takes the very last second", from: -time.Second, to: 0, want: "error ExpiresSoon"},
		{name: "refuses one of tomorrow", from: day, to: 90 * day, want: "error NotYetValid"},
		{
			name: "warns of one that begins within the skew", from: 4 * time.Minute, to: 90 * day,
			want: "warning NotYetValid",
		},
		{
			name: "refuses it when no skew is granted", from: 4 * time.Minute, to: 90 * day,
			set: func(in *Input) { in.Skew = -1 }, want: "error NotYetValid",
		},
		{
			name: "warns when the clocks differ", from: -hour, to: 90 * day,
			set: func(in *Input) { in.ServerTime = in.Now.Add(hour) }, want: "warning ClocksDiffer",
		},
		{
			name: "is silent about small differences", from: -hour, to: 90 * day,
			set: func(in *Input) { in.ServerTime = in.Now.Add(2 * time.Minute) },
		},
		{
			name: "refuses what has expired by the API server's clock", from: -90 * day, to: 30 * day,
			set: func(in *Input) { in.ServerTime = in.Now.Add(31 * day) }, want: "warning ClocksDiffer, error Expired",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, p.inter.newLeaf(t, validity(tt.from, tt.to)), p.inter)
			if tt.set != nil {
				tt.set(&in)
			}
			wantFindings(t, in, tt.want)
		})
	}
	t.Run("says once that the dates are in the wrong order", func(t *testing.T) {
		t.Parallel()
		wantFindings(t, inputFor(t, p.root, p.inter.newLeaf(t, validity(50*day, -50*day)), p.inter), "error Expired")
		wantFindings(t, inputFor(t, p.root, p.inter.newLeaf(t, validity(-50*day, -90*day)), p.inter), "error Expired")
	})
	t.Run("counts beyond what a Duration can hold", func(t *testing.T) {
		t.Parallel()
		long := func(c *x509.Certificate) { c.NotAfter = time.Date(5000, 1, 1, 0, 0, 0, 0, time.UTC) }
		root := newRoot(t, "Root", long)
		in := inputFor(t, root, root.newLeaf(t, long))
		in.Now = time.Date(4500, 1, 1, 0, 0, 0, 0, time.UTC)
		report := wantFindings(t, in, "warning ExpiresSoon")
		if first, _ := report.First(); !strings.Contains(first.String(), "in 500 years: less than a third") {
			t.Error(first)
		}
	})
	t.Run("takes the year 9999", func(t *testing.T) {
		t.Parallel()
		never := func(c *x509.Certificate) { c.NotAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }
		root := newRoot(t, "Root", never)
		wantFindings(t, inputFor(t, root, root.newLeaf(t, never)))
	})
	t.Run("judges for another time", func(t *testing.T) {
		t.Parallel()
		in := p.input(t)
		in.Now = testNow().Add(81 * day)
		wantFindings(t, in, "error Expired")
		in.Now = testNow().Add(75 * day)
		wantFindings(t, in, "error ExpiresSoon")
	})
}

func TestParseEndpoint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, host, port string
		bad            bool
	}{
		{in: "proxy.example.com", host: "proxy.example.com"},
		{in: "proxy.example.com:8443", host: "proxy.example.com", port: "8443"},
		{in: "localhost:1", host: "localhost", port: "1"},
		{in: "Proxy.Example.com", host: "Proxy.Example.com"},
		{in: "203.0.113.7:65535", host: "203.0.113.7", port: "65535"},
		{in: "2001:db8::7", host: "2001:db8::7"},
		{in: "[2001:db8::7]", host: "2001:db8::7"},
		{in: "[2001:db8::7]:443", host: "2001:db8::7", port: "443"},
		{in: "bücher.example", host: "xn--bcher-kva.example"},
		{in: "proxy.example.com.", host: "proxy.example.com."},
		{in: "3com.example", host: "3com.example"},
		{in: "", bad: true},
		{in: "https://proxy.example.com", bad: true},
		{in: "proxy.example.com/path", bad: true},
		{in: "user@proxy.example.com", bad: true},
		{in: "proxy example", bad: true},
		{in: "proxy.example.com\n", bad: true},
		{in: "proxy.example.com:", bad: true},
		{in: "proxy.example.com:https", bad: true},
		{in: "proxy.example.com:0", bad: true},
		{in: "proxy.example.com:0443", bad: true},
		{in: "proxy.example.com:65536", bad: true},
		{in: "proxy.example.com:+443", bad: true},
		{in: ":443", bad: true},
		{in: "[203.0.113.7]:443", bad: true},
		{in: "[proxy.example.com]:443", bad: true},
		{in: "[2001:db8::7]443", bad: true},
		{in: "[2001:db8::7", bad: true},
		{in: "fe80::1%eth0", bad: true},
		{in: "[fe80::1%25eth0]:443", bad: true},
		{in: "010.0.0.1", bad: true},
		{in: "256.0.0.1", bad: true},
		{in: "10.0.1", bad: true},
		{in: "12345", bad: true},
		{in: "0.0.0.0", bad: true},
		{in: "*.example.com", bad: true},
		{in: "-a.example.com", bad: true},
		{in: "a..example.com", bad: true},
		{in: strings.Repeat("a", 64) + ".example.com", bad: true},
	} {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			host, port, err := ParseEndpoint(tt.in)
			if host != tt.host || port != tt.port || (err != nil) != tt.bad {
				t.Errorf("ParseEndpoint(%q) = %q, %q, %v", tt.in, host, port, err)
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	mapped := func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = nil, nil
		c.ExtraExtensions = []pkix.Extension{{
			Id:    asn1.ObjectIdentifier{2, 5, 29, 17},
			Value: concat([]byte{0x30, 18, 0x87, 16}, make([]byte, 10), []byte{0xff, 0xff, 203, 0, 113, 7}),
		}}
	}
	for _, tt := range []struct {
		name     string
		change   change
		endpoint string
		names    []string
		want     string
		message  string
	}{
		{
			name: "takes every name covered", change: sans("a.example.com", "203.0.113.7", "2001:db8::7"),
			endpoint: "a.example.com:8443", names: []string{"203.0.113.7", "2001:db8:0::7"},
		},
		{name: "takes another case", change: sans("a.example.com"), names: []string{"A.Example.COM"}},
		{
			name: "warns of a v4-in-v6 name, which Go alone finds in a v4 SAN", change: sans("203.0.113.7"), names: []string{"::ffff:203.0.113.7"},
			want: "warning EndpointInvalid", message: `"::ffff:203.0.113.7" (test) is an IPv4-mapped IPv6 address`,
		},
		{
			name: "warns of a v4-in-v6 endpoint", change: sans("203.0.113.7"), endpoint: "[::ffff:203.0.113.7]:8443",
			want: "warning EndpointInvalid", message: `(spec.impersonationProxy.externalEndpoint) is an IPv4-mapped`,
		},
		{name: "takes one level below a wildcard", change: sans("*.example.com"), names: []string{"a.example.com"}},
		{
			name: "refuses two levels below a wildcard", change: sans("*.example.com"), names: []string{"a.b.example.com"},
			want: "error NameNotCovered", message: "one level only",
		},
		{
			name: "refuses the apex of a wildcard", change: sans("*.example.com"), names: []string{"example.com"},
			want: "error NameNotCovered", message: "does not cover the parent domain itself",
		},
		{
			name: "refuses each name that is missing", change: sans("a.example.com"), endpoint: "b.example.com",
			names: []string{"a.example.com", "c.example.com"}, want: "error NameNotCovered, error NameNotCovered",
		},
		{
			name: "says a name once", change: sans("a.example.com"), endpoint: "b.example.com", names: []string{
				"b.example.com", "B.example.com",
			},
			want: "error NameNotCovered",
		},
		{
			name: "refuses an IP address without IP SAN", change: sans("a.example.com"), names: []string{"203.0.113.7"},
			want: "error NameNotCovered", message: "it has no IP address",
		},
		{
			name: "names an IP address among the DNS names", change: func(c *x509.Certificate) { c.DNSNames = []string{"203.0.113.7"} },
			names: []string{"203.0.113.7"}, want: "error NameNotCovered", message: "as a DNS name",
		},
		{
			name: "shows an IDN as it was typed, with its ASCII form", change: sans("a.example.com"), endpoint: "bücher.example:8443",
			want: "error NameNotCovered", message: `"bücher.example" (in ASCII xn--bcher-kva.example, spec.impersonationProxy.externalEndpoint)`,
		},
		{
			name: "says an IDN once, however it is written", change: sans("a.example.com"), endpoint: "bücher.example", names: []string{"xn--bcher-kva.example"},
			want: "error NameNotCovered",
		},
		{
			name: "explains a wildcard to an IDN", change: sans("*.xn--bcher-kva.example"), names: []string{"bücher.example"},
			want: "error NameNotCovered", message: "does not cover the parent domain itself",
		},
		{
			name: "names a dot at the end of a SAN, once", change: sans("a.example.com."), names: []string{"a.example.com"},
			want: "error NameNotCovered", message: `"a.example.com.", with a trailing dot`,
		},
		{name: "converts an IDN", change: sans("xn--bcher-kva.example"), endpoint: "bücher.example"},
		{
			name: "warns of a wildcard below a top-level domain", change: sans("*.test"), names: []string{"a.test"},
			want: "warning NameNotCovered", message: "top-level domain",
		},
		{
			name: "refuses a partial wildcard", change: sans("f*.example.com"), names: []string{"foo.example.com"},
			want: "error NameNotCovered", message: "partial wildcard",
		},
		{
			name: "warns of a v4-in-v6 SAN", change: mapped, names: []string{"203.0.113.7"},
			want: "warning NameNotCovered", message: "IPv6 form",
		},
		{
			name: "refuses an endpoint that is a URL", change: sans("a.example.com"), endpoint: "https://a.example.com",
			want: "error EndpointInvalid", message: "is a URL",
		},
		{
			name: "warns of a dot at the end", change: sans("a.example.com"), endpoint: "a.example.com.",
			want: "warning EndpointInvalid", message: "ends in a dot",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, p.inter.newLeaf(t, tt.change), p.inter)
			in.Endpoint, in.Names = tt.endpoint, nil
			for _, name := range tt.names {
				in.Names = append(in.Names, Name{Value: name, Source: "test"})
			}
			wantMessage(t, in, tt.message, tt.want)
		})
	}
}

// TestAdvisoryNames shows that the usual setup in a cloud is fine: an own name in front of a load balancer's name,
// which the certificate need not cover.
func TestAdvisoryNames(t *testing.T) {
	t.Parallel()
	in := newPKI(t).input(t)
	in.Endpoint, in.Names = testName, []Name{
		{Value: "lb-1.cloud.example.net", Source: "Service", Advisory: true},
		{Value: "203.0.113.7", Source: "spec.impersonationProxy.service.loadBalancerIP", Advisory: true},
	}
	report := wantFindings(t, in, "info NameNotCovered", "info NameNotCovered")
	if len(report.Warnings()) > 0 {
		t.Errorf("warnings %v", report.Warnings())
	}
}
