package certs

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestChain(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	inter2 := p.inter.newCA(t, "Intermediate 2")
	deep := inter2.newLeaf(t)
	unrelated := newRoot(t, "Stranger")
	other := newRoot(t, "Root") // with the same name
	for _, tt := range []struct {
		name    string
		cert    []byte
		bundle  []byte
		leaf    entity
		want    string
		message string
	}{
		{name: "takes a chain of three", leaf: deep, cert: chainOf(deep, inter2, p.inter)},
		{
			name: "refuses intermediates in another order", leaf: deep, cert: chainOf(deep, p.inter, inter2),
			want: "error ChainOrder", message: "block 2",
		},
		{
			name: "names a root in the first place", leaf: p.leaf, cert: chainOf(p.root, p.leaf, p.inter),
			want: "error ChainOrder, warning ChainExtra", message: "must come first",
		},
		{
			name: "names an intermediate in the first place", leaf: p.leaf, cert: chainOf(p.inter, p.leaf),
			want: "error ChainOrder", message: "must come first",
		},
		{
			name: "warns of the root", leaf: p.leaf, cert: chainOf(p.leaf, p.inter, p.root),
			want: "warning ChainExtra", message: "is a root",
		},
		{
			name: "warns of the root in the middle", leaf: p.leaf, cert: chainOf(p.leaf, p.root, p.inter),
			want: "warning ChainExtra", message: "is a root",
		},
		{
			name: "warns of an unrelated certificate in the middle", leaf: p.leaf, cert: chainOf(p.leaf, unrelated, p.inter),
			want: "warning ChainExtra", message: "has signed none",
		},
		{
			name: "warns of an unrelated certificate", leaf: p.leaf, cert: chainOf(p.leaf, p.inter, unrelated),
			want: "warning ChainExtra", message: "has signed none",
		},
		{
			name: "warns of a repetition", leaf: p.leaf, cert: chainOf(p.leaf, p.inter, p.inter),
			want: "warning ChainExtra", message: "a duplicate",
		},
		{
			name: "refuses a missing intermediate", leaf: p.leaf, cert: chainOf(p.leaf),
			want: "error BundleDoesNotVerify", message: "is neither in tls.crt",
		},
		{
			name: "refuses a gap", leaf: deep, cert: chainOf(deep, p.inter),
			want: "error ChainIncomplete", message: "Intermediate 2",
		},
		{
			name: "warns when the intermediate is only in the bundle", leaf: p.leaf, cert: chainOf(p.leaf), bundle: chainOf(p.root, p.inter),
			want: "warning ChainIncomplete", message: "in the CA bundle but not in tls.crt",
		},
		{
			name: "warns of an intermediate as the only anchor", leaf: p.leaf, cert: chainOf(p.leaf, p.inter), bundle: p.inter.pem(),
			want: "warning StrictClients", message: "only through an intermediate CA",
		},
		{
			name: "refuses a root of the same name with another key", leaf: p.leaf, cert: chainOf(p.leaf, p.inter), bundle: other.pem(),
			want: "error BundleDoesNotVerify", message: "but another key",
		},
		{
			name: "warns of a pin", leaf: p.leaf, cert: chainOf(p.leaf, p.inter), bundle: p.leaf.pem(),
			want: "warning BundleMember", message: "a pin",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, tt.leaf)
			in.CertPEM = tt.cert
			if tt.bundle != nil {
				in.Bundle = tt.bundle
			}
			wantMessage(t, in, tt.message, tt.want)
		})
	}
}

func TestChainOrderIsNotAllowed(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.CertPEM = chainOf(p.inter, p.leaf)
	in.Allow = []Code{ChainOrder}
	wantFindings(t, in, "error ChainOrder") // no server can serve that
	inter2 := p.inter.newCA(t, "Intermediate 2")
	deep := inputFor(t, p.root, inter2.newLeaf(t), p.inter, inter2)
	deep.Allow = in.Allow
	wantFindings(t, deep, "error ChainOrder") // the agent refuses it
}

