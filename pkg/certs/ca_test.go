package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func newTestCA(t *testing.T) *CA {
	t.Helper()
	return must.Get(NewCA("Test CA", testNow(), 10*365*day))(t)
}

func parsePair(t *testing.T, pair *KeyPair) *x509.Certificate {
	t.Helper()
	certificates, problems := ParseBundle(pair.CertPEM)
	if len(problems) > 0 || len(certificates) != 1 {
		t.Fatalf("%d certificates, %v", len(certificates), problems)
	}
	return certificates[0]
}

func TestCAIssuesWhatChecksAccept(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	pair := must.Get(ca.IssueServing(
		SANs{DNSNames: []string{testName}, IPAddresses: []net.IP{net.IPv4(203, 0, 113, 7).To4()}},
		testNow(),
		90*day,
	))(t)
	report := wantFindings(t, Input{
		CertPEM: pair.CertPEM, KeyPEM: pair.KeyPEM, Bundle: ca.CertPEM(), Now: testNow(),
		Names: []Name{{Value: testName}, {Value: "203.0.113.7"}},
	})
	if diff := cmp.Diff([]string{"203.0.113.7"}, report.IPAddresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if want := testNow().Add(-Backdate); !report.NotBefore.Equal(want) {
		t.Errorf("NotBefore %s, want %s", report.NotBefore, want)
	}
}

func TestCAIssueClient(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	pair := must.Get(ca.IssueClient(
		ClientIdentity{Username: "pinny", Groups: []string{"b", "a"}, OrganizationalUnits: []string{"k=v"}},
		testNow(),
		5*time.Minute,
	))(t)
	cert := parsePair(t, pair)
	if cert.Subject.CommonName != "pinny" || !slices.Equal(
		slices.Sorted(slices.Values(cert.Subject.Organization)), []string{"a", "b"},
	) ||
		!slices.Equal(cert.Subject.OrganizationalUnit, []string{"k=v"}) ||
		!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		t.Errorf("subject %s, usage %v", cert.Subject, cert.ExtKeyUsage)
	}
	if got := cert.NotAfter.Sub(cert.NotBefore); got != 10*time.Minute {
		t.Errorf("valid for %s", got)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	if _, err := cert.Verify(
		x509.VerifyOptions{Roots: roots, CurrentTime: testNow(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	); err != nil {
		t.Error(err)
	}
}

func TestCAIsNotOutlived(t *testing.T) {
	t.Parallel()
	ca := must.Get(NewCA("Short", testNow(), time.Hour))(t)
	pair := must.Get(ca.IssueServing(SANs{DNSNames: []string{testName}}, testNow(), 90*day))(t)
	if !pair.NotAfter.Equal(ca.Certificate().NotAfter) || !parsePair(t, pair).NotAfter.Equal(pair.NotAfter) {
		t.Errorf("the certificate ends at %s, the CA at %s", pair.NotAfter, ca.Certificate().NotAfter)
	}
}

func TestCARefuses(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	if _, err := ca.IssueServing(SANs{}, testNow(), day); err == nil {
		t.Error("it issues a serving certificate without names")
	}
	if _, err := ca.IssueClient(ClientIdentity{Groups: []string{"a"}}, testNow(), day); err == nil {
		t.Error("it issues a client certificate without a username")
	}
}

func TestLoadCA(t *testing.T) {
	t.Parallel()
	ca, other := newTestCA(t), newTestCA(t)
	key := must.Get(ca.KeyPEM())(t)
	otherKey := must.Get(other.KeyPEM())(t)
	leaf := must.Get(ca.IssueServing(SANs{DNSNames: []string{testName}}, testNow(), day))(t)
	for _, tt := range []struct {
		name      string
		cert, key []byte
		fails     string
	}{
		{name: "reads back what it wrote", cert: ca.CertPEM(), key: key},
		{name: "refuses the key of another CA", cert: ca.CertPEM(), key: otherKey, fails: "does not belong"},
		{name: "refuses a certificate that is no CA", cert: leaf.CertPEM, key: leaf.KeyPEM, fails: "is not a CA"},
		{name: "refuses what is not PEM", cert: []byte("x"), key: key, fails: "not PEM"},
		{name: "refuses a damaged certificate", cert: block("CERTIFICATE", []byte("x")), key: key, fails: "parsing the CA " +
			"certificate"},
		{name: "refuses a missing key", cert: ca.CertPEM(), fails: "no private key"},
		{name: "refuses a damaged key", cert: ca.CertPEM(), key: block("PRIVATE KEY", []byte("x")), fails: "parsing the " +
			"private key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			loaded, err := LoadCA(tt.cert, tt.key)
			if (err != nil) != (tt.fails != "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Fatalf("got %v, want %q", err, tt.fails)
			}
			if err == nil && !loaded.Certificate().Equal(ca.Certificate()) {
				t.Error("another certificate came back")
			}
		})
	}
}

func TestCAReturnsCopies(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t)
	ca.CertPEM()[0] = 'x'
	if ca.CertPEM()[0] != '-' {
		t.Error("a caller can change the CA")
	}
}

// TestKeyIdentifiers shows that certificates of this package, including the root, have key identifiers.
func TestKeyIdentifiers(t *testing.T) {
	t.Parallel()
	ca, other := newTestCA(t), newTestCA(t)
	root := ca.Certificate()
	if len(root.SubjectKeyId) == 0 || !bytes.Equal(root.AuthorityKeyId, root.SubjectKeyId) {
		t.Errorf("the root has key identifier %x and authority key identifier %x", root.SubjectKeyId, root.AuthorityKeyId)
	}
	if bytes.Equal(root.SubjectKeyId, other.Certificate().SubjectKeyId) {
		t.Error("two keys have the same identifier")
	}
	pair := must.Get(ca.IssueServing(SANs{DNSNames: []string{testName}}, testNow(), day))(t)
	if leaf := parsePair(t, pair); !bytes.Equal(leaf.AuthorityKeyId, root.SubjectKeyId) {
		t.Errorf("the leaf has authority key identifier %x, want %x", leaf.AuthorityKeyId, root.SubjectKeyId)
	}
}

// TestPythonsStrictMode connects with Python, whose default since 3.13 is OpenSSL's strict mode.
func TestPythonsStrictMode(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on the PATH")
	}
	ca := must.Get(NewCA("Strict CA", time.Now(), 10*365*day))(t)
	names := SANs{DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	pair := must.Get(ca.IssueServing(names, time.Now(), day))(t)
	certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(bundle, ca.CertPEM(), 0o600))
	const program = `
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.verify_flags |= ssl.VERIFY_X509_STRICT
for name in ("localhost", "127.0.0.1"):
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as plain:
        context.wrap_socket(plain, server_hostname=name).close()
`
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), python, "-c", program, bundle, port).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
