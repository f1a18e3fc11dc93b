package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func rsaKey(tb testing.TB, bits int) *rsa.PrivateKey {
	tb.Helper()
	return must.Get(rsa.GenerateKey(rand.Reader, bits))(tb)
}

func TestSecretIncomplete(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for _, tt := range []struct {
		name string
		set  func(*Input)
		want string
	}{
		{"accepts type kubernetes.io/tls", func(in *Input) { in.SecretType = "kubernetes.io/tls" }, ""},
		{"accepts type Opaque", func(in *Input) { in.SecretType = "Opaque" }, ""},
		{"refuses another type", func(in *Input) { in.SecretType = "helm.sh/release.v1" }, "error SecretIncomplete"},
		{"refuses an empty key", func(in *Input) { in.KeyPEM = nil }, "error SecretIncomplete"},
		{"refuses a blank certificate", func(in *Input) { in.CertPEM = []byte(" \n") }, "error SecretIncomplete"},
		{
			"refuses an Opaque one without either, once", func(in *Input) {
				in.SecretType, in.CertPEM, in.KeyPEM = "Opaque", nil, nil
			},
			"error SecretIncomplete",
		},
		{"refuses both empty", func(in *Input) { in.CertPEM, in.KeyPEM = nil, nil }, "error SecretIncomplete"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := p.input(t)
			tt.set(&in)
			report := wantFindings(t, in, tt.want)
			for _, f := range report.Findings {
				if waits := strings.Contains(f.Hint, "wait"); f.Pending && waits == (in.SecretType == "Opaque") {
					t.Errorf("in a Secret of type %q, the hint is %q", in.SecretType, f.Hint)
				}
			}
			if f, ok := report.First(); ok && f.Pending != (in.SecretType != "helm.sh/release.v1") {
				t.Errorf("Pending = %v for %s", f.Pending, f.Message)
			}
		})
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	filler := bytes.Repeat([]byte("# comment\n"), 40_000)
	big := p.root.newLeaf(t, func(c *x509.Certificate) {
		for i := range 3000 {
			c.DNSNames = append(c.DNSNames, strings.Repeat("a", 10)+string(rune('a'+i%26))+".example.com")
		}
	})
	for _, tt := range []struct {
		name string
		set  func(*Input)
		want string
	}{
		{"refuses a chain over the limit", func(in *Input) { in.CertPEM = concat(filler, in.CertPEM) }, "error TooLarge"},
		{"refuses a key over the limit", func(in *Input) { in.KeyPEM = concat(filler, in.KeyPEM) }, "error TooLarge"},
		{"refuses a bundle over the limit", func(in *Input) { in.Bundle = concat(filler, in.Bundle) }, "error TooLarge"},
		{
			"refuses a leaf over the limit", func(in *Input) { in.CertPEM, in.KeyPEM = big.pem(), big.keyPEM(t) },
			"error TooLarge",
		},
		{
			"refuses too many blocks in the chain",
			func(in *Input) { in.CertPEM = concat(in.CertPEM, bytes.Repeat(p.root.pem(), 20)) },
			"error TooLarge",
		},
		{
			"says what a key should weigh, not a chain", func(in *Input) { in.KeyPEM = concat(filler, in.KeyPEM) },
			"error TooLarge",
		},
		{"takes a comment of moderate size", func(in *Input) { in.CertPEM = concat(filler[:20_000], in.CertPEM) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := p.input(t)
			tt.set(&in)
			in.Allow = []Code{TooLarge} // has no effect
			report := wantFindings(t, in, tt.want)
			if first, ok := report.First(); ok &&
				strings.Contains(first.Message, "tls.key") == strings.Contains(first.Hint, "certificate") {
				t.Errorf("%s: %s", first.Message, first.Hint)
			}
			if size := fmt.Sprintf("has %d bytes", len(big.pem())); strings.Contains(tt.name, "leaf") &&
				!strings.Contains(report.Findings[0].Message, size) {
				t.Errorf("%q does not tell the true size, %s", report.Findings[0].Message, size)
			}
		})
	}
}

func utf16LE(text []byte) []byte {
	out := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(string(text))) {
		out = append(out, byte(unit), byte(unit>>8))
	}
	return out
}

