package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"net"
	"strings"
	"testing"
)

// patched changes bytes of a certificate to something that Go does not encode. It keeps the signature, because Go fails
// to parse the certificate before it checks that.
func patched(tb testing.TB, der []byte, from, to string) []byte {
	tb.Helper()
	if len(from) != len(to) || !bytes.Contains(der, []byte(from)) {
		tb.Fatalf("%q cannot become %q", from, to)
	}
	return bytes.ReplaceAll(der, []byte(from), []byte(to))
}

// TestEncodingFaults has certificates with fields that Go does not decode. The finding says which certificate, field
// and character it is, and what the issuer must change; there is no second finding.
func TestEncodingFaults(t *testing.T) {
	t.Parallel()
	root := newRoot(t, "Example-Org Root")
	leaf := root.newLeaf(t)
	badRoot := patched(t, root.Raw, "Example-Org", "Example_Org")
	badIssuer := patched(t, leaf.Raw, "Example-Org", "Example_Org")
	named := root.newLeaf(t, func(c *x509.Certificate) { c.Subject.CommonName = "a-b" })
	latin := root.newLeaf(
		t,
		func(c *x509.Certificate) { c.DNSNames = []string{"proxy.example.com", "bxxcher.example.com"} },
	)
	constrained := root.newCA(t, "Windows CA", func(c *x509.Certificate) {
		c.PermittedDNSDomains = []string{"example.com"}
		c.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
	})
	mask := "\x87\x08\x0a\x00\x00\x00\xff\x00\x00\x00"
	for _, tt := range []struct {
		name   string
		der    []byte
		bundle bool
		says   []string
		hint   string
	}{
		{
			"a CA whose name is a PrintableString with _", badRoot, true,
			[]string{"in its own name", "Example_Org Root", "common name (CN)", "PrintableString", `"_"`},
			"has to recreate it",
		},
		{
			"a certificate of such a CA", badIssuer, false,
			[]string{"in the name of its issuer", `"_"`},
			"has to get a new certificate of its own",
		},
		{
			"a subject of the same kind", patched(t, named.Raw, "a-b", "a@b"), false,
			[]string{"in its subject", `"@"`},
			`ask the issuer, "CN=Example-Org Root"`,
		},
		{
			"a DNS name in UTF-8", patched(t, latin.Raw, "bxxcher", "b\xc3\xbccher"), false,
			[]string{"subject alternative names", "bücher.example.com", `"ü"`},
			"Punycode",
		},
		{
			"an IP name constraint without a mask", patched(t, constrained.Raw, mask, "\x87\x00"+"\x82\x06a.test"), true,
			[]string{"in its name constraints", "an IP address has 0 bytes; 8 or 32 are needed"},
			"CAPolicy.inf",
		},
		{
			"a mask with gaps", patched(t, constrained.Raw, mask, "\x87\x08\x0a\x00\x00\x00\xff\x00\xff\x00"), true,
			[]string{"in its name constraints", "the mask of an IP address has gaps"},
			"address and a mask",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := x509.ParseCertificate(tt.der); err == nil {
				t.Fatal("Go reads it")
			}
			in := inputFor(t, root, leaf)
			if tt.bundle {
				in.Bundle = block("CERTIFICATE", tt.der)
			} else {
				in.CertPEM = block("CERTIFICATE", tt.der)
			}
			report := Check(in)
			first, _ := report.First()
			for _, want := range tt.says {
				if !strings.Contains(first.Message, want) {
					t.Errorf("%q is not in %s", want, first.Message)
				}
			}
			if first.Code != NotACertificate || !strings.Contains(first.Hint, tt.hint) {
				t.Errorf("got %s, with the hint %q", first, first.Hint)
			}
			if errors := report.Errors(); len(errors) != 1 {
				t.Errorf("there are other findings: %v", errors)
			}
		})
	}
}

// TestStringFaults tests all string types.
func TestStringFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tag  int
		text string
		want string
	}{
		{asn1.TagPrintableString, "a*b&c", ""},
		{asn1.TagPrintableString, "a\xe9", "0xe9"},
		{asn1.TagIA5String, "\xc3\xa9", "é"},
		{asn1.TagNumericString, "12a", `"a"`},
		{asn1.TagUTF8String, "\xff", "not valid UTF-8"},
		{asn1.TagBMPString, "abc", "odd number"},
		{asn1.TagT61String, "\xff", ""},
		{26, "a", "type 26"},
	} {
		got := stringFault(asn1.RawValue{Tag: tt.tag, Bytes: []byte(tt.text)})
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("type %d, %q: got %q, want %q", tt.tag, tt.text, got, tt.want)
		}
	}
}
