package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func base64Of(data []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(data)) }

func replaced(data []byte, pairs ...string) []byte {
	return []byte(strings.NewReplacer(pairs...).Replace(string(data)))
}

func indented(data []byte) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", "\n    ") + "\n"
}

func asJSON(tb testing.TB, value any) []byte {
	tb.Helper()
	return must.Get(json.Marshal(value))(tb)
}

func secretYAML(entries string) []byte {
	return []byte("apiVersion: v1\n" + entries + "kind: Secret\nmetadata:\n  name: proxy-tls\ntype: kubernetes.io/tls\n")
}

// otherFiles are files that people confuse with a certificate or a private key.
func otherFiles(t *testing.T, o openssl, p pki) []struct {
	name      string
	cert, key []byte // nil for the good one
	what      string // part of the message
} {
	t.Helper()
	good := p.input(t)
	o.file("leaf.pem", string(p.leaf.pem()))
	o.file("tls.key", string(good.KeyPEM))
	o.run("pkcs12 -export -in leaf.pem -inkey tls.key -passout pass:secret -out tls.p12")
	o.run("crl2pkcs7 -nocrl -certfile leaf.pem -out tls.p7b")
	o.run("crl2pkcs7 -nocrl -certfile leaf.pem -outform DER -out der.p7b")
	o.run("pkcs8 -topk8 -in tls.key -passout pass:secret -out encrypted.key")
	ec := p.leaf.key.(*ecdsa.PrivateKey)
	sec1 := must.Get(x509.MarshalECPrivateKey(ec))(t)
	pkcs8 := must.Get(x509.MarshalPKCS8PrivateKey(ec))(t)
	cert, key := p.leaf.pem(), good.KeyPEM
	return []struct {
		name      string
		cert, key []byte
		what      string
	}{
		{name: "UTF-16", cert: utf16LE(cert), what: "UTF-16"},
		{name: "UTF-16 without a mark", cert: utf16LE(cert)[2:], what: "UTF-16"},
		{name: "a key in UTF-16", key: utf16LE(key), what: "UTF-16"},
		{name: "DER", cert: p.leaf.Raw, what: "a certificate in binary DER"},
		{name: "a key in DER, PKCS#8", key: pkcs8, what: "a private key in binary DER"},
		{name: "a key in DER, SEC 1", key: sec1, what: "a private key in binary DER"},
		{name: "PKCS#7", cert: o.read("tls.p7b"), what: `"PKCS7"`},
		{name: "PKCS#7 in DER", cert: o.read("der.p7b"), what: "PKCS#7 in binary DER"},
		{name: "PKCS#7 as base64", cert: base64Of(o.read("der.p7b")), what: "PKCS#7 as base64"},
		{name: "PKCS#12", cert: o.read("tls.p12"), key: o.read("tls.p12"), what: "PKCS#12"},
		{name: "PKCS#12 as base64", cert: base64Of(o.read("tls.p12")), what: "PKCS#12, encoded as base64"},
		{name: "base64 of PEM", cert: base64Of(cert), what: "encoded once more"},
		{name: "base64 twice", cert: base64Of(base64Of(cert)), what: "encoded twice more"},
		{name: "base64 of DER", cert: base64Of(p.leaf.Raw), what: "without the BEGIN and END lines"},
		{name: "a key in base64 of DER", key: base64Of(pkcs8), what: "without the BEGIN and END lines"},
		{name: "a key with a passphrase", key: o.read("encrypted.key"), what: "encrypted with a passphrase"},
		{name: "a byte order mark", cert: concat([]byte("\xef\xbb\xbf"), cert), what: "byte order mark"},
		{name: "indentation", cert: []byte(indented(cert)), what: "cannot be read"},
		{
			name: "mail quoting",
			cert: concat([]byte("> "), replaced(bytes.TrimSpace(cert), "\n", "\n> ")),
			what: "cannot be read",
		},
		{name: "escaped line breaks", cert: replaced(cert, "\n", `\n`), what: "line breaks are lost"},
		{name: "a JSON string", cert: asJSON(t, string(cert)), what: "a JSON string"},
		{name: "an old label", cert: block("X509 CERTIFICATE", p.leaf.Raw), what: "X509 CERTIFICATE"},
		{
			name: "a Secret in YAML", what: "the manifest of a Secret",
			cert: secretYAML(fmt.Sprintf("data:\n  tls.crt: %s\n  tls.key: %s\n", base64Of(cert), base64Of(key))),
			key:  secretYAML(fmt.Sprintf("data:\n  tls.crt: %s\n  tls.key: %s\n", base64Of(cert), base64Of(key))),
		},
		{
			name: "a Secret in YAML, quoted", what: "the manifest of a Secret",
			cert: secretYAML(fmt.Sprintf("data:\n  tls.crt: %q\n", base64Of(cert))),
		},
		{
			name: "a Secret with stringData", what: "the manifest of a Secret",
			cert: secretYAML("stringData:\n  tls.crt: |\n" + indented(cert) + "  tls.key: |\n" + indented(key)),
			key:  secretYAML("stringData:\n  tls.crt: |\n" + indented(cert) + "  tls.key: |\n" + indented(key)),
		},
		{
			name: "a Secret in JSON", what: `the manifest of a "Secret"`,
			cert: asJSON(t, map[string]any{
				"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"tls.crt": cert, "tls.key": key},
			}),
			key: asJSON(t, map[string]any{
				"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"tls.crt": cert, "tls.key": key},
			}),
		},
		{
			name: "a list of Secrets", what: `the manifest of a "List"`,
			cert: asJSON(t, map[string]any{
				"apiVersion": "v1", "kind": "List", "items": []any{map[string]any{"data": map[string]any{"tls.crt": cert}}},
			}),
		},
		{
			name: "Vault's answer", what: "JSON",
			cert: asJSON(t, map[string]any{"data": map[string]any{
				"certificate": string(cert), "issuing_ca": string(p.root.pem()), "private_key": string(key),
			}}),
			key: asJSON(t, map[string]any{"data": map[string]any{
				"certificate": string(cert), "issuing_ca": string(p.root.pem()), "private_key": string(key),
			}}),
		},
	}
}