func TestNotACertificate(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	good := p.leaf.pem()
	twice := []byte(base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString(good))))
	headers := pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"X-Note": "hello"}, Bytes: p.leaf.Raw},
	)
	for _, tt := range []struct {
		name    string
		cert    []byte
		want    string // the verdict; empty if none
		message string // part of the message
	}{
		{name: "takes Windows line ends", cert: bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))},
		{
			name: "takes prose before and between blocks",
			cert: concat([]byte("subject=CN=proxy\n"), good, []byte("\nissuer\n"), p.inter.pem()),
		},
		{name: "takes a byte order mark on a comment", cert: concat([]byte("\xef\xbb\xbf# my chain\n"), good, p.inter.pem())},
		{name: "takes a file without the last line break", cert: bytes.TrimSpace(good)},
		{
			name: "warns of prose after the last block", cert: concat(good, []byte("that is all\n")), want: "warning",
			message: "on line",
		},
		{name: "names DER", cert: p.leaf.Raw, want: "error", message: "binary DER"},
		{
			name: "names base64 of PEM", cert: []byte(base64.StdEncoding.EncodeToString(good)), want: "error",
			message: "encoded once more as base64",
		},
		{name: "names base64 of base64", cert: twice, want: "error", message: "encoded twice more as base64"},
		{
			name: "names bare base64", cert: []byte(base64.StdEncoding.EncodeToString(p.leaf.Raw)), want: "error",
			message: "without the BEGIN and END lines",
		},
		{name: "names UTF-16", cert: utf16LE(good), want: "error", message: "UTF-16"},
		{
			name: "names a byte order mark", cert: concat([]byte("\xef\xbb\xbf"), good), want: "error",
			message: "byte order mark",
		},
		{
			name: "names lost line breaks", cert: bytes.ReplaceAll(good, []byte("\n"), []byte(" ")), want: "error",
			message: "line breaks are lost",
		},
		{
			name: "names escaped line breaks", cert: bytes.ReplaceAll(good, []byte("\n"), []byte(`\n`)), want: "error",
			message: "line breaks are lost",
		},
		{
			name: "names indentation", cert: bytes.ReplaceAll(good, []byte("-----BEGIN"), []byte("  -----BEGIN")), want: "error",
			message: "indented",
		},
		{name: "names a missing END", cert: good[:len(good)/2], want: "error", message: "no END line"},
		{name: "names a damaged BEGIN", cert: good[1:], want: "error", message: "BEGIN line is damaged"},
		{
			name: "names broken base64", cert: bytes.Replace(good, []byte("MII"), []byte("M*I"), 1), want: "error",
			message: "not base64",
		},
		{name: "names PEM headers", cert: headers, want: "error", message: "PEM headers"},
		{
			name: "names junk after the certificate", cert: block("CERTIFICATE", concat(p.leaf.Raw, []byte("junk"))),
			want: "error", message: "4 bytes of junk",
		},
		{
			name: "names a certificate cut short", cert: block("CERTIFICATE", p.leaf.Raw[:200]), want: "error",
			message: "cut short",
		},
		{name: "names a request", cert: block("CERTIFICATE REQUEST", p.leaf.Raw), want: "error", message: "CERTIFICATE " +
			"REQUEST"},
		{name: "names an old label", cert: block("X509 CERTIFICATE", p.leaf.Raw), want: "error", message: "X509 CERTIFICATE"},
		{name: "names a private key", cert: concat(p.leaf.keyPEM(t), good), want: "error", message: "is a private key"},
		{
			name: "names a missing line break between blocks", cert: concat(bytes.TrimSpace(good), p.inter.pem()), want: "error",
			message: "line break between",
		},
		{name: "names text that is nothing", cert: []byte("hello"), want: "error", message: "no PEM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, list := parseCertificates(tt.cert, partChain, "tls.crt", 10)
			var first Finding
			if len(list) > 0 {
				first = list[0]
			}
			got := ""
			if len(list) > 0 {
				got = first.Severity.String()
			}
			if got != tt.want || first.Code != NotACertificate && tt.want != "" || !strings.Contains(first.Message, tt.message) {
				t.Errorf("got %q %s: %q; want %q with %q", got, first.Code, first.Message, tt.want, tt.message)
			}
			for _, data := range [][]byte{tt.cert, concat(p.root.pem(), tt.cert)} { // also in a bundle
				if _, list := ParseBundle(data); (len(list) > 0) != (tt.want != "") {
					t.Errorf("ParseBundle: findings %v, want some: %v", list, tt.want != "")
				}
			}
		})
	}
}

func TestPrivateKeyInBundle(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.Bundle = concat(in.Bundle, p.leaf.keyPEM(t))
	in.Allow = []Code{NotACertificate}
	report := wantFindings(t, in, "error NotACertificate")
	body := strings.Split(string(p.leaf.keyPEM(t)), "\n")[1]
	for _, f := range report.Findings {
		if strings.Contains(f.Message+f.Hint, body[:16]) {
			t.Errorf("finding shows key material: %s", f)
		}
	}
}

