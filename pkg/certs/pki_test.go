package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// testNow is the time of all tests, unless they say otherwise.
func testNow() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

const (
	day      = 24 * time.Hour
	testName = "proxy.example.com"
)

// entity is a certificate and its key.
type entity struct {
	*x509.Certificate
	key crypto.Signer
}

func (e entity) pem() []byte { return encodeCertificate(e.Raw) }

func (e entity) keyPEM(tb testing.TB) []byte {
	tb.Helper()
	return must.Get(encodeKey(e.key))(tb)
}

var serials atomic.Int64 //nolint:gochecknoglobals // serial numbers only have to differ

func ecKey(tb testing.TB) crypto.Signer {
	tb.Helper()
	return must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
}

// change modifies a template before it is signed.
type change func(*x509.Certificate)

func signWith(
	tb testing.TB,
	template, parent *x509.Certificate,
	public crypto.PublicKey,
	signer crypto.Signer,
) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		tb.Fatalf("making a certificate: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatalf("parsing a certificate: %v", err)
	}
	return cert
}

// caTemplate returns a typical CA certificate, valid for ten years.
func caTemplate(name string, changes ...change) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1000 + serials.Add(1)),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             testNow().Add(-365 * day),
		NotAfter:              testNow().Add(9 * 365 * day),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	for _, c := range changes {
		c(template)
	}
	return template
}

func newRoot(tb testing.TB, name string, changes ...change) entity {
	tb.Helper()
	key := ecKey(tb)
	template := caTemplate(name, changes...)
	return entity{signWith(tb, template, template, key.Public(), key), key}
}

func (e entity) newCA(tb testing.TB, name string, changes ...change) entity {
	tb.Helper()
	key := ecKey(tb)
	return entity{signWith(tb, caTemplate(name, changes...), e.Certificate, key.Public(), e.key), key}
}

// leafTemplate returns a typical serving certificate, valid for 90 days of which 80 are left.
func leafTemplate(changes ...change) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1000 + serials.Add(1)),
		Subject:      pkix.Name{CommonName: "proxy"},
		NotBefore:    testNow().Add(-10 * day),
		NotAfter:     testNow().Add(80 * day),
		DNSNames:     []string{testName},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range changes {
		c(template)
	}
	return template
}

func (e entity) newLeaf(tb testing.TB, changes ...change) entity {
	tb.Helper()
	key := ecKey(tb)
	return e.leafFor(tb, key, key.Public(), changes...)
}

func (e entity) leafFor(tb testing.TB, key crypto.Signer, public crypto.PublicKey, changes ...change) entity {
	tb.Helper()
	return entity{signWith(tb, leafTemplate(changes...), e.Certificate, public, e.key), key}
}

func selfSignedLeaf(tb testing.TB, changes ...change) entity {
	tb.Helper()
	key := ecKey(tb)
	template := leafTemplate(changes...)
	return entity{signWith(tb, template, template, key.Public(), key), key}
}

func validity(from, to time.Duration) change {
	return func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = testNow().Add(from), testNow().Add(to)
	}
}

func sans(names ...string) change {
	return func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = nil, nil
		for _, name := range names {
			if ip := net.ParseIP(name); ip != nil {
				if four := ip.To4(); four != nil {
					ip = four
				}
				c.IPAddresses = append(c.IPAddresses, ip)
			} else {
				c.DNSNames = append(c.DNSNames, name)
			}
		}
	}
}

func concat(parts ...[]byte) []byte { return slices.Concat(parts...) }

func chainOf(entities ...entity) []byte {
	var out []byte
	for _, e := range entities {
		out = append(out, e.pem()...)
	}
	return out
}

func block(label string, data []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: label, Bytes: data})
}

// pki is a root, an intermediate, and a valid serving certificate with its Input.
type pki struct {
	root, inter, leaf entity
}

func newPKI(tb testing.TB) pki {
	tb.Helper()
	root := newRoot(tb, "Root")
	inter := root.newCA(tb, "Intermediate")
	return pki{root, inter, inter.newLeaf(tb)}
}

// input returns a valid Input: only informational findings are expected.
func (p pki) input(tb testing.TB) Input {
	tb.Helper()
	return inputFor(tb, p.root, p.leaf, p.inter)
}

func inputFor(tb testing.TB, root, leaf entity, intermediates ...entity) Input {
	tb.Helper()
	return Input{
		CertPEM: chainOf(append([]entity{leaf}, intermediates...)...),
		KeyPEM:  leaf.keyPEM(tb),
		Bundle:  root.pem(),
		Names:   []Name{{Value: testName, Source: "test"}},
		Now:     testNow(),
		Roots:   x509.NewCertPool(),
	}
}

// verdictOf formats findings as "severity Code", for comparison.
func verdictOf(findings []Finding) []string {
	out := make([]string, 0, len(findings))
	for _, f := range findings {
		word := f.Severity.String()
		if f.Allowed {
			word += "(allowed)"
		}
		out = append(out, word+" "+string(f.Code))
	}
	return out
}

// wantFindings checks an Input. Findings are separated by commas; without any, nothing may be found.
func wantFindings(t *testing.T, in Input, want ...string) Report {
	t.Helper()
	report := Check(in)
	if diff := cmp.Diff(strings.Join(want, ", "), strings.Join(verdictOf(report.Findings), ", ")); diff != "" {
		for _, f := range report.Findings {
			t.Logf("%s %s: %s (hint: %s)", f.Severity, f.Code, f.Message, f.Hint)
		}
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	return report
}

// wantMessage is wantFindings, and the first finding, if any, contains a text.
func wantMessage(t *testing.T, in Input, text string, want ...string) {
	t.Helper()
	report := wantFindings(t, in, want...)
	if f, ok := report.First(); ok && !strings.Contains(f.Message, text) {
		t.Errorf("message %q does not say %q", f.Message, text)
	}
}
