package certs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// These tests use openssl to create files that Go's x509 package cannot create. They are skipped without it.

type openssl struct {
	t   *testing.T
	dir string
}

func withOpenSSL(t *testing.T) openssl {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not on the PATH")
	}
	o := openssl{t, t.TempDir()}
	o.file("empty.cnf", "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=proxy\n")
	return o
}

func (o openssl) file(name, content string) {
	o.t.Helper()
	must.Do(o.t, os.WriteFile(filepath.Join(o.dir, name), []byte(content), 0o600))
}

func (o openssl) read(name string) []byte {
	o.t.Helper()
	return must.Get(os.ReadFile(filepath.Join(o.dir, name)))(o.t)
}

// run runs openssl with a line of arguments.
func (o openssl) run(line string) {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "openssl", strings.Fields(line)...)
	cmd.Dir = o.dir
	cmd.Env = append(os.Environ(), "OPENSSL_CONF="+filepath.Join(o.dir, "empty.cnf"))
	if out, err := cmd.CombinedOutput(); err != nil {
		o.t.Fatalf("openssl %s: %v\n%s", line, err, out)
	}
}

// root creates ca.pem and ca.key.
func (o openssl) root(extra string) {
	o.t.Helper()
	o.run("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 3650 -subj /CN=Root " +
		"-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -addext " +
		"subjectKeyIdentifier=hash " + extra)
}

// leaf creates tls.crt and tls.key, signed by ca.pem; extensions are lines of a configuration file.
func (o openssl) leaf(key, sign string, extensions ...string) {
	o.t.Helper()
	if extensions == nil {
		extensions = []string{
			"subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=serverAuth", "keyUsage=digitalSignature",
			"basicConstraints=CA:FALSE", "authorityKeyIdentifier=keyid",
		}
	}
	o.file("leaf.ext", strings.Join(extensions, "\n")+"\n")
	o.run("genpkey " + key + " -out tls.key")
	o.run("req -new -key tls.key -subj /CN=proxy -out tls.csr")
	o.run("x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -days 90 -extfile leaf.ext -out tls.crt " + sign)
}

func (o openssl) input() Input {
	o.t.Helper()
	return Input{
		CertPEM: o.read("tls.crt"), KeyPEM: o.read("tls.key"), Bundle: o.read("ca.pem"),
		Names: []Name{{Value: testName, Source: "test"}}, Now: time.Now().Add(time.Minute),
	}
}

const (
	p256    = "-algorithm EC -pkeyopt ec_paramgen_curve:P-256"
	rsa2048 = "-algorithm RSA -pkeyopt rsa_keygen_bits:2048"
)

func TestOpenSSLCertificates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		root       string
		key        string
		sign       string
		extensions []string
		want       string
		message    string
	}{
		{name: "takes a good one", key: p256, sign: "-sha256"},
		{name: "takes RSA", key: rsa2048, sign: "-sha384"},
		{
			name: "takes Ed25519, and tells who does not", key: "-algorithm ED25519", sign: "-sha256",
			want: "info RSAOnlyClients",
		},
		{name: "takes a SHA-1 root", root: "-sha1", key: p256, sign: "-sha256"},
		{name: "refuses SHA-1", key: p256, sign: "-sha1", want: "error WeakSignature", message: "SHA1"},
		{name: "refuses MD5", key: rsa2048, sign: "-md5", want: "error WeakSignature", message: "MD5"},
		{
			name: "refuses SHA-224, which Go does not know", key: p256, sign: "-sha224", want: "error WeakSignature",
			message: "SHA-224",
		},
		{
			name: "refuses RSA 1024", key: "-algorithm RSA -pkeyopt rsa_keygen_bits:1024", sign: "-sha256",
			want: "error WeakKey", message: "1024 bits",
		},
		{
			name: "refuses secp256k1", key: "-algorithm EC -pkeyopt ec_paramgen_curve:secp256k1", sign: "-sha256",
			want: "error WeakKey, error KeyUnreadable", message: "elliptic curve",
		},
		{
			name: "refuses Ed448", key: "-algorithm ED448", sign: "-sha256",
			want: "error KeyUnreadable, error WeakKey", message: "cannot be parsed",
		},
		{
			name: "refuses a negative serial", key: p256, sign: "-sha256 -set_serial -5", want: "error BadSerial",
			message: "negative",
		},
		{name: "refuses serial zero", key: p256, sign: "-sha256 -set_serial 0", want: "error BadSerial", message: "zero"},
		{name: "takes a serial of 20 octets", key: p256, sign: "-sha256 -set_serial " +
			"0x7f00000000000000000000000000000000000001"},
		{
			name: "refuses a serial of 21 octets", key: p256, sign: "-sha256 -set_serial " +
				"0x01ff00000000000000000000000000000000000001",
			want: "error BadSerial", message: "longer than 20 octets",
		},
		{
			name: "refuses a critical AKI, which Go does not parse", key: p256, sign: "-sha256",
			extensions: []string{
				"subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=serverAuth", "authorityKeyIdentifier=critical,keyid",
			},
			want: "error NotACertificate", message: "critical",
		},
		{
			name: "warns of a missing AKI", key: p256, sign: "-sha256",
			extensions: []string{
				"subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=serverAuth", "authorityKeyIdentifier=none",
			},
			want: "warning StrictClients", message: "Python 3.13",
		},
		{
			name: "warns of must-staple", key: p256, sign: "-sha256",
			extensions: []string{
				"subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=serverAuth", "authorityKeyIdentifier=keyid",
				"tlsfeature=status_request",
			},
			want: "warning MustStaple", message: "OCSP",
		},
		{
			name: "refuses a certificate for mail", key: p256, sign: "-sha256",
			extensions: []string{
				"subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=emailProtection", "authorityKeyIdentifier=keyid",
			},
			want: "error NoServerAuth", message: "without serverAuth",
		},
		{
			name: "refuses a key that may only sign documents", key: p256, sign: "-sha256",
			extensions: []string{
				"subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=serverAuth", "authorityKeyIdentifier=keyid",
				"keyUsage=nonRepudiation",
			},
			want: "error KeyUsage", message: "nonRepudiation",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := withOpenSSL(t)
			o.root(tt.root)
			o.leaf(tt.key, tt.sign, tt.extensions...)
			wantMessage(t, o.input(), tt.message, tt.want)
		})
	}
}