func TestBadSerial(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		serial *big.Int
		want   string
	}{
		{"takes 1", big.NewInt(1), ""},
		{"takes 20 octets", new(big.Int).Lsh(big.NewInt(1), 158), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := newRoot(t, "Root")
			leaf := root.newLeaf(t, func(c *x509.Certificate) { c.SerialNumber = tt.serial })
			wantFindings(t, inputFor(t, root, leaf), tt.want)
		})
	}
	// Go's x509 does not create these, so the encoded serial number is replaced. That invalidates the signature, which
	// parsing does not check.
	serial := func(c *x509.Certificate) { c.SerialNumber = new(big.Int).Lsh(big.NewInt(0x41), 8*15) }
	base := newRoot(t, "Root").newLeaf(t, serial)
	old := append([]byte{2, 16, 0x41}, make([]byte, 15)...)
	t.Run("refuses a negative one", func(t *testing.T) {
		t.Parallel()
		if !bytes.Contains(base.Raw, old) {
			t.Fatal("the serial number was not found")
		}
		der := bytes.Replace(base.Raw, old, append([]byte{2, 16, 0x81}, make([]byte, 15)...), 1)
		_, list := ParseBundle(block("CERTIFICATE", der))
		if len(list) != 1 || list[0].Code != BadSerial || !strings.Contains(list[0].Message, "negative") {
			t.Errorf("got %v", list)
		}
	})
	for _, tt := range []struct {
		name string
		bits uint
		want string
	}{
		{"refuses zero", 0, "error"},
		{"warns of 20 octets that take 21", 159, "warning"},
		{"refuses 21 octets", 160, "error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cert := *base.Certificate
			cert.SerialNumber = new(big.Int)
			if tt.bits > 0 {
				cert.SerialNumber.Lsh(big.NewInt(1), tt.bits)
			}
			list := checkSerial(numbered{&cert, 1, "tls.crt"})
			if len(list) != 1 || list[0].Severity.String() != tt.want {
				t.Errorf("got %v, want one %s", list, tt.want)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	ec := p.leaf.key.(*ecdsa.PrivateKey)
	sec1 := must.Get(x509.MarshalECPrivateKey(ec))(t)
	rsa2048 := rsaKey(t, 2048)
	rsaPair := p.inter.leafFor(t, rsa2048, &rsa2048.PublicKey)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must.Do(t, err)
	edPair := p.inter.leafFor(t, private, public)
	p256OID := []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7}
	legacy := pem.EncodeToMemory(&pem.Block{
		Type: "EC PRIVATE KEY", Bytes: sec1,
		Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-128-CBC,00112233445566778899AABBCCDDEEFF"},
	})
	madeByCA := p.inter.leafFor(t, p.inter.key, p.inter.key.Public())
	for _, tt := range []struct {
		name string
		leaf entity
		key  []byte
		want string
	}{
		{
			name: "refuses a certificate that was made with its CA's key", leaf: madeByCA, key: madeByCA.keyPEM(t),
			want: "error KeyIsCAKey",
		},
		{name: "takes PKCS#8", leaf: p.leaf, key: p.leaf.keyPEM(t)},
		{name: "takes SEC 1", leaf: p.leaf, key: block("EC PRIVATE KEY", sec1)},
		{
			name: "takes SEC 1 after EC PARAMETERS", leaf: p.leaf,
			key: concat(block("EC PARAMETERS", p256OID), block("EC PRIVATE KEY", sec1)),
		},
		{name: "takes PKCS#1", leaf: rsaPair, key: block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsa2048))},
		{name: "takes Ed25519, and tells who does not", leaf: edPair, key: edPair.keyPEM(t), want: "info RSAOnlyClients"},
		{
			name: "warns of a second key", leaf: p.leaf, key: concat(p.leaf.keyPEM(t), rsaPair.keyPEM(t)),
			want: "warning KeyUnreadable",
		},
		{name: "refuses the key of another certificate", leaf: p.leaf, key: rsaPair.keyPEM(t), want: "error KeyMismatch"},
		{name: "refuses the CA's key", leaf: p.leaf, key: p.inter.keyPEM(t), want: "error KeyIsCAKey"},
		{name: "refuses the key of a CA in the bundle", leaf: p.leaf, key: p.root.keyPEM(t), want: "error KeyIsCAKey"},
		{
			name: "names a passphrase in PKCS#8", leaf: p.leaf, key: block("ENCRYPTED PRIVATE KEY", sec1),
			want: "error KeyEncrypted",
		},
		{name: "names a passphrase in the old form", leaf: p.leaf, key: legacy, want: "error KeyEncrypted"},
		{
			name: "names OpenSSH's form", leaf: p.leaf, key: block("OPENSSH PRIVATE KEY", []byte("openssh-key-v1")),
			want: "error KeyUnreadable",
		},
		{name: "names a certificate in place of the key", leaf: p.leaf, key: p.leaf.pem(), want: "error KeyUnreadable"},
		{name: "names DER", leaf: p.leaf, key: sec1, want: "error KeyUnreadable"},
		{name: "names a damaged key", leaf: p.leaf, key: block("PRIVATE KEY", sec1[:40]), want: "error KeyUnreadable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, tt.leaf, p.inter)
			in.KeyPEM = tt.key
			in.Allow = Codes() // none of these can be allowed
			wantFindings(t, in, tt.want)
		})
	}
}

