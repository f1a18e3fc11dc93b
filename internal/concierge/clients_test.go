package concierge

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestUnauthenticatedClientsMayProbe checks what a client other than the front proxy may send: the kubelet's probes,
// one at a time. The connection is closed after the response.
func TestUnauthenticatedClientsMayProbe(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("front proxy CA", time.Now(), time.Hour))(t)
	began, release := make(chan struct{}), make(chan struct{})
	port := listener.New(flowcontrol.New(flowcontrol.APILimitsFor(flowcontrol.DefaultMemory, 2)))
	server := httptest.NewUnstartedServer(port.Handler(onlyFrontProxy(
		http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.RawQuery == "slow" {
				close(began)
				<-release
			}
			w.WriteHeader(http.StatusOK)
		}),
		func(leaf *x509.Certificate) bool { return leaf.Subject.CommonName == "front-proxy-client" },
	), tooMany))
	server.Listener = port.Listen(server.Listener)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	client := func(name string) *http.Client {
		pair := must.Get(ca.IssueClient(certs.ClientIdentity{Username: name}, time.Now(), time.Hour))(t)
		certificate := must.Get(tls.X509KeyPair(pair.CertPEM, pair.KeyPEM))(t)
		return &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
		}}}
	}
	ask := func(client *http.Client, method, path string) (code int, closes bool) {
		req := must.Get(http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody))(t)
		res := must.Get(client.Do(req))(t)
		defer res.Body.Close() //nolint:errcheck // only the head counts
		return res.StatusCode, res.Header.Get("Connection") == "close" || res.Close
	}
	const logins = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests"
	for _, test := range []struct {
		method, path, who string
		want              int
	}{
		{"GET", "/livez", "other", 200},
		{"HEAD", "/readyz?verbose", "other", 200},
		{"POST", "/livez", "other", 403},
		{"GET", "/livez/x", "other", 403},
		{"GET", "/apis", "other", 403},
		{"POST", logins, "other", 403},
		{"POST", logins, "front-proxy-client", 200},
	} {
		if got, _ := ask(client(test.who), test.method, test.path); got != test.want {
			t.Errorf("%s %s by %s: want %d, got %d", test.method, test.path, test.who, test.want, got)
		}
	}
	if got := port.Open() - port.Unauthenticated(); got != 1 {
		t.Errorf("want the connection of the front proxy known, got %d", got)
	}
	other, responses := client("other"), make(chan int, 1)
	go func() {
		code, _ := ask(other, http.MethodGet, "/livez?slow")
		responses <- code
	}()
	<-began
	if second, _ := ask(other, http.MethodGet, "/livez"); second != http.StatusTooManyRequests {
		t.Errorf("want the second probe at a time refused on one connection, got %d", second)
	}
	close(release)
	if first := <-responses; first != http.StatusOK {
		t.Errorf("want the first probe served, got %d", first)
	}
}
