package certs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

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