// TestWithFIPS checks certificates with SHA-1 signatures or weak keys in a process that rejects these.
func TestWithFIPS(t *testing.T) {
	t.Parallel()
	withOpenSSL(t) // or skipped
	program := must.Get(os.Executable())(t)
	again := exec.CommandContext(t.Context(), program, "-test.run=^TestOpenSSLCertificates$/(SHA-1|RSA|Ed25519|secp)")
	again.Env = append(os.Environ(), "GODEBUG=fips140=only")
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestOpenSSLWeakAnchors has weak signatures that clients do not verify, because they trust the certificate itself.
func TestOpenSSLWeakAnchors(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	o.root("")
	o.file(
		"ca.ext",
		"basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n",
	)
	o.run("genpkey " + p256 + " -out inter.key")
	o.run("req -new -key inter.key -subj /CN=Intermediate -out inter.csr")
	o.run("x509 -req -in inter.csr -CA ca.pem -CAkey ca.key -days 900 -extfile ca.ext -out inter.pem -sha1")
	root := o.read("ca.pem")
	o.file("ca.key", string(o.read("inter.key")))
	o.file("ca.pem", string(o.read("inter.pem")))
	o.leaf(p256, "-sha256")
	inter, leaf := o.read("inter.pem"), o.read("tls.crt")
	o.run(
		"req -x509 -key tls.key -out self.crt -days 90 -subj /CN=proxy -sha1 -addext basicConstraints=critical,CA:FALSE " +
			"-addext subjectAltName=DNS:proxy.example.com -addext extendedKeyUsage=serverAuth -addext keyUsage=digitalSignature",
	)
	self := o.read("self.crt")
	for _, tt := range []struct {
		name          string
		chain, bundle []byte
		want          string
	}{
		{"refuses an intermediate", concat(leaf, inter), root, "error WeakSignature"},
		{
			"warns of an intermediate that is in the bundle as well", concat(leaf, inter), concat(root, inter),
			"warning WeakSignature",
		},
		{"warns of an intermediate that is in the bundle only", leaf, inter, "warning WeakSignature"},
		{"warns of a self-signed serving certificate", self, self, "warning WeakSignature"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := o.input()
			in.CertPEM, in.Bundle = tt.chain, tt.bundle
			report := Check(in)
			if got := verdictOf(report.Findings); !slices.Contains(got, tt.want) ||
				report.OK() == strings.HasPrefix(tt.want, "error") {
				t.Errorf("got %v", report.Findings)
			}
		})
	}
}

func TestOpenSSLSelfSigned(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	// A common command; like here, the distribution's configuration would add CA:TRUE.
	o.run(
		"req -x509 -newkey rsa:2048 -nodes -keyout tls.key -out tls.crt -days 90 -subj /CN=proxy.example.com -addext " +
			"basicConstraints=critical,CA:TRUE -addext subjectAltName=DNS:proxy.example.com -addext subjectKeyIdentifier=hash",
	)
	o.file("ca.pem", string(o.read("tls.crt")))
	wantFindings(t, o.input(), "warning LeafIsCA", "warning NoServerAuth", "warning StrictClients")
}

