package concierge_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestAFloodAtTheAPIServer sends logins to the API server directly, not through the proxy, with a webhook that does not
// respond: few of them are at the webhook at a time, and users who are logged in are not affected.
func TestAFloodAtTheAPIServer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	a := startAgent(t, cluster)
	release := make(chan struct{})
	var now, most atomic.Int64
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1beta1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err == nil && review.Spec.Token == "slow" {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			now.Add(-1)
		}
		review.Status = authenticationv1beta1.TokenReviewStatus{
			Authenticated: true, User: authenticationv1beta1.UserInfo{Username: "pinny"},
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(webhook.Close)
	ended := sync.OnceFunc(func() { close(release) })
	t.Cleanup(ended)
	a.createAuthenticator(t, "webhook", webhook.URL,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}))
	anonymous := rest.AnonymousClientConfig(cluster.AdminConfig())
	testkit.Eventually(t, time.Minute, func() error { return a.exchanged(t, tokenRequest("", "quick", "webhook")) })
	testkit.Eventually(t, time.Minute, func() error { return a.loginsHaveAQueue(t, anonymous) })

	const logins = 80
	var served, refused atomic.Int64
	var flood sync.WaitGroup
	for range logins {
		flood.Go(func() {
			code, response, err := a.login(t, tokenRequest("", "slow", "webhook"))
			switch {
			case err == nil && code == http.StatusCreated && strings.Contains(response, "clientCertificateData"):
				served.Add(1)
			case err == nil && code == http.StatusTooManyRequests:
				refused.Add(1)
			default:
				t.Errorf("a login ended with %d, %v: %s", code, err, response)
			}
		})
	}
	testkit.Eventually(t, time.Minute, func() error {
		if now.Load() != 12 {
			return fmt.Errorf("%d logins are at the webhook", now.Load())
		}
		return nil
	})
	user := must.Get(cluster.User("ann"))(t)
	for range 50 {
		code, response, err := send(t.Context(), user, http.MethodPost, whoAmIPath, whoAmIRequest)
		if err != nil || code != http.StatusCreated || !strings.Contains(response, "ann") {
			t.Fatalf("a user who is logged in got %d, %v: %s", code, err, response)
		}
		if code, response, err = send(t.Context(), user, http.MethodGet, "/apis", ""); err != nil || code != http.StatusOK {
			t.Fatalf("a user who is logged in got %d, %v: %s", code, err, response)
		}
	}
	if served.Load() != 0 {
		t.Error("the flood had ended by then")
	}
	ended()
	flood.Wait()
	if most.Load() > 12 || served.Load()+refused.Load() != logins {
		t.Errorf("%d logins were at the webhook at a time; %d were served, %d refused", most.Load(), served.Load(),
			refused.Load())
	}
}

// loginsHaveAQueue returns nil when the API server assigns the login of an unauthenticated client to its priority
// level.
func (a *agent) loginsHaveAQueue(t *testing.T, anonymous *rest.Config) error {
	t.Helper()
	admin, err := kubernetes.NewForConfig(a.cluster.AdminConfig())
	if err != nil {
		return err
	}
	var level *flowcontrolv1.PriorityLevelConfiguration
	if level, err = admin.FlowcontrolV1().PriorityLevelConfigurations().
		Get(t.Context(), "pinniped-concierge-logins", metav1.GetOptions{}); err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, anonymous.Host+loginPath,
		strings.NewReader(tokenRequest("", "quick", "webhook")))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only the header counts
	if got := types.UID(response.Header.Get("X-Kubernetes-PF-PriorityLevel-UID")); got != level.UID {
		return fmt.Errorf("a login is at priority level %s", got)
	}
	return nil
}

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
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
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
