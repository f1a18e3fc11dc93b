package devcluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// prober checks the health of a program, each time over a new connection, so that a restart does not break it.
type prober struct {
	base   string
	client *http.Client
}

// newProber returns a prober for the program at base, whose serving certificate caBundle verifies. identity is the
// client certificate, or nil.
func newProber(base string, caBundle []byte, identity *certs.KeyPair) (*prober, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(caBundle) {
		return nil, errors.New("no certificate in the CA bundle")
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if identity != nil {
		certificate, err := tls.X509KeyPair(identity.CertPEM, identity.KeyPEM)
		if err != nil {
			return nil, fmt.Errorf("loading the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return &prober{base: base, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
	}}, nil
}

// check returns nil when a GET of path returns 200.
func (p *prober) check(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if response.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("GET %s: %s: %w", path, response.Status, err)
	}
	return fmt.Errorf("GET %s: %s: %s", path, response.Status, failedChecks(string(body)))
}

// failedChecks reduces the response of /readyz to the failed checks. It returns other responses unchanged.
func failedChecks(body string) string {
	var failed []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	if len(failed) == 0 {
		return strings.TrimSpace(body)
	}
	return strings.Join(failed, "; ")
}