// TestOtherFormats tests files of other formats, and runs the command in the hint.
func TestOtherFormats(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	p := newPKI(t)
	for _, tt := range otherFiles(t, o, p) {
		for _, part := range []string{"cert", "key"} {
			in := p.input(t)
			data, code := tt.cert, NotACertificate
			if part == "key" {
				data, code = tt.key, KeyUnreadable
			}
			if data == nil {
				continue
			}
			good := p.input(t)
			if part == "key" {
				in.KeyPEM = data
			} else {
				in.CertPEM = data
			}
			first, _ := Check(in).First()
			if first.Code != code && first.Code != KeyEncrypted || !strings.Contains(first.Message, tt.what) {
				t.Errorf("%s: got %s, want %s that says %q", tt.name, first, code, tt.what)
				continue
			}
			fixed, ran := o.follow(tt.name, first.Hint, data)
			if !ran {
				t.Errorf("%s: the hint has no command: %s", tt.name, first.Hint)
				continue
			}
			if part == "key" {
				good.KeyPEM = fixed
			} else {
				good.CertPEM = concat(fixed, []byte("\n"), p.inter.pem())
			}
			if report := Check(good); !report.OK() {
				t.Errorf("%s: after %q: %v", tt.name, first.Hint, report.Findings)
			}
		}
	}
}

// follow runs the commands in a hint on a file and returns their output.
func (o openssl) follow(name, hint string, data []byte) (fixed []byte, ran bool) {
	o.t.Helper()
	_, commands, found := strings.Cut(hint, ": ")
	if !found {
		return nil, false
	}
	o.file("FILE", string(data))
	commands, _, _ = strings.Cut(commands, "; ")
	for command := range strings.SplitSeq(commands, ", then ") {
		if strings.Contains(command, "openssl pk") && !strings.Contains(command, "pkcs7") {
			command += " -passin pass:secret"
		}
		run := exec.CommandContext(o.t.Context(), "sh", "-c", command)
		run.Dir = o.dir
		if out, err := run.CombinedOutput(); err != nil {
			o.t.Errorf("%s: %s: %v\n%s", name, command, err, out)
			return nil, false
		}
	}
	return o.read("new.pem"), true
}

// TestOtherKinds tests manifests and files without a serving certificate.
func TestOtherKinds(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	template := &x509.CertificateRequest{Subject: p.leaf.Subject}
	request := must.Get(x509.CreateCertificateRequest(rand.Reader, template, p.leaf.key))(t)
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters:\n- name: a\n  cluster:\n    certificate-authority-data: " +
		string(base64Of(p.root.pem())) + "\n"
	for _, tt := range []struct {
		name       string
		data       []byte
		what, hint string
	}{
		{"a kubeconfig", []byte(kubeconfig), "the manifest of a kubeconfig", "kubectl config view --raw --flatten --kubeconfig FILE"},
		{"a request", block("CERTIFICATE REQUEST", request), "CERTIFICATE REQUEST", "the certificate that the CA returned"},
		{"a request in DER", request, "a certificate request in binary DER", "the certificate that the CA returned"},
		{
			"cert-manager's Certificate", []byte("apiVersion: cert-manager.io/v1\nkind: Certificate\nspec:\n  secretName: a\n"),
			"the manifest of a Certificate", "spec.secretName",
		},
		{
			"a CertificateSigningRequest", []byte("apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\n"),
			"the manifest of a CertificateSigningRequest", "{.status.certificate}",
		},
		{"a web page", []byte("<!DOCTYPE html><html></html>"), "a web page", "download the file again"},
		{"a private key in DER", marshal8(t, p.leaf), "a private key in binary DER", "remove the key"},
	} {
		for _, bundle := range []bool{false, true} {
			in := p.input(t)
			if bundle {
				in.Bundle = tt.data
			} else {
				in.CertPEM = tt.data
			}
			report := Check(in)
			first, _ := report.First()
			if first.Code != NotACertificate || !strings.Contains(first.Message, tt.what) ||
				!strings.Contains(first.Hint, tt.hint) {
				t.Errorf("%s (in the bundle: %v): got %s: %s", tt.name, bundle, first, first.Hint)
			}
			if len(report.Errors()) != 1 {
				t.Errorf("%s: it is said more than once: %v", tt.name, report.Errors())
			}
			if text := fmt.Sprint(report.Findings); strings.Contains(text, string(base64Of(p.root.pem()))[:30]) {
				t.Errorf("%s: its content is shown: %s", tt.name, text)
			}
		}
	}
}

