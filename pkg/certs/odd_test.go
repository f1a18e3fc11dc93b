package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func critical(oid asn1.ObjectIdentifier, value ...byte) change {
	return func(c *x509.Certificate) {
		c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: oid, Critical: true, Value: value})
	}
}

// onlyDirectory returns name constraints that permit one directory name: SEQUENCE { [0] { SEQUENCE { [4] Name } } }.
func onlyDirectory(t *testing.T) []byte {
	t.Helper()
	name := must.Get(asn1.Marshal(pkix.Name{CommonName: "Other"}.ToRDNSequence()))(t)
	wrap := func(tag byte, content []byte) []byte { return append([]byte{tag, byte(len(content))}, content...) }
	return wrap(0x30, wrap(0xa0, wrap(0x30, wrap(0xa4, name))))
}

// TestOdd has odd certificates for which Go, OpenSSL and GnuTLS were found to differ.
func TestOdd(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	unknown := critical(asn1.ObjectIdentifier{1, 2, 3, 4, 5}, 5, 0)
	directory := p.root.newCA(t, "Directory", critical(asn1.ObjectIdentifier{2, 5, 29, 30}, onlyDirectory(t)...))
	demanding := p.root.newCA(t, "Demanding", critical(asn1.ObjectIdentifier{2, 5, 29, 36}, 0x30, 0x03, 0x80, 0x01, 0x00))
	anyRoot := newRoot(t, "Any", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	blank := func(data []byte, before string) []byte {
		return bytes.Replace(data, []byte(before), []byte("\n"+before), 1)
	}
	for _, tt := range []struct {
		name    string
		in      Input
		want    string
		message string
	}{
		{
			name: "names a critical extension of the serving certificate that nobody knows",
			in:   inputFor(t, p.root, p.inter.newLeaf(t, unknown), p.inter), want: "error BundleDoesNotVerify",
			message: "do not support (1.2.3.4.5)",
		},
		{
			name: "names name constraints that Go does not understand",
			in:   inputFor(t, p.root, directory.newLeaf(t), directory), want: "error IntermediateInvalid",
			message: "2.5.29.30, name constraints",
		},
		{
			name: "names policies that a CA demands",
			in:   inputFor(t, p.root, demanding.newLeaf(t), demanding), want: "error BundleDoesNotVerify, warning StrictClients", message: "requires certificate policies",
		},
		{
			name: "warns of a root for any usage",
			in:   inputFor(t, anyRoot, anyRoot.newLeaf(t)), want: "warning StrictClients",
			message: "anyExtendedKeyUsage without serverAuth: OpenSSL",
		},
		{
			name: "warns of an empty name",
			in:   inputFor(t, p.root, p.inter.newLeaf(t, sans(testName, "")), p.inter), want: "warning StrictClients",
			message: "GnuTLS cannot read it",
		},
		{
			name: "warns of an empty line in the bundle",
			in: func() Input {
				in := p.input(t)
				in.Bundle = blank(in.Bundle, "-----END")
				return in
			}(), want: "warning NotACertificate", message: "block 1 of the CA bundle",
		},
		{
			name: "takes an empty line behind BEGIN",
			in: func() Input {
				in := p.input(t)
				in.Bundle = bytes.Replace(in.Bundle, []byte("CERTIFICATE-----\n"), []byte("CERTIFICATE-----\n\n"), 1)
				return in
			}(),
		},
		{
			name: "takes Windows line ends everywhere",
			in: func() Input {
				in := p.input(t)
				for _, data := range []*[]byte{&in.Bundle, &in.CertPEM, &in.KeyPEM} {
					*data = bytes.ReplaceAll(*data, []byte("\n"), []byte("\r\n"))
				}
				return in
			}(),
		},
		{
			name: "recognises a short key in DER",
			in: func() Input {
				in := p.input(t)
				in.KeyPEM = must.Get(x509.MarshalECPrivateKey(p.leaf.key.(*ecdsa.PrivateKey)))(t)
				return in
			}(), want: "error KeyUnreadable", message: "in binary DER",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantMessage(t, tt.in, tt.message, tt.want)
		})
	}
}

func TestCanBeAllowed(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	leafSecond := p.input(t)
	leafSecond.CertPEM = chainOf(p.inter, p.leaf)
	expired := p.input(t)
	expired.Now = p.leaf.NotAfter.Add(day)
	wrongName := p.input(t)
	wrongName.Names = []Name{{Value: "other.example.com", Source: "test"}}
	wrongBundle := p.input(t)
	wrongBundle.Bundle = newRoot(t, "Other").pem()
	system := p.input(t)
	system.Bundle, system.Roots = nil, x509.NewCertPool()
	for _, tt := range []struct {
		name string
		in   Input
		want bool
	}{
		{"says no where TLS libraries would refuse to serve it, whatever the code", leafSecond, false},
		{"says no where the agent would refuse it", expired, false},
		{"says yes where the agent can be told to serve it", wrongName, true},
		{"says no of a published bundle, as the agent judges by it", wrongBundle, false},
		{"says yes of system roots, which the agent does not know", system, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			first, ok := Check(tt.in).First()
			if !ok || first.CanBeAllowed() != tt.want {
				t.Errorf("%v, CanBeAllowed is %v", first, first.CanBeAllowed())
			}
			in := tt.in
			in.Allow = Codes()
			if now, _ := Check(in).First(); now.Allowed != tt.want {
				t.Errorf("with every code allowed: %+v", now)
			}
		})
	}
}
