package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func marshal(tb testing.TB, value any) []byte {
	tb.Helper()
	return must.Get(asn1.Marshal(value))(tb)
}

// tagged returns a context-specific element.
func tagged(tag int, compound bool, content []byte) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: compound, Bytes: content}
}

// with adds an extension, or replaces the one that x509 would create.
func with(oid asn1.ObjectIdentifier, isCritical bool, value []byte) change {
	return func(c *x509.Certificate) {
		c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: oid, Critical: isCritical, Value: value})
	}
}

// pointingTo returns an authority key identifier with all three parts.
func pointingTo(tb testing.TB, key []byte, issuer *x509.Certificate, serial *big.Int) change {
	tb.Helper()
	name := marshal(tb, tagged(4, true, issuer.RawIssuer))
	return with(asn1.ObjectIdentifier{2, 5, 29, 35}, false, marshal(tb, struct {
		Key    []byte `asn1:"tag:0"`
		Issuer asn1.RawValue
		Serial *big.Int `asn1:"tag:2"`
	}{key, tagged(1, true, name), serial}))
}

// written signs a certificate again with its dates in this form.
func (e entity) written(tb testing.TB, leaf entity, tag int, form string) entity {
	tb.Helper()
	var tbs asn1.RawValue
	must.Get(asn1.Unmarshal(leaf.RawTBSCertificate, &tbs))(tb)
	var content []byte
	for i, element := range elements(tbs.Bytes) {
		if i == 4 { // version, serial number, algorithm, issuer, validity
			element.FullBytes = marshal(tb, []asn1.RawValue{
				{Tag: tag, Bytes: []byte(leaf.NotBefore.Format(form))}, {Tag: tag, Bytes: []byte(leaf.NotAfter.Format(form))},
			})
		}
		content = append(content, element.FullBytes...)
	}
	signed := marshal(tb, asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: content})
	digest := sha256.Sum256(signed)
	signature := must.Get(e.key.Sign(rand.Reader, digest[:], crypto.SHA256))(tb)
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}
	der := marshal(tb, struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: signed}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})
	cert := must.Get(x509.ParseCertificate(der))(tb)
	return entity{cert, leaf.key}
}

func constraining(tb testing.TB, isCritical bool, permitted ...[]byte) change {
	tb.Helper()
	var subtrees []byte
	for _, subtree := range permitted {
		subtrees = append(subtrees, marshal(tb, asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: subtree})...)
	}
	return with(asn1.ObjectIdentifier{2, 5, 29, 30}, isCritical, marshal(tb, []asn1.RawValue{tagged(0, true, subtrees)}))
}