func TestIntermediateInvalid(t *testing.T) {
	t.Parallel()
	root := newRoot(t, "Root")
	block10 := &net.IPNet{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}
	for _, tt := range []struct {
		name    string
		ca      change
		leaf    change
		want    string
		message string
	}{
		{
			name: "refuses one that is no CA", ca: func(c *x509.Certificate) { c.IsCA, c.SubjectKeyId = false, []byte{1, 2, 3} },
			want: "error IntermediateInvalid", message: "CA:FALSE",
		},
		{
			name: "refuses one without keyCertSign", ca: func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature },
			want: "error IntermediateInvalid", message: "keyCertSign",
		},
		{
			name: "refuses an expired one", ca: validity(-100*day, -day),
			want: "error IntermediateInvalid, warning OutlivesIssuer", message: "expired",
		},
		{
			name: "refuses one of tomorrow", ca: validity(day, 1000*day), want: "error IntermediateInvalid",
			message: "not valid before",
		},
		{
			name: "warns of one that begins within the skew", ca: validity(2*time.Minute, 1000*day),
			want: "warning IntermediateInvalid", message: "until then",
		},
		{
			name: "refuses one for clients", ca: usages(x509.ExtKeyUsageClientAuth), want: "error IntermediateInvalid",
			message: "extended key usage",
		},
		{name: "takes one for servers", ca: usages(x509.ExtKeyUsageServerAuth)},
		{
			name: "warns of any usage, which OpenSSL refuses", ca: usages(x509.ExtKeyUsageAny),
			want: "warning IntermediateInvalid", message: "OpenSSL",
		},
		{
			name: "takes a permitted DNS name",
			ca:   func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.com"} },
		},
		{
			name: "takes a wildcard below a permitted domain",
			ca:   func(c *x509.Certificate) { c.PermittedDNSDomains = []string{".example.com"} }, leaf: sans("*.example.com"),
		},
		{
			name: "refuses a DNS name outside", ca: func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} },
			want: "error IntermediateInvalid", message: `may not issue for the DNS name "proxy.example.com": its name constraints permit only "example.org"`,
		},
		{
			name: "refuses an excluded DNS name", ca: func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"proxy.example.com"} },
			want: "error IntermediateInvalid", message: `its name constraints exclude "proxy.example.com"`,
		},
		{
			name: "refuses an e-mail address outside", ca: func(c *x509.Certificate) { c.PermittedEmailAddresses = []string{"example.com"} },
			leaf: func(c *x509.Certificate) { c.EmailAddresses = []string{"a@example.com", "b@sub.example.com"} },
			want: "error IntermediateInvalid", message: `the e-mail address "b@sub.example.com": its name constraints permit only "example.com"`,
		},
		{
			name: "refuses an excluded URI", ca: func(c *x509.Certificate) { c.ExcludedURIDomains = []string{".example.com"} },
			leaf: func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "a.example.com", Path: "/x"}} },
			want: "error IntermediateInvalid", message: `the URI with the host "a.example.com": its name constraints exclude ".example.com"`,
		},
		{
			name: "refuses an IP address outside", ca: func(c *x509.Certificate) { c.PermittedIPRanges = []*net.IPNet{block10} },
			leaf: sans(testName, "203.0.113.7"), want: "error IntermediateInvalid", message: `the IP address "203.0.113.7": its name constraints permit only "10.0.0.0/8"`,
		},
		{
			name: "takes an IP address within", ca: func(c *x509.Certificate) { c.PermittedIPRanges = []*net.IPNet{block10} },
			leaf: sans(testName, "10.1.2.3"),
		},
		{
			name: "warns of an IP address under constraints for DNS names only", ca: func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.com"} },
			leaf: sans(testName, "10.1.2.3"), want: "warning IntermediateInvalid", message: "check that this is intended",
		},
		{
			name: "warns when the leaf outlives it", ca: validity(-day, 50*day), want: "warning OutlivesIssuer",
			message: "from then on",
		},
		{name: "takes an equal end", ca: validity(-100*day, 80*day)},
		{
			name: "warns of one that strict clients refuse", ca: func(c *x509.Certificate) { c.KeyUsage = 0 },
			want: "warning StrictClients", message: "without key usage",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inter := root.newCA(t, "Intermediate", tt.ca)
			leaf := inter.newLeaf(t)
			if tt.leaf != nil {
				leaf = inter.newLeaf(t, tt.leaf)
			}
			wantMessage(t, inputFor(t, root, leaf, inter), tt.message, tt.want)
		})
	}
	t.Run("refuses a path that is too long", func(t *testing.T) {
		t.Parallel()
		zero := root.newCA(t, "Zero", func(c *x509.Certificate) { c.MaxPathLenZero = true })
		below := zero.newCA(t, "Below")
		wantFindings(t, inputFor(t, root, below.newLeaf(t), below, zero), "error IntermediateInvalid")
		wantFindings(t, inputFor(t, root, zero.newLeaf(t), zero))
	})
	t.Run("names the name constraint of a root, and how to go on", func(t *testing.T) {
		t.Parallel()
		excluding := func(c *x509.Certificate) { c.ExcludedDNSDomains = []string{"example.org", "example.com"} }
		limited := newRoot(t, "Limited", excluding)
		inter := limited.newCA(t, "Intermediate")
		in := inputFor(t, limited, inter.newLeaf(t), inter)
		first := wantFindings(t, in, "error BundleDoesNotVerify").Findings[0]
		const want = `may not issue for the DNS name "proxy.example.com": its name constraints exclude "example.com"`
		if !strings.Contains(first.Message, "block 1 of the CA bundle") || !strings.Contains(first.Message, want) ||
			first.Hint != constraintsFix {
			t.Error(first.Message, first.Hint)
		}
		in.Bundle, in.Roots = nil, poolOf([]numbered{{limited.Certificate, 1, ""}})
		first = wantFindings(t, in, "error BundleDoesNotVerify", "info BundleEmpty").Findings[0]
		if !strings.Contains(first.Message, "name constraints") || first.Hint != constraintsFix {
			t.Error(first.Message, first.Hint)
		}
	})
	t.Run("names a path length in the root", func(t *testing.T) {
		t.Parallel()
		short := newRoot(t, "Short", func(c *x509.Certificate) { c.MaxPathLenZero = true })
		inter := short.newCA(t, "Intermediate")
		report := wantFindings(t, inputFor(t, short, inter.newLeaf(t), inter), "error BundleDoesNotVerify")
		if !strings.Contains(report.Findings[0].Message, "path length") {
			t.Error(report.Findings[0].Message)
		}
	})
}

