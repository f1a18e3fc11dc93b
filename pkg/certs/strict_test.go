package certs

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

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
