package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// brokenFile is a file as people have it, and what it holds.
type brokenFile struct {
	name string
	data []byte
	want []entity // the certificates in their right order; nil for what no repair can mend
}

func newlineEscaped(data []byte) []byte {
	text, err := json.Marshal(string(data))
	if err != nil {
		panic(err)
	}
	return text
}

func base64Of(data []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(data)) }

func replaced(data []byte, pairs ...string) []byte {
	return []byte(strings.NewReplacer(pairs...).Replace(string(data)))
}

// brokenChains are the ways in which a chain of leaf and inter gets broken.
func brokenChains(tb testing.TB, p pki) []brokenFile {
	tb.Helper()
	leaf, inter, root := p.leaf.pem(), p.inter.pem(), p.root.pem()
	both := []entity{p.leaf, p.inter}
	chain := chainOf(both...)
	request, err := x509.CreateCertificateRequest(
		rand.Reader,
		&x509.CertificateRequest{Subject: p.leaf.Subject},
		p.leaf.key,
	)
	if err != nil {
		tb.Fatal(err)
	}
	list, err := x509.CreateRevocationList(
		rand.Reader,
		&x509.RevocationList{Number: p.root.SerialNumber, ThisUpdate: testNow(), NextUpdate: testNow()},
		p.root.Certificate,
		p.root.key,
	)
	if err != nil {
		tb.Fatal(err)
	}
	with := func(label string, headers map[string]string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: label, Headers: headers, Bytes: der})
	}
	aux := []byte{0x30, 0x00} // what OpenSSL appends to a trusted certificate
	return []brokenFile{
		{"good", chain, both},
		{"Windows line ends", replaced(chain, "\n", "\r\n"), both},
		{"old Mac line ends", replaced(chain, "\n", "\r"), both},
		{"DER of one certificate", p.leaf.Raw, both[:1]},
		{"DER of two certificates", concat(p.leaf.Raw, p.inter.Raw), both},
		{"DER with junk behind it", concat(p.leaf.Raw, []byte("junk")), both[:1]},
		{"base64 of PEM", base64Of(chain), both},
		{"base64 of base64 of PEM", base64Of(base64Of(chain)), both},
		{"base64 without BEGIN and END", base64Of(p.leaf.Raw), both[:1]},
		{"UTF-16 little endian", utf16LE(chain), both},
		{"UTF-16 without a mark", utf16LE(chain)[2:], both},
		{"a byte order mark", concat([]byte("\xef\xbb\xbf"), chain), both},
		{"a byte order mark in the middle", concat(leaf, []byte("\xef\xbb\xbf"), inter), both},
		{"spaces for line breaks", replaced(chain, "\n", " "), both},
		{"no line breaks at all", replaced(chain, "\n", ""), both},
		{"escaped line breaks", replaced(chain, "\n", `\n`), both},
		{"a JSON string", newlineEscaped(chain), both},
		{"indentation", replaced(chain, "-----BEGIN", "  -----BEGIN"), both},
		{"indentation everywhere", replaced(chain, "\n", "\n    "), both},
		{"mail quoting", concat([]byte("> "), replaced(chain, "\n", "\n> ")), both},
		{"typographic dashes", replaced(chain, "-----", "\u2014\u2014\u2013"), both},
		{"no-break spaces", replaced(chain, " CERTIFICATE", "\u00a0CERTIFICATE"), both},
		{"a damaged BEGIN", chain[1:], both},
		{"a lost BEGIN", chain[len("-----BEGIN CERTIFICATE-----\n"):], both},
		{"a damaged END", replaced(chain, "-----END CERTIFICATE-----", "-----END CERTIFICATE---"), both},
		{"a missing END", replaced(chain, "-----END CERTIFICATE-----\n", ""), both},
		{"no END and prose", concat(replaced(leaf, "-----END CERTIFICATE-----\n", ""), []byte("that is all\n")), both[:1]},
		{"an END of another label", replaced(chain, "END CERTIFICATE", "END X509 CERTIFICATE"), both},
		{"lower case", replaced(chain, "BEGIN CERTIFICATE", "Begin Certificate", "END CERTIFICATE", "End Certificate"), both},
		{"a missing line break between blocks", concat(bytes.TrimSpace(leaf), inter), both},
		{"an empty line in a block", replaced(chain, "\n-----END", "\n\n-----END"), both},
		{
			"prose around",
			concat([]byte("subject=CN=proxy\n"), leaf, []byte("\nissuer\n"), inter, []byte("that is all\n")),
			both,
		},
		{"PEM headers", concat(with("CERTIFICATE", map[string]string{"X-Note": "hello"}, p.leaf.Raw), inter), both},
		{"an old label", concat(with("X509 CERTIFICATE", nil, p.leaf.Raw), inter), both},
		{"a trusted certificate", concat(with("TRUSTED CERTIFICATE", nil, concat(p.leaf.Raw, aux)), inter), both},
		{"junk in a block", concat(with("CERTIFICATE", nil, concat(p.leaf.Raw, []byte("junk"))), inter), both},
		{"two certificates in a block", with("CERTIFICATE", nil, concat(p.leaf.Raw, p.inter.Raw)), both},
		{"a request beside the certificate", concat(with("CERTIFICATE REQUEST", nil, request), chain), both},
		{"a revocation list", concat(chain, with("X509 CRL", nil, list)), both},
		{"Diffie-Hellman parameters", concat(chain, with("DH PARAMETERS", nil, []byte{0x30, 0x03, 0x02, 0x01, 0x05})), both},
		{"an empty block", concat(chain, []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")), nil},
		{"the key behind the certificate", concat(chain, p.leaf.keyPEM(tb)), both},
		{"the intermediate first", concat(inter, leaf), both},
		{"the root first", concat(root, inter, leaf), []entity{p.leaf, p.inter, p.root}},
		{"the intermediate first, with a byte order mark", concat([]byte("\xef\xbb\xbf"), inter, leaf), both},
		{"a repetition", concat(leaf, inter, leaf, inter), both},
		{"DER of the intermediate first", concat(p.inter.Raw, p.leaf.Raw), both},

		{"a request alone", with("CERTIFICATE REQUEST", nil, request), nil},
		{"a request in place of the certificate", concat(with("CERTIFICATE REQUEST", nil, request), inter), nil},
		{"a certificate cut short", concat(with("CERTIFICATE", nil, p.leaf.Raw[:200]), inter), nil},
		{"a file cut short", chain[:len(chain)-200], nil},
		{"half a file", leaf[:len(leaf)/2], nil},
		{"a character that is not base64", replaced(chain, "MII", "M*I"), nil},
		{"DER cut short", p.leaf.Raw[:300], nil},
		{"text", []byte("hello"), nil},
		{"nothing", []byte("\n"), nil},
		{"base64 without end", base64Of(base64Of(base64Of(base64Of(base64Of(chain))))), nil},
	}
}

func TestRepair(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for _, file := range brokenChains(t, p) {
		t.Run(file.name, func(t *testing.T) {
			t.Parallel()
			repaired, err := Repair(file.data, PartAny)
			if file.want == nil {
				var cannot *RepairError
				if !errors.As(err, &cannot) || len(cannot.Problems) == 0 || cannot.Hint == "" || repaired != nil {
					t.Errorf("got %v, %v; want the reason why not", repaired, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := chainOf(file.want...); !bytes.Equal(repaired.PEM, want) || repaired.Certificates != len(file.want) {
				t.Errorf("got\n%s\nwant\n%s\nafter %q", repaired.PEM, want, repaired.Done)
			}
			same := strings.TrimSpace(string(replaced(file.data, "\r\n", "\n"))) == strings.TrimSpace(string(repaired.PEM))
			if same == (len(repaired.Done) > 0) {
				t.Errorf("says that it has done %q", repaired.Done)
			}
			if again, err := Repair(
				repaired.PEM,
				PartAny,
			); err != nil || !bytes.Equal(again.PEM, repaired.PEM) ||
				len(again.Done) > 0 {
				t.Errorf("a second repair does something: %v, %v", again, err)
			}
		})
	}
}

func TestRepairKeepsBundles(t *testing.T) {
	t.Parallel()
	p, other := newPKI(t), newRoot(t, "Other")
	bundle := chainOf(p.root, p.inter, other)
	repaired, err := Repair(concat([]byte("\xef\xbb\xbf"), bundle), PartAny)
	if err != nil || !bytes.Equal(repaired.PEM, bundle) {
		t.Errorf("the order of a CA bundle is changed: %v", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, p.leaf.key)
	if err != nil {
		t.Fatal(err)
	}
	repaired, err = Repair(concat(bundle, block("CERTIFICATE REQUEST", request)), PartAny)
	if err != nil || !bytes.Equal(repaired.PEM, bundle) {
		t.Errorf("a request in a CA bundle is not left out: %v, %v", repaired, err)
	}
	// A chain with a stranger, and with a certificate of the same name that is cross-signed for old clients.
	bridge := entity{signWith(t, caTemplate("Root"), other.Certificate, p.root.key.Public(), other.key), p.root.key}
	stranger := newRoot(t, "Stranger")
	repaired, err = Repair(chainOf(stranger, bridge, p.inter, p.leaf), PartAny)
	if want := chainOf(p.leaf, p.inter, bridge, stranger); err != nil || !bytes.Equal(repaired.PEM, want) {
		t.Errorf("got %v, %v", repaired, err)
	}
}

// TestRepairKeyInFront keeps all that is in a file which begins with its key, as those for HAProxy do. A request for the
// key alone gives the key alone.
func TestRepairKeyInFront(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	key, chain := p.leaf.keyPEM(t), chainOf(p.leaf, p.inter)
	want := concat(key, chain)
	for name, data := range map[string][]byte{
		"good": want, "indented": replaced(want, "-----BEGIN", "  -----BEGIN"),
		"the intermediate first": concat(key, p.inter.pem(), p.leaf.pem()), "the key twice": concat(key, chain, key),
	} {
		repaired, err := Repair(data, PartAny)
		if err != nil || !bytes.Equal(repaired.PEM, want) || repaired.Certificates != 2 || !repaired.Key {
			t.Errorf("%s: got %+v, %v", name, repaired, err)
		}
		if name == "good" && len(repaired.Done) > 0 {
			t.Errorf("says that it has done %q", repaired.Done)
		}
		if repaired, err := Repair(data, PartKey); err != nil || !bytes.Equal(repaired.PEM, key) {
			t.Errorf("%s: the key alone: %+v, %v", name, repaired, err)
		}
	}
}

// brokenKeys are the ways in which the file of a private key gets broken.
func brokenKeys(tb testing.TB, p pki) map[string][]byte {
	tb.Helper()
	ec, err := x509.MarshalECPrivateKey(p.leaf.key.(*ecdsa.PrivateKey))
	if err != nil {
		tb.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(p.leaf.key)
	if err != nil {
		tb.Fatal(err)
	}
	good := p.leaf.keyPEM(tb)
	openSSH, err := ssh.MarshalPrivateKey(p.leaf.key, "")
	if err != nil {
		tb.Fatal(err)
	}
	return map[string][]byte{
		"good":                               good,
		"SEC 1":                              block("EC PRIVATE KEY", ec),
		"DER of PKCS#8":                      pkcs8,
		"DER of SEC 1":                       ec,
		"base64 of PEM":                      base64Of(good),
		"base64 of DER":                      base64Of(pkcs8),
		"UTF-16":                             utf16LE(good),
		"a byte order mark":                  concat([]byte("\xef\xbb\xbf"), good),
		"indentation":                        concat([]byte("  "), replaced(good, "\n", "\n  ")),
		"lost line breaks":                   replaced(good, "\n", " "),
		"escaped line breaks":                replaced(good, "\n", `\n`),
		"a damaged BEGIN":                    good[1:],
		"a missing END":                      replaced(good, "-----END PRIVATE KEY-----", ""),
		"OpenSSH's format":                   pem.EncodeToMemory(openSSH),
		"the certificate in front":           concat(p.leaf.pem(), good),
		"the certificate in front, indented": concat([]byte("  "), replaced(concat(p.leaf.pem(), good), "\n", "\n  ")),
		"parameters in front, indented": concat(
			[]byte("  "),
			replaced(
				concat(block("EC PARAMETERS", []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7}), block("EC PRIVATE KEY", ec)),
				"\n",
				"\n  ",
			),
		),
	}
}

func TestRepairKey(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for name, data := range brokenKeys(t, p) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repaired, err := Repair(data, PartKey)
			if err != nil || !bytes.Equal(repaired.PEM, p.leaf.keyPEM(t)) || repaired.Certificates != 0 {
				t.Fatalf("got %v, %v", repaired, err)
			}
			if strings.Contains(strings.Join(repaired.Done, "\n"), secretOf(p.leaf.keyPEM(t))) {
				t.Error("key material is shown")
			}
		})
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{ed, rsaKey(t, 2048)} {
		for _, passphrase := range []string{"", "secret"} {
			encoded, err := ssh.MarshalPrivateKey(key, "")
			if passphrase != "" {
				encoded, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
			}
			if err != nil {
				t.Fatal(err)
			}
			repaired, err := Repair(pem.EncodeToMemory(encoded), PartKey)
			if passphrase != "" {
				if err == nil || !strings.Contains(err.Error(), "passphrase") {
					t.Errorf("got %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, list := readKey(
				repaired.PEM,
				DefaultLimits(),
				Sources{},
			); len(list) > 0 ||
				!sameKey(got.Public(), key.Public()) {
				t.Errorf("%T: %v", key, list)
			}
		}
	}
	other := rsaKey(t, 2048)
	for name, data := range map[string][]byte{
		"no key": p.leaf.pem(), "nothing": nil, "two keys": concat(
			p.leaf.keyPEM(t), block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(other)),
		),
		"half a key": p.leaf.keyPEM(t)[:100],
	} {
		if repaired, err := Repair(data, PartKey); err == nil {
			t.Errorf("%s: %v", name, repaired.Done)
		}
	}
}

// TestHintsRepair runs what a hint says to run, on every broken file that gets the hint, and checks the outcome: a
// hint is a command that repairs.
func TestHintsRepair(t *testing.T) {
	t.Parallel()
	o := withOpenSSL(t)
	p := newPKI(t)
	good := p.input(t)
	o.file("leaf.pem", string(p.leaf.pem()))
	o.file("inter.pem", string(p.inter.pem()))
	o.file("tls.key", string(good.KeyPEM))
	o.run("pkcs12 -export -in leaf.pem -certfile inter.pem -inkey tls.key -passout pass:secret -out tls.p12")
	o.run("crl2pkcs7 -nocrl -certfile leaf.pem -certfile inter.pem -out tls.p7b")
	o.run("crl2pkcs7 -nocrl -certfile leaf.pem -certfile inter.pem -outform DER -out der.p7b")
	o.run("pkcs8 -topk8 -in tls.key -passout pass:secret -out encrypted.key")
	o.run("ec -in tls.key -aes128 -passout pass:secret -out legacy.key")
	o.run("x509 -in leaf.pem -trustout -out trusted.crt -addtrust serverAuth")
	files := brokenChains(t, p)
	for _, name := range []string{"tls.p12", "tls.p7b", "der.p7b"} {
		files = append(files, brokenFile{name, o.read(name), []entity{p.leaf, p.inter}})
	}
	files = append(
		files,
		brokenFile{"base64 of PKCS#7", base64Of(o.read("der.p7b")), []entity{p.leaf, p.inter}},
		brokenFile{
			"trusted certificates of OpenSSL",
			concat(o.read("trusted.crt"), p.inter.pem()),
			[]entity{p.leaf, p.inter},
		},
	)
	ran := 0
	for _, file := range files {
		in := good
		in.CertPEM = file.data
		for _, f := range Check(in).Findings {
			hint := f.Hint
			switch fixed, ok := o.follow(file.name, hint, file.data); {
			case !ok && strings.Contains(hint, " FILE "):
				t.Errorf("%s: the command does not work: %s", file.name, hint)
			case ok:
				ran++
				in.CertPEM = fixed
				report := Check(in)
				if file.want == nil || len(report.Findings) > 0 && report.Leaf == nil || report.SHA256 != Fingerprint(p.leaf.Raw) {
					t.Errorf("%s: %s: afterwards %v", file.name, hint, report.Findings)
				}
				for _, left := range report.Findings {
					if left.Code == NotACertificate || left.Code == ChainOrder {
						t.Errorf("%s: %s: afterwards %s", file.name, hint, left)
					}
				}
				if parsed, _ := parseCertificates(fixed, "", 20); len(parsed) != len(file.want) {
					t.Errorf("%s: %s: %d certificates of %d are left", file.name, hint, len(parsed), len(file.want))
				}
			}
		}
	}
	keys := brokenKeys(t, p)
	for _, name := range []string{"tls.p12", "encrypted.key", "legacy.key"} {
		keys[name] = o.read(name)
	}
	for _, name := range []string{"encrypted.key", "legacy.key"} {
		keys[name+", indented"] = concat([]byte("  "), replaced(o.read(name), "\n", "\n  "))
	}
	for name, data := range keys {
		in := good
		in.KeyPEM = data
		report := Check(in)
		if first, refused := report.First(); refused {
			fixed, ok := o.follow(name, first.Hint, data)
			if in.KeyPEM = fixed; !ok || !Check(in).OK() {
				t.Errorf("%s: %s: %s: afterwards %v", name, first, first.Hint, Check(in).Findings)
			}
			ran++
		}
	}
	if ran < 50 {
		t.Errorf("only %d commands were run", ran)
	}
}

// follow runs the commands in a hint on a file, one after the other, and returns what they make of it. ok is false
// where the hint has no command, and where one fails.
func (o openssl) follow(name, hint string, data []byte) (fixed []byte, ok bool) {
	o.t.Helper()
	for _, word := range strings.Split(strings.ReplaceAll(hint, "; ", ", "), ", ") {
		switch _, command, found := strings.Cut(word, "pinniped ip-tls repair FILE"); {
		case found:
			part := PartAny
			if strings.Contains(command, "--private-key") {
				part = PartKey
			}
			repaired, err := Repair(data, part)
			if err != nil {
				return nil, false
			}
			data, ok = repaired.PEM, true
		case strings.Contains(word, "openssl p") && strings.Contains(word, "FILE") && !strings.Contains(word, "for the key"):
			command = strings.Replace(word[strings.Index(word, "openssl ")+len("openssl "):], " for the certificates", "", 1)
			o.file("FILE", string(data))
			if fields := strings.Fields(command); fields[len(fields)-2] == "-out" {
				fields[len(fields)-1] = "NEW"
				command = strings.Join(fields, " ")
			}
			if !strings.Contains(command, "pkcs7") {
				command += " -passin pass:secret"
			}
			cmd := exec.CommandContext(o.t.Context(), "openssl", strings.Fields(command)...)
			cmd.Dir = o.dir
			if out, err := cmd.CombinedOutput(); err != nil {
				o.t.Errorf("%s: openssl %s: %v\n%s", name, command, err, out)
				return nil, false
			}
			data, ok = o.read("NEW"), true
		}
	}
	return data, ok
}

// FuzzRepair holds Repair to its promises on hostile input: it never loses a certificate that Go finds in the file,
// gives a file that needs no further repair, and shows nothing of a key.
func FuzzRepair(f *testing.F) {
	p := newPKI(f)
	for _, file := range brokenChains(f, p) {
		f.Add(file.data)
	}
	for _, data := range brokenKeys(f, p) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, part := range []Part{PartAny, PartCertificates, PartKey} {
			repaired, err := Repair(data, part)
			if err != nil {
				if err.Error() == "" || repaired != nil {
					t.Errorf("an error without a reason, or with a file: %v", err)
				}
				continue
			}
			again, err := Repair(repaired.PEM, part)
			if err != nil || !bytes.Equal(again.PEM, repaired.PEM) {
				t.Errorf("a second repair gives %v, %v", again, err)
			}
			if part != PartCertificates {
				continue
			}
			blocks := map[string]bool{}
			for _, block := range readPEM(repaired.PEM).blocks {
				blocks[string(block.bytes)] = true
			}
			for rest := data; ; {
				var block *pem.Block
				if block, rest = pem.Decode(rest); block == nil {
					break
				}
				if _, err := x509.ParseCertificate(block.Bytes); err == nil && !blocks[string(block.Bytes)] {
					t.Errorf("a certificate is lost: %v", repaired.Done)
				}
			}
		}
	})
}