func TestOpenSSLFiles(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	o.root("")
	o.leaf(p256, "-sha256")
	o.run("pkcs12 -export -in tls.crt -inkey tls.key -passout pass:secret -out tls.p12")
	o.run("pkcs8 -topk8 -in tls.key -passout pass:secret -out encrypted.key")
	o.run("ec -in tls.key -aes128 -passout pass:secret -out legacy.key")
	o.run("ecparam -name prime256v1 -genkey -out params.key")
	o.run("x509 -in tls.crt -trustout -out trusted.crt -addtrust serverAuth")
	o.run("x509 -in tls.crt -text -out text.crt")
	o.run("crl2pkcs7 -nocrl -certfile tls.crt -out tls.p7b")
	good := o.input()
	for _, tt := range []struct {
		name    string
		set     func(*Input)
		want    string
		message string
	}{
		{"takes the text form before the block", func(in *Input) { in.CertPEM = o.read("text.crt") }, "", ""},
		{
			"names PKCS#12 as certificate", func(in *Input) { in.CertPEM = o.read("tls.p12") },
			"error NotACertificate",
			"PKCS#12",
		},
		{"names PKCS#12 as key", func(in *Input) { in.KeyPEM = o.read("tls.p12") }, "error KeyUnreadable", "PKCS#12"},
		{"names PKCS#7", func(in *Input) { in.CertPEM = o.read("tls.p7b") }, "error NotACertificate", "PKCS7"},
		{
			"names a trusted certificate", func(in *Input) { in.CertPEM = o.read("trusted.crt") },
			"error NotACertificate",
			"TRUSTED CERTIFICATE",
		},
		{
			"names an encrypted key", func(in *Input) { in.KeyPEM = o.read("encrypted.key") },
			"error KeyEncrypted",
			"passphrase",
		},
		{
			"names an encrypted key in the old form", func(in *Input) { in.KeyPEM = o.read("legacy.key") },
			"error KeyEncrypted",
			"passphrase",
		},
		{
			"reads EC PARAMETERS before the key", func(in *Input) { in.KeyPEM = o.read("params.key") },
			"error KeyMismatch",
			"not the private key",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := good
			tt.set(&in)
			wantMessage(t, in, tt.message, tt.want)
		})
	}
}

func TestOpenSSLVersion1Root(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	o.run("genpkey " + rsa2048 + " -out ca.key")
	o.run("req -new -key ca.key -subj /CN=Old -out ca.csr")
	o.run("x509 -req -in ca.csr -signkey ca.key -days 3650 -out ca.pem")
	if cert := o.read("ca.pem"); !bytes.Contains(cert, []byte("BEGIN CERTIFICATE")) {
		t.Fatal("no root was made")
	}
	o.leaf(p256, "-sha256", "subjectAltName=DNS:proxy.example.com", "extendedKeyUsage=serverAuth")
	report := Check(o.input())
	if !report.OK() || !report.Has(StrictClients) {
		t.Errorf("got %v", report.Findings)
	}
}

func TestWrongAuthorityKeyID(t *testing.T) {
	t.Parallel()
	root := newRoot(t, "Root")
	wrong := *root.Certificate
	wrong.SubjectKeyId = []byte{1, 2, 3, 4}
	leaf := entity{Certificate: &wrong, key: root.key}.newLeaf(t)
	wantMessage(t, inputFor(t, root, leaf), "OpenSSL does not find the issuer", "warning StrictClients")
}

// TestCrossSigned has an issuing CA that two roots have signed. OpenSSL uses the first certificate of it that the
// server sends, and fails if only the second leads to the CA bundle.
func TestCrossSigned(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	root, other := newRoot(t, "Root"), newRoot(t, "Other Root")
	inter := root.newCA(t, "Intermediate")
	cross := entity{
		signWith(t, caTemplate("Intermediate"), other.Certificate, inter.key.Public(), other.key), inter.key,
	}
	expired := entity{
		signWith(t, caTemplate("Intermediate", validity(-100*day, -day)), other.Certificate, inter.key.Public(), other.key),
		inter.key,
	}
	leaf := inter.newLeaf(t)
	for name, test := range map[string]struct {
		chain  []entity
		bundle []byte
		want   []string
	}{
		"the first leads to the bundle":  {[]entity{inter, cross}, root.pem(), nil},
		"the second leads to the bundle": {[]entity{cross, inter}, root.pem(), []string{"warning StrictClients"}},
		"both lead to the bundle":        {[]entity{cross, inter}, chainOf(root, other), nil},
		"the first has expired":          {[]entity{expired, inter}, root.pem(), []string{"warning IntermediateInvalid"}},
	} {
		in := inputFor(t, root, leaf, test.chain...)
		in.Bundle = test.bundle
		report := wantFindings(t, in, test.want...)
		o.file("ca.pem", string(in.Bundle))
		o.file("chain.pem", string(in.CertPEM))
		o.file("leaf.pem", string(leaf.pem()))
		cmd := exec.CommandContext(t.Context(), "openssl", "verify", "-attime", fmt.Sprint(testNow().Unix()),
			"-no-CApath", "-no-CAstore", "-CAfile", "ca.pem", "-untrusted", "chain.pem", "leaf.pem")
		cmd.Dir = o.dir
		output, err := cmd.CombinedOutput()
		if refuses := report.Has(StrictClients); refuses != (err != nil) {
			t.Errorf("%s: OpenSSL says %v: %s", name, err, output)
		}
		f, _ := report.First()
		if f.Code == StrictClients && !strings.Contains(f.Hint, "put block 3 in front of block 2") {
			t.Errorf("%s: hint %q", name, f.Hint)
		}
	}
}