func marshal8(t *testing.T, e entity) []byte {
	t.Helper()
	return must.Get(x509.MarshalPKCS8PrivateKey(e.key))(t)
}

// FuzzRecognize shows that no byte of a key is revealed.
func FuzzRecognize(f *testing.F) {
	p := newPKI(f)
	key := p.leaf.keyPEM(f)
	for _, data := range [][]byte{
		key, base64Of(key), utf16LE(key), asJSON(f, map[string]any{"tls.key": key}),
		secretYAML(fmt.Sprintf("data:\n  tls.key: %s\n", base64Of(key))), []byte(`[[[["a"]]]]`), p.leaf.Raw,
	} {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range []part{partChain, partBundle, partKey} {
			what, hint := recognize(data, p)
			if what == "" || hint == "" || len(what) > 200 || len(hint) > 2000 {
				t.Errorf("%q: %q", what, hint)
			}
			if secret := secretOf(data); secret != "" && strings.Contains(what+hint, secret) {
				t.Errorf("it shows the key: %q %q", what, hint)
			}
		}
	})
}

// TestKeyStores tests key stores in place of PEM, and follows the hints, with the password on the command line.
func TestKeyStores(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	o.root("")
	o.leaf(p256, "-sha256")
	o.run("pkcs12 -export -in tls.crt -inkey tls.key -name proxy -passout pass:secret -out tls.p12")
	const certificates, key = "-nokeys -out new.pem", "-nocerts -nodes -out new.pem"
	extract := func(store string) {
		t.Helper()
		in := o.input()
		o.run("pkcs12 -in " + store + " -passin pass:secret " + certificates)
		in.CertPEM = o.read("new.pem")
		o.run("pkcs12 -in " + store + " -passin pass:secret " + key)
		in.KeyPEM = o.read("new.pem")
		wantFindings(t, in)
	}
	wantHints(t, o.read("tls.p12"), "PKCS#12",
		"openssl pkcs12 -in FILE "+certificates, "openssl pkcs12 -in FILE "+key)
	extract("tls.p12")

	for _, head := range []string{"\xfe\xed\xfe\xed\x00\x00\x00\x02", "\xce\xce\xce\xce\x00\x00\x00\x02"} {
		wantHints(t, []byte(head+strings.Repeat("\x00", 40)), "Java key store", "keytool -importkeystore -srckeystore FILE ")
	}
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Skip("keytool is not on the PATH")
	}
	for _, storeType := range []string{"JKS", "JCEKS"} {
		keytool(o, "-importkeystore -srckeystore tls.p12 -srcstorepass secret -destkeystore tls.jks -deststoretype "+
			storeType+" -deststorepass secret -destkeypass secret")
		keytool(o, "-importkeystore -srckeystore tls.jks -destkeystore new.p12 -deststoretype PKCS12 -srcstorepass secret "+
			"-deststorepass secret -noprompt")
		wantHints(t, o.read("tls.jks"), "Java key store",
			"keytool -importkeystore -srckeystore FILE -destkeystore new.p12 -deststoretype PKCS12, then "+
				"openssl pkcs12 -in new.p12 "+certificates, "openssl pkcs12 -in new.p12 "+key)
		extract("new.p12")
		keytool(o, "-delete -keystore new.p12 -storepass secret -alias proxy")
		keytool(o, "-delete -keystore tls.jks -storepass secret -alias proxy")
	}
}

// wantHints expects that a key store is recognized, as certificate and as key, and these commands in the hints.
func wantHints(t *testing.T, store []byte, name string, commands ...string) {
	t.Helper()
	report := Check(Input{CertPEM: store, KeyPEM: store})
	said := map[string]string{}
	for _, f := range report.Findings {
		said[string(f.Code)] = f.Message + f.Hint
	}
	text := said[string(NotACertificate)] + said[string(KeyUnreadable)]
	for _, want := range append(commands, name) {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q: %s", want, text)
		}
	}
	if text := said[string(KeyUnreadable)]; !strings.Contains(text, name) || !strings.Contains(text, "-nocerts") {
		t.Errorf("KeyUnreadable says %s", text)
	}
}

func keytool(o openssl, line string) {
	o.t.Helper()
	command := exec.CommandContext(o.t.Context(), "keytool", strings.Fields(line)...)
	command.Dir = filepath.Clean(o.dir)
	if out, err := command.CombinedOutput(); err != nil {
		o.t.Fatalf("keytool %s: %v\n%s", line, err, out)
	}
}

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
	latin := root.newLeaf(t, sans("proxy.example.com", "bxxcher.example.com"))
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