// TestLenient has certificates that Go accepts and OpenSSL 3.0 or GnuTLS 3.7 rejected from a server: each must have a
// finding. Each is next to a variant that all accept.
func TestLenient(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	serial := big.NewInt(4711)
	tlsFeature := asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}
	netscape := asn1.ObjectIdentifier{2, 16, 840, 1, 113730, 1, 1}
	altNames := asn1.ObjectIdentifier{2, 5, 29, 17}
	policyMapping := marshal(t, [][]asn1.ObjectIdentifier{{{1, 2, 3}, {1, 2, 4}}})
	dns := tagged(2, false, []byte(testName))
	forDNS := marshal(t, tagged(2, false, []byte("example.com")))
	forDirectory := marshal(t, tagged(4, true, marshal(t, pkix.Name{CommonName: "proxy"}.ToRDNSequence())))
	within := func(domains ...string) change {
		return func(c *x509.Certificate) { c.PermittedDNSDomains = domains }
	}
	named := func(name string) change {
		return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name} }
	}
	mailOf := func(domains ...string) change {
		return func(c *x509.Certificate) { c.PermittedEmailAddresses = domains }
	}
	subjectMailOf := func(address string) change {
		return func(c *x509.Certificate) {
			mail := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}
			c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{
				Type: mail, Value: asn1.RawValue{Tag: asn1.TagIA5String, Bytes: []byte(address)},
			}}
		}
	}
	noIDs := func(c *x509.Certificate) { c.SubjectKeyId = []byte{} }
	// through returns an Input with a leaf whose intermediate has the change.
	through := func(ca change, leaf ...change) Input {
		inter := p.root.newCA(t, "Special", ca)
		return inputFor(t, p.root, inter.newLeaf(t, leaf...), inter)
	}
	leafWith := func(changes ...change) Input {
		return inputFor(t, p.root, p.inter.newLeaf(t, changes...), p.inter)
	}
	underRoot := func(changes ...change) Input {
		root := newRoot(t, "Special", changes...)
		return inputFor(t, root, root.newLeaf(t))
	}
	asWritten := func(tag int, form string) Input {
		return inputFor(t, p.root, p.inter.written(t, p.leaf, tag, form), p.inter)
	}
	addresses := func(in Input) Input {
		in.Names = []Name{{Value: "203.0.113.7", Source: "test"}}
		return in
	}
	long := func(intermediates int) Input {
		above, chain := p.root, []entity{}
		for i := range intermediates {
			above = above.newCA(t, fmt.Sprint("CA ", i))
			chain = append([]entity{above}, chain...)
		}
		return inputFor(t, p.root, above.newLeaf(t), chain...)
	}
	namesakes := func(ids ...byte) Input {
		in := p.input(t)
		for _, id := range ids {
			in.Bundle = append(in.Bundle, newRoot(t, "Same", func(c *x509.Certificate) { c.SubjectKeyId = []byte{id} }).pem()...)
		}
		return in
	}
	for _, tt := range []struct {
		name    string
		in      Input
		message string // of a warning; empty if all clients accept it
	}{
		{
			name: "takes issuer and serial number of the issuer's certificate",
			in:   leafWith(pointingTo(t, p.inter.SubjectKeyId, p.inter.Certificate, p.inter.SerialNumber)),
		},
		{
			name:    "warns of the serial number of another one",
			in:      leafWith(pointingTo(t, p.inter.SubjectKeyId, p.inter.Certificate, serial)),
			message: "OpenSSL does not find the issuer",
		},
		{
			name:    "warns of the issuer of another one",
			in:      leafWith(pointingTo(t, p.inter.SubjectKeyId, newRoot(t, "Other").Certificate, p.inter.SerialNumber)),
			message: "OpenSSL does not find the issuer",
		},
		{
			name: "warns of a root that points elsewhere", in: underRoot(pointingTo(t, nil, p.root.Certificate, serial)),
			message: "does not treat it as a root",
		},
		{name: "warns of a leaf that looks self-signed", in: func() Input {
			root := newRoot(t, "Same", noIDs)
			return inputFor(t, root, root.newLeaf(t, named("Same")))
		}(), message: "OpenSSL treats it as self-signed"},

		{name: "takes dates as they should be", in: asWritten(asn1.TagUTCTime, "060102150405Z")},
		{name: "takes generalised dates before 2050", in: asWritten(asn1.TagGeneralizedTime, "20060102150405Z")},
		{name: "warns of dates without seconds", in: asWritten(asn1.TagUTCTime, "0601021504Z"), message: "OpenSSL cannot " +
			"read it"},
		{
			name: "warns of dates with an offset", in: asWritten(asn1.TagUTCTime, "060102150405+0100"),
			message: "OpenSSL cannot read it",
		},

		{name: "takes a server by Netscape's type", in: leafWith(with(netscape, false, []byte{3, 2, 6, 0x40}))},
		{
			name: "warns of a client by Netscape's type", in: leafWith(with(netscape, false, []byte{3, 2, 7, 0x80})),
			message: "Netscape certificate type",
		},
		{
			name:    "warns of a proxy certificate",
			in:      leafWith(with(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 14}, false, []byte{0x30, 0})),
			message: "proxyCertInfo",
		},
		{
			name:    "warns of junk in an extension",
			in:      leafWith(with(altNames, false, append(marshal(t, []asn1.RawValue{dns}), 0, 0))),
			message: "damaged extension (2.5.29.17)",
		},
		{
			name: "takes a registered ID next to the DNS name",
			in:   leafWith(with(altNames, false, marshal(t, []asn1.RawValue{tagged(8, false, []byte{42, 3}), dns}))),
		},
		{
			name:    "warns of an EDI party name",
			in:      leafWith(with(altNames, false, marshal(t, []asn1.RawValue{tagged(5, true, nil), dns}))),
			message: "an EDI party name",
		},
		{
			name: "warns of what is no name",
			in: leafWith(
				with(altNames, false, marshal(t, []asn1.RawValue{{Tag: asn1.TagIA5String, Bytes: []byte("x")}, dns})),
			),
			message: "an unknown name type",
		},
		{
			name: "warns of an empty name of the issuer",
			in: leafWith(
				with(asn1.ObjectIdentifier{2, 5, 29, 18}, false, marshal(t, []asn1.RawValue{tagged(2, false, nil)})),
			),
			message: "an empty DNS name among the alternative names of its issuer",
		},
		{
			name:    "warns of an empty extended key usage",
			in:      leafWith(with(asn1.ObjectIdentifier{2, 5, 29, 37}, false, []byte{0x30, 0})),
			message: "is empty: Go accepts that",
		},
		{
			name:    "warns of an empty distribution point",
			in:      leafWith(with(asn1.ObjectIdentifier{2, 5, 29, 31}, false, []byte{0x30, 2, 0x30, 0})),
			message: "CRL distribution point",
		},
		{name: "takes policy mappings", in: through(with(asn1.ObjectIdentifier{2, 5, 29, 33}, false, policyMapping))},
		{
			name: "warns of critical policy mappings",
			in:   through(with(asn1.ObjectIdentifier{2, 5, 29, 33}, true, policyMapping)), message: "GnuTLS does not support",
		},
		{
			name: "warns of a CA that demands stapling", in: through(with(tlsFeature, false, []byte{0x30, 3, 2, 1, 5})),
			message: "requires a TLS feature",
		},

		{
			name: "takes a common name that is permitted",
			in: addresses(
				through(within("example.com"), named(testName), sans("203.0.113.7")),
			), message: "the constraints permit these",
		},
		{
			name:    "warns of a common name that is not permitted",
			in:      addresses(through(within("example.com"), sans("203.0.113.7"))),
			message: `may not issue for "proxy", the common name`,
		},
		{name: "takes a common name next to a DNS name", in: through(within("example.com"), named("proxy.example.org"))},
		{
			name: "takes an e-mail address in the subject that is permitted",
			in:   through(mailOf("example.com"), subjectMailOf("a@example.com")),
		},
		{
			name:    "warns of an e-mail address in the subject that is not permitted",
			in:      through(mailOf("example.org"), subjectMailOf("a@example.com")),
			message: `may not issue for "a@example.com", the e-mail address in the subject`,
		},
		{
			name: "warns of name constraints with a maximum", in: through(constraining(t, true, append(forDNS, 0x81, 1, 5))),
			message: "a maximum",
		},
		{
			name: "warns of such name constraints in the serving certificate",
			in:   leafWith(constraining(t, false, forDirectory)), message: "Go ignores these constraints",
		},
		{
			name: "warns of name constraints for directory names", in: through(constraining(t, false, forDirectory)),
			message: "Go ignores these constraints",
		},

		{
			name:    "warns of keyCertSign without a CA",
			in:      leafWith(with(asn1.ObjectIdentifier{2, 5, 29, 15}, true, []byte{3, 2, 2, 0x84})),
			message: "but is not a CA: Python 3.13",
		},
		{
			name:    "warns of a path length without a CA",
			in:      leafWith(with(asn1.ObjectIdentifier{2, 5, 29, 19}, true, []byte{0x30, 3, 2, 1, 0})),
			message: "has a path length, but is not a CA: Python 3.13",
		},
		{
			name:    "warns of a path length without keyCertSign",
			in:      leafWith(with(asn1.ObjectIdentifier{2, 5, 29, 19}, true, []byte{0x30, 6, 1, 1, 0xff, 2, 1, 0})),
			message: "has a path length, but not the key usage keyCertSign",
		},
		{
			name: "warns of a CA without a name", in: underRoot(func(c *x509.Certificate) { c.Subject = pkix.Name{} }),
			message: "is a CA with an empty subject",
		},

		{name: "takes sixteen certificates", in: long(gnuTLSMost - 1)},
		{name: "warns of seventeen", in: long(gnuTLSMost), message: "GnuTLS refuses a server that sends more than 16"},
		{name: "takes roots of one name that differ by their identifiers", in: namesakes(1, 2)},
		{name: "warns of roots of one name and one identifier", in: namesakes(1, 1), message: "may try only the wrong one"},
		{name: "warns of roots of one name when nothing says which is meant", in: func() Input {
			root := newRoot(t, "Same", func(c *x509.Certificate) { c.SubjectKeyId = []byte{1} })
			issuer := entity{&x509.Certificate{RawSubject: root.RawSubject, PublicKey: root.PublicKey}, root.key}
			in := inputFor(t, root, issuer.newLeaf(t))
			in.Bundle = append(in.Bundle, newRoot(t, "Same", func(c *x509.Certificate) { c.SubjectKeyId = []byte{2} }).pem()...)
			return in
		}(), message: "may try only the wrong one"},
		{
			name: "warns of a root that may do nothing",
			in: underRoot(
				func(c *x509.Certificate) { c.KeyUsage = 0 }, with(asn1.ObjectIdentifier{2, 5, 29, 15}, true, []byte{3, 1, 0}),
			),
			message: "lacks keyCertSign",
		},
		{name: "warns of a name that ends in a dot", in: func() Input {
			in := p.input(t)
			in.Names[0].Value += "."
			return in
		}(), message: "ends in a dot"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			report := Check(tt.in)
			var warned strings.Builder
			for _, f := range report.Warnings() {
				fmt.Fprintf(&warned, "%s: %s\n", f.Code, f.Message)
			}
			switch {
			case !report.OK():
				t.Errorf("refused, which Go does not: %v", report.Errors())
			case tt.message == "" && warned.Len() > 0 || !strings.Contains(warned.String(), tt.message):
				t.Errorf("got the warnings %q, want %q among them", warned.String(), tt.message)
			}
		})
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
	unknown := with(asn1.ObjectIdentifier{1, 2, 3, 4, 5}, true, []byte{5, 0})
	directory := p.root.newCA(t, "Directory", with(asn1.ObjectIdentifier{2, 5, 29, 30}, true, onlyDirectory(t)))
	demanding := p.root.newCA(
		t,
		"Demanding",
		with(asn1.ObjectIdentifier{2, 5, 29, 36}, true, []byte{0x30, 0x03, 0x80, 0x01, 0x00}),
	)
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