func TestBundle(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	old := newRoot(t, "Old Root", validity(-1000*day, -day))
	next := newRoot(t, "Root")
	digital := func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }
	noSign := newRoot(t, "Root without keyCertSign", digital)
	for _, tt := range []struct {
		name   string
		bundle []byte
		want   string
	}{
		{"takes comments", concat([]byte("# our root\n"), p.root.pem()), ""},
		{"warns of an expired member", chainOf(p.root, old), "warning BundleMember"},
		{"refuses when only an expired one is left", old.pem(), "error BundleDoesNotVerify, warning BundleMember"},
		{
			"warns of one that begins within the skew", chainOf(p.root, newRoot(t, "Tomorrow", validity(time.Minute, day))),
			"warning BundleMember",
		},
		{"warns of a repetition", chainOf(p.root, p.root), "warning BundleMember"},
		{"notes a root of the same name", chainOf(p.root, next), "info BundleMember"},
		{"warns of a member that is no CA", chainOf(p.root, selfSignedLeaf(t)), "warning BundleMember"},
		{"warns of a CA that may not sign", chainOf(p.root, noSign), "warning BundleMember"},
		{"refuses a foreign root", newRoot(t, "Foreign").pem(), "error BundleDoesNotVerify"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := p.input(t)
			in.Bundle = tt.bundle
			wantFindings(t, in, tt.want)
		})
	}
	t.Run("says of a root and its expired twin one thing, and what helps", func(t *testing.T) {
		t.Parallel()
		twin := func(key entity) entity {
			template := caTemplate("Root", validity(-1000*day, -day))
			return entity{signWith(t, template, template, key.key.Public(), key.key), key.key}
		}
		for _, test := range []struct {
			bundle     []byte
			want, hint string
		}{
			{chainOf(twin(p.root), p.root), "warning BundleMember", "remove it"},
			{chainOf(p.root, twin(p.root)), "warning BundleMember", "remove it"},
			{chainOf(twin(next), p.root), "warning BundleMember", "remove it"},
			{twin(p.root).pem(), "error BundleDoesNotVerify", "publish the CA's renewed certificate in its place"},
		} {
			in := p.input(t)
			in.Bundle = test.bundle
			report := wantFindings(t, in, test.want)
			if f, _ := report.First(); !strings.Contains(f.Hint, test.hint) {
				t.Errorf("%s: hint %q", f, f.Hint)
			}
		}
	})
	t.Run("takes a root with RSA over 8192 bits, unless it is sent", func(t *testing.T) {
		t.Parallel()
		key, err := rsa.GenerateMultiPrimeKey(rand.Reader, 20, 8224) //nolint:staticcheck // two primes take many seconds
		if err != nil {
			t.Fatal(err)
		}
		template := caTemplate("Long Root")
		root := entity{signWith(t, template, template, key.Public(), key), key}
		leaf := root.newLeaf(t)
		for _, in := range []Input{inputFor(t, root, leaf), inputFor(t, root, leaf, root)} {
			pair := must.Get(tls.X509KeyPair(in.CertPEM, in.KeyPEM))(t)
			roots := x509.NewCertPool()
			roots.AddCert(root.Certificate)
			refused := rehearse(pair, roots, testName, tls.VersionTLS13, testNow())
			if errors := Check(in).Errors(); (len(errors) > 0) != (refused != nil) {
				t.Errorf("a client says %v, and the errors are %v", refused, errors)
			}
		}
		wantFindings(t, inputFor(t, root, leaf), "info WeakKey")
		report := Check(inputFor(t, root, leaf, root))
		weak := func(f Finding) bool { return f.Code == WeakKey }
		if !report.Has(ChainExtra) || !slices.ContainsFunc(report.Errors(), weak) {
			t.Errorf("sent: %v", report.Findings)
		}
	})
	t.Run("names a CA that may not sign as the cause", func(t *testing.T) {
		t.Parallel()
		in := inputFor(t, noSign, noSign.newLeaf(t))
		wantMessage(t, in, "keyCertSign", "error BundleDoesNotVerify", "warning BundleMember")
	})
	t.Run("names an issuer in another encoding", func(t *testing.T) {
		t.Parallel()
		utf8 := newRoot(t, "unused", func(c *x509.Certificate) { c.RawSubject = rawName(t, asn1.TagUTF8String, "Encoded") })
		name := rawName(t, asn1.TagPrintableString, "Encoded")
		printable := entity{&x509.Certificate{RawSubject: name, SubjectKeyId: utf8.SubjectKeyId}, utf8.key}
		wantMessage(t, inputFor(t, utf8, printable.newLeaf(t)), "another encoding", "error BundleDoesNotVerify")
	})
	t.Run("warns when the root ends before the leaf", func(t *testing.T) {
		t.Parallel()
		root := newRoot(t, "Root", validity(-100*day, 50*day))
		wantFindings(t, inputFor(t, root, root.newLeaf(t)), "warning OutlivesIssuer", "warning BundleMember")
	})
}

