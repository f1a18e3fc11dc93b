package concierge_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestUnauthenticatedClientsAtTheAPIsPort has a pod of the cluster open many connections and send endless large
// headers. The kubelet's probes and users are served, and few of these connections stay open.
func TestUnauthenticatedClientsAtTheAPIsPort(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	a := startAgent(t, cluster)
	user := must.Get(cluster.User("ann"))(t)
	a.waitServed(t, user)
	const connections, each, most = 200, 64 << 10, 16 // 1 MiB in all
	replaced := make(chan struct{}, connections)
	header := "GET / HTTP/1.1\r\nHost: agent\r\n" + strings.Repeat("a:b\r\n", 100_000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range connections {
		dialer := &tls.Dialer{
			// not the kubelet's address
			NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}},
			Config:    &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
		}
		conn := must.Get(dialer.DialContext(t.Context(), "tcp", a.address))(t)
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		go func() {
			_, err := conn.Write([]byte(header[:each]))
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			// The header timeout ends connections differently.
			if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
				replaced <- struct{}{}
			}
		}()
	}
	for range connections - most {
		select {
		case <-replaced:
		case <-time.After(time.Minute):
			t.Fatal("too many connections of unauthenticated clients stay open")
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if code, response, err := sendBy(t.Context(), kubelet(), http.MethodGet, "https://"+a.address+path, ""); err != nil ||
			code != http.StatusOK {
			t.Errorf("the kubelet asked for %s and got %d, %v: %s", path, code, err, response)
		}
	}
	a.waitServed(t, user)
	if a.port.Open() == a.port.Unauthenticated() {
		t.Error("the API server's connections count as unauthenticated")
	}
}

// kubelet is a client without credentials that uses a new connection for each request.
func kubelet() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true,
			MinVersion:         tls.VersionTLS12,
		},
		DisableKeepAlives: true,
	}}
}

// waitServed waits until the agent serves a user through the API server.
func (a *agent) waitServed(t *testing.T, user *rest.Config) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		code, response, err := send(t.Context(), user, http.MethodPost, whoAmIPath, whoAmIRequest)
		if err == nil && (code != http.StatusCreated || !strings.Contains(response, "ann")) {
			err = fmt.Errorf("a user got %d: %s", code, response)
		}
		return err
	})
}
