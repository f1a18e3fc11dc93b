package integration

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// startForwarder starts an HTTP proxy that forwards connections for one name, which is not in DNS, to an address.
// tunneled returns the number of connections.
func startForwarder(t *testing.T, name, address string) (server *httptest.Server, tunneled func() int) {
	t.Helper()
	var mu sync.Mutex
	var count int
	server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodConnect || req.Host != name {
			http.Error(rw, "this proxy forwards only to "+name, http.StatusForbidden)
			return
		}
		upstream, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		defer upstream.Close() //nolint:errcheck // both sides are done
		mu.Lock()
		count++
		mu.Unlock()
		rw.WriteHeader(http.StatusOK)
		conn, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // both sides are done
		go func() {
			_, _ = io.Copy(upstream, buffered)
			_ = upstream.Close()
		}()
		_, _ = io.Copy(conn, upstream)
	}))
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)
	return server, func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

// TestThroughAnHTTPProxy has an administrator and a user who reach the impersonation proxy only through an HTTP proxy:
// by HTTPS_PROXY, and by proxy-url in the kubeconfig.
func TestThroughAnHTTPProxy(t *testing.T) {
	w := needsCluster(t)
	const endpoint = "kubernetes.example.com:443" // not in DNS
	w.external(t, "forwarded-tls", pairData(w.issue(t, "localhost", "kubernetes.example.com")))
	forwarder, tunneled := startForwarder(t, endpoint, w.agents[0].ProxyAddress())
	environment := []string{"HTTPS_PROXY=" + forwarder.URL}
	bundle := fileWith(t, "ca.pem", w.pki.CertPEM())
	admin := func(want int, args ...string) result {
		t.Helper()
		before := tunneled()
		got := w.runWith(t, environment, nil, w.cli, append(args, "--kubeconfig="+w.Cluster.AdminKubeconfig())...)
		if got.code != want {
			t.Fatalf("%v ended with %d, want %d\nstdout: %s\nstderr: %s", args, got.code, want, got.out, got.errOut)
		}
		if tunneled() == before {
			t.Errorf("%v did not connect through the HTTP proxy", args)
		}
		return got
	}
	admin(0, "ip-tls", "set", "--secret=forwarded-tls", "--external-endpoint="+endpoint, "--timeout=30s")
	admin(0, "ip-tls", "check", "--endpoint="+endpoint, "--ca-bundle="+bundle)
	admin(0, "ip-tls", "status")
	user := admin(0, "get", "kubeconfig", "--static-token=pinny:password123", "--concierge-authenticator-type=webhook",
		"--concierge-authenticator-name=local-user-authenticator", "--concierge-mode=ImpersonationProxy").out

	path := filepath.Join(t.TempDir(), "kubeconfig")
	kubectl := func(environment ...string) result {
		t.Helper()
		return w.runWith(t, environment, nil, w.kubectl, "--kubeconfig="+path, "auth", "whoami")
	}
	must.Do(t, os.WriteFile(path, []byte(user), 0o600))
	if got := kubectl(environment...); got.code != 0 || !strings.Contains(got.out, "pinny") {
		t.Errorf("with HTTPS_PROXY, kubectl ended with %d: %s%s", got.code, got.out, got.errOut)
	}
	if got := kubectl(append(environment, "NO_PROXY=.example.com")...); got.code == 0 {
		t.Error("kubectl works although NO_PROXY names a host that nothing resolves")
	}

	config := must.Get(clientcmd.Load([]byte(user)))(t)
	for _, cluster := range config.Clusters {
		cluster.ProxyURL = forwarder.URL
	}
	must.Do(t, clientcmd.WriteToFile(*config, path))
	if got := kubectl(); got.code != 0 || !strings.Contains(got.out, "pinny") {
		t.Errorf("with proxy-url, kubectl ended with %d: %s%s", got.code, got.out, got.errOut)
	}

	forwarder.Close() // the error must name it
	got := w.runWith(t, environment, nil, w.cli, "ip-tls", "status", "--kubeconfig="+w.Cluster.AdminKubeconfig())
	if got.code == 0 || !strings.Contains(got.out+got.errOut, forwarder.URL) {
		t.Errorf("status ended with %d and does not name the HTTP proxy:\n%s%s", got.code, got.out, got.errOut)
	}
}

// loadBalancer starts a load balancer on an address of this computer, until the end of the test.
func (w *world) loadBalancer(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Skipf("this computer cannot listen on %s: %v", address, err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // both sides are done
				upstream, err := net.Dial("tcp", w.agents[0].ProxyAddress())
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(upstream, conn)
					_ = upstream.Close()
				}()
				_, _ = io.Copy(conn, upstream)
			}()
		}
	}()
	return listener
}

// TestIPv6Endpoint has an IPv6 address as the endpoint.
func TestIPv6Endpoint(t *testing.T) {
	w := needsCluster(t)
	endpoint := w.loadBalancer(t, "[::1]:0").Addr().String()
	sans := certs.SANs{DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv6loopback}}
	pair := must.Get(w.pki.IssueServing(sans, time.Now(), 90*24*time.Hour))(t)
	w.external(t, "ipv6-tls", pairData(pair))
	for _, args := range [][]string{{"ip-tls", "set", "--secret=ipv6-tls", "--external-endpoint=" + endpoint}, {"ip-tls", "check"}, {"ip-tls", "status"}} {
		w.asAdmin(t, args...).ok(t)
	}
	path := w.userKubeconfig(t, "pinny:password123")
	config := must.Get(clientcmd.LoadFromFile(path))(t)
	if server := config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server; server != "https://"+endpoint {
		t.Errorf("the kubeconfig has %s, want https://%s", server, endpoint)
	}
	if out := w.kubectlAs(t, path, "auth", "whoami").ok(t).out; !strings.Contains(out, "pinny") {
		t.Errorf("kubectl auth whoami said %s", out)
	}
}