func rawName(t *testing.T, tag int, text string) []byte {
	t.Helper()
	value := asn1.RawValue{Tag: tag, Bytes: []byte(text)}
	return must.Get(asn1.Marshal(pkix.RDNSequence{{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: value}}}))(t)
}

func TestBundleEmpty(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.Bundle = nil
	in.Roots = x509.NewCertPool()
	in.Roots.AddCert(p.root.Certificate)
	wantFindings(t, in, "info BundleEmpty")
	in.Bundle = []byte("\n")
	wantFindings(t, in, "info BundleEmpty")
	in.CertPEM = p.leaf.pem()
	wantFindings(t, in, "error ChainIncomplete", "info BundleEmpty")
	private := newPKI(t).input(t)
	private.Bundle, private.Roots = nil, in.Roots
	wantFindings(t, private, "error BundleDoesNotVerify", "info BundleEmpty")
}

func TestMustStayGreen(t *testing.T) {
	t.Parallel()
	t.Run("an old root in its last tenth next to the new one", func(t *testing.T) {
		t.Parallel()
		root := newRoot(t, "New Root")
		old := newRoot(t, "Old Root", validity(-3000*day, 30*day))
		in := inputFor(t, root, root.newLeaf(t))
		in.Bundle = chainOf(old, root)
		wantFindings(t, in)
	})
	t.Run("a root without AKI and a leaf without SKI", func(t *testing.T) {
		t.Parallel()
		p := newPKI(t)
		if len(p.root.AuthorityKeyId) > 0 || len(p.leaf.SubjectKeyId) > 0 {
			t.Fatal("the test does not test it")
		}
		wantFindings(t, p.input(t))
	})
	t.Run("a cross-signed bridge for old clients", func(t *testing.T) {
		t.Parallel()
		old := newRoot(t, "Old Root", validity(-3000*day, 30*day))
		p := newPKI(t)
		bridge := entity{
			signWith(t, caTemplate("Root", validity(-100*day, 29*day)), old.Certificate, p.root.key.Public(), old.key),
			p.root.key,
		}
		for _, bundle := range [][]byte{p.root.pem(), chainOf(old, p.root)} {
			in := inputFor(t, p.root, p.leaf, p.inter, bridge)
			in.Bundle = bundle
			report := Check(in)
			if len(report.Warnings()) > 0 || !report.OK() {
				t.Errorf("got %v", report.Findings)
			}
		}
	})
	t.Run("a bridge that has expired warns", func(t *testing.T) {
		t.Parallel()
		old := newRoot(t, "Old Root", validity(-3000*day, -day))
		p := newPKI(t)
		bridge := entity{
			signWith(t, caTemplate("Root", validity(-100*day, -day)), old.Certificate, p.root.key.Public(), old.key),
			p.root.key,
		}
		wantFindings(t, inputFor(t, p.root, p.leaf, p.inter, bridge), "warning IntermediateInvalid")
	})
}
