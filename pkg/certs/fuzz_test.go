package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// FuzzCheck tests Check on hostile input: it must not panic, messages are limited and contain nothing of the key, and a
// certificate that Go would silently skip has a finding.
func FuzzCheck(f *testing.F) {
	p := newPKI(f)
	key := p.leaf.keyPEM(f)
	f.Add(chainOf(p.leaf, p.inter), key, p.root.pem())
	f.Add(concat([]byte("\xef\xbb\xbf"), p.leaf.pem()), key, concat(p.root.pem(), key))
	f.Add(bytes.ReplaceAll(p.leaf.pem(), []byte("\n"), []byte("\r\n")), block("EC PARAMETERS", []byte{6, 1, 1}), []byte{})
	f.Add(p.leaf.Raw, []byte("x"), bytes.Repeat(p.root.pem(), 3))
	f.Fuzz(func(t *testing.T, cert, key, bundle []byte) {
		report := Check(Input{
			CertPEM: cert, KeyPEM: key, Bundle: bundle, Now: testNow(), Roots: x509.NewCertPool(),
			Endpoint: testName, Names: []Name{{Value: clip(string(cert), 40), Source: "fuzz"}},
		})
		secret := secretOf(key)
		for _, finding := range report.Findings {
			if len(finding.Message) > maxMessage+60 || len(finding.Hint) > maxMessage {
				t.Errorf("a message of %d bytes", len(finding.Message))
			}
			if secret != "" && strings.Contains(finding.Message+finding.Hint, secret) {
				t.Error("a finding shows key material")
			}
		}
		if report.OK() && report.Leaf == nil {
			t.Error("nothing was found to serve, and nothing was found wrong")
		}
		parsed, found := ParseBundle(bundle)
		if len(found) == 0 && len(parsed) != goReads(bundle) {
			t.Errorf("%d certificates without a finding, but Go reads %d", len(parsed), goReads(bundle))
		}
	})
}

// secretOf returns a piece of a private key's base64 that must not appear anywhere.
func secretOf(key []byte) string {
	block, _ := pem.Decode(key)
	if block == nil || !strings.HasSuffix(block.Type, "PRIVATE KEY") || len(block.Bytes) < 60 {
		return ""
	}
	lines := strings.Split(string(pem.EncodeToMemory(block)), "\n")
	return lines[1][:min(24, len(lines[1]))]
}

// goReads counts the certificates that AppendCertsFromPEM accepts.
func goReads(bundle []byte) int {
	n := 0
	for len(bundle) > 0 {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err == nil {
			n++
		}
	}
	return n
}

// TestHostileInputIsCheap limits the cost of input of the maximum size.
func TestHostileInputIsCheap(t *testing.T) {
	t.Parallel()
	root := newRoot(t, "Root")
	same := make([]entity, 19)
	for i := range same {
		same[i] = root.newCA(t, "Root") // with the same name, so that each may have signed each
	}
	leaf := same[18].newLeaf(t)
	var bundle []byte
	for len(bundle) < 300_000 {
		bundle = append(bundle, same[len(bundle)%19].pem()...)
	}
	for name, in := range map[string]Input{
		"many CAs of one name": {CertPEM: chainOf(append([]entity{leaf}, same...)...), KeyPEM: leaf.keyPEM(t), Bundle: bundle},
		"begin after begin":    {CertPEM: bytes.Repeat([]byte("-----BEGIN CERTIFICATE-----\n"), 3000), KeyPEM: bytes.Repeat([]byte("-----BEGIN "), 1000), Bundle: bytes.Repeat([]byte("-----BEGIN A-----\n"), 18_000)},
		"one endless line":     {CertPEM: bytes.Repeat([]byte("-----BEGIN A-----"), 5000), KeyPEM: []byte("x"), Bundle: bytes.Repeat([]byte("-----END"), 40_000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in.Now = testNow()
			start := time.Now()
			report := Check(in)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			if len(report.Findings) > 20*maxFindingsPerCode {
				t.Errorf("%d findings", len(report.Findings))
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	p := newPKI(b)
	in := p.input(b)
	for b.Loop() {
		if report := Check(in); !report.OK() {
			b.Fatal(report.Findings)
		}
	}
}

// FuzzLoadCA loads arbitrary CAs. An accepted one can issue certificates, and errors reveal nothing of the key.
func FuzzLoadCA(f *testing.F) {
	ca := must.Get(NewCA("CA", testNow(), time.Hour))(f)
	key := must.Get(ca.KeyPEM())(f)
	other := newRoot(f, "Other")
	f.Add(ca.CertPEM(), key)
	f.Add(other.pem(), key)
	f.Add(concat([]byte("text\n"), ca.CertPEM(), ca.CertPEM()), bytes.ReplaceAll(key, []byte("\n"), []byte("\r\n")))
	f.Add(key, ca.CertPEM())
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		ca, err := LoadCA(cert, key)
		if err != nil {
			if secret := secretOf(key); secret != "" && strings.Contains(err.Error(), secret) {
				t.Error("the error shows key material")
			}
			if len(err.Error()) > 4096 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		pair, err := ca.IssueClient(
			ClientIdentity{Username: "jane"},
			ca.Certificate().NotBefore.Add(time.Minute),
			time.Minute,
		)
		if err != nil {
			return // a CA may be too old to issue anything
		}
		issued, findings := ParseBundle(pair.CertPEM)
		if len(findings) > 0 || len(issued) == 0 {
			t.Fatalf("want a certificate, got %v", findings)
		}
		if err := issued[0].CheckSignatureFrom(ca.Certificate()); err != nil {
			t.Errorf("the certificate is not signed by the CA: %v", err)
		}
	})
}

// FuzzParseEndpoint shows that the parsed form of an endpoint parses to the same.
func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{"example.com", "https://example.com:8443", "[::1]:443", "https://user@h", "h:0", "h:65536", "10.0.0.1", "http://h", "h/p", " h", "h\x00", "xn--bcher-kva.example"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		host, port, err := ParseEndpoint(endpoint)
		if err != nil {
			return
		}
		if host == "" || strings.ContainsAny(host, " \t\r\n\x00/@?#") {
			t.Errorf("%q gives host %q", endpoint, host)
		}
		plain := strings.TrimSuffix(net.JoinHostPort(host, port), ":") // without a port if there is none
		again, samePort, err := ParseEndpoint(plain)
		if err != nil || again != host || samePort != port {
			t.Errorf("%q gives %q and %q, but these give %q and %q, %v", endpoint, host, port, again, samePort, err)
		}
	})
}