func TestKeyIsCAKey(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := inputFor(t, p.root, p.inter.leafFor(t, p.root.key, p.root.key.Public()), p.inter)
	report := wantFindings(t, in, "error KeyIsCAKey")
	if message := report.Findings[0].Message; !strings.Contains(message, "block 1 of the CA bundle") {
		t.Errorf("%q does not name the CA", message)
	}
	in.NoKey = true // as from a handshake
	wantFindings(t, in, "error KeyIsCAKey")

	// A self-signed CA that serves with its own certificate, and is being renewed with the same key.
	key := ecKey(t)
	serving := func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }
	template, next := leafTemplate(serving), leafTemplate(serving)
	self := entity{signWith(t, template, template, key.Public(), key), key}
	renewed := entity{signWith(t, next, next, key.Public(), key), key}
	in = inputFor(t, self, self)
	in.Bundle = chainOf(self, renewed)
	if report := Check(in); !report.OK() || report.Has(KeyIsCAKey) || !report.Has(LeafIsCA) {
		t.Errorf("got %v", report.Findings)
	}
}

// TestOldRootsKey has a root of version 1, which does not say that it is a CA.
func TestOldRootsKey(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	o.run("genpkey " + rsa2048 + " -out ca.key")
	o.run("req -new -key ca.key -subj /CN=Old -out ca.csr")
	o.run("x509 -req -in ca.csr -signkey ca.key -days 3650 -out ca.pem")
	o.file("leaf.ext", "subjectAltName=DNS:proxy.example.com\nextendedKeyUsage=serverAuth\n")
	o.run("req -new -key ca.key -subj /CN=proxy -out tls.csr")
	o.run("x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 90 -extfile leaf.ext -out tls.crt -sha256")
	o.file("tls.key", string(o.read("ca.key")))
	if report := Check(o.input()); report.OK() || report.Errors()[0].Code != KeyIsCAKey {
		t.Errorf("got %v", report.Findings)
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.Sources = Sources{Certificate: "--cert", Key: "--key", Bundle: "--ca-bundle", Endpoint: "--external-endpoint"}
	in.Endpoint = "https://proxy.example.com"
	in.CertPEM = chainOf(p.leaf, p.inter, p.root)
	in.Bundle = chainOf(p.root, p.root)
	in.KeyPEM = ecEntity(t).keyPEM(t)
	var all strings.Builder
	for _, f := range Check(in).Findings {
		fmt.Fprintln(&all, f)
	}
	for _, want := range []string{
		"--key (ECDSA P-256) is not", "block 1 of --cert", "block 2 of --ca-bundle", "--external-endpoint is not valid",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("%q is not in:\n%s", want, all.String())
		}
	}
	for _, unwanted := range []string{"tls.crt", "tls.key", "spec."} {
		if strings.Contains(all.String(), unwanted) {
			t.Errorf("%q is in:\n%s", unwanted, all.String())
		}
	}
}

func ecEntity(tb testing.TB) entity {
	tb.Helper()
	return entity{key: ecKey(tb)}
}

func TestHintsOfFiles(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	ec := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	sec1 := must.Get(x509.MarshalECPrivateKey(ec))(t)
	for _, tt := range []struct {
		name      string
		cert, key []byte
		want      string // in the message and hint of the first finding
	}{
		{
			"converts a DER key of an elliptic curve, which is short", p.leaf.pem(), sec1,
			"it is a private key in binary DER: convert it: openssl pkey -inform DER -in FILE -out new.pem",
		},
		{"tells files that were exchanged", p.leaf.keyPEM(t), p.leaf.pem(), "is a private key; only certificates belong " +
			"there: tls.crt and tls.key hold each other's content"},
		{
			"alarms about a key next to the certificate", concat(p.leaf.keyPEM(t), p.leaf.pem()), p.leaf.keyPEM(t),
			"remove the key from the file at once",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := inputFor(t, p.root, p.leaf, p.inter)
			in.CertPEM, in.KeyPEM = tt.cert, tt.key
			first := Check(in).Findings[0]
			if got := first.Message + ": " + first.Hint; !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q in it", got, tt.want)
			}
		})
	}
}

func TestWeakKey(t *testing.T) {
	t.Parallel()
	p224 := must.Get(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))(t)
	p384 := must.Get(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	p := newPKI(t)
	small := rsaKey(t, 1024)
	smallRootTemplate := caTemplate("Small Root")
	smallRoot := entity{signWith(t, smallRootTemplate, smallRootTemplate, &small.PublicKey, small), small}
	for _, tt := range []struct {
		name string
		in   Input
		want string
	}{
		{"takes P-384", inputFor(t, p.root, p.inter.leafFor(t, p384, &p384.PublicKey), p.inter), ""},
		{"refuses P-224", inputFor(t, p.root, p.inter.leafFor(t, p224, &p224.PublicKey), p.inter), "error WeakKey"},
		{"refuses RSA 1024", inputFor(t, p.root, p.inter.leafFor(t, small, &small.PublicKey), p.inter), "error WeakKey"},
		{
			"refuses a root with RSA 1024 where no other verifies", inputFor(t, smallRoot, smallRoot.newLeaf(t)),
			"error WeakKey",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantFindings(t, tt.in, tt.want)
		})
	}
	t.Run("warns of a small root that is not needed", func(t *testing.T) {
		t.Parallel()
		in := p.input(t)
		in.Bundle = concat(in.Bundle, smallRoot.pem())
		wantFindings(t, in, "warning WeakKey")
	})
	t.Run("refuses RSA over 8192 bits by its size", func(t *testing.T) {
		t.Parallel()
		n := new(big.Int).Lsh(big.NewInt(1), 16383)
		if got := weakKey(&rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}); !strings.Contains(got, "16384 bits") {
			t.Errorf("got %q", got)
		}
	})
}

func TestSameBundle(t *testing.T) {
	t.Parallel()
	a, b := newRoot(t, "A"), newRoot(t, "B")
	for _, tt := range []struct {
		name string
		x, y []byte
		want bool
	}{
		{"is the same in another order", chainOf(a, b), chainOf(b, a), true},
		{
			"is the same with comments and CRLF", a.pem(),
			bytes.ReplaceAll(concat([]byte("# A\n"), a.pem()), []byte("\n"), []byte("\r\n")), true,
		},
		{"differs by a member", chainOf(a, b), a.pem(), false},
		{"differs from none", a.pem(), nil, false},
		{"is the same when both are empty", nil, []byte("\n"), true},
		{"differs when one cannot be read", a.pem(), concat(a.pem(), []byte("-----BEGIN CERTIFICATE-----\n")), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := SameBundle(tt.x, tt.y); got != tt.want {
				t.Errorf("SameBundle = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestFindingsAreBounded(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	in := p.input(t)
	in.Bundle = concat(in.Bundle, bytes.Repeat(block("X509 CRL", []byte("x")), 300))
	report := Check(in)
	if diff := cmp.Diff(maxFindingsPerCode, len(report.Findings)); diff != "" {
		t.Errorf("number of findings (-want +got):\n%s", diff)
	}
	last := report.Findings[len(report.Findings)-1]
	if !strings.Contains(last.Message, "and 290 more findings of this kind") {
		t.Errorf("the last finding does not count the others: %s", last.Message)
	}
}

func TestUnionBundle(t *testing.T) {
	t.Parallel()
	var pems [][]byte
	for _, name := range []string{"old", "new", "other"} {
		ca := must.Get(NewCA(name, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour))(t)
		pems = append(pems, ca.CertPEM())
	}
	join := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	for _, tt := range []struct {
		name    string
		bundles [][]byte
		want    []byte
	}{
		{"puts one after the other", [][]byte{pems[0], pems[1]}, join(pems[0], pems[1])},
		{"has each once", [][]byte{join(pems[0], pems[1], pems[0]), join(pems[2], pems[1])}, join(pems[0], pems[1], pems[2])},
		{
			"leaves out text, and what is no certificate",
			[][]byte{join([]byte("the old one\n"), pems[0]), []byte("nothing"), nil},
			pems[0],
		},
		{"is empty without any", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := UnionBundle(tt.bundles...); string(got) != string(tt.want) {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}
