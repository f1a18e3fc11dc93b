package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestSwapUnderLoad replaces the certificate repeatedly under load: some clients keep their connections, others open a
// new one for each request. No request and no kept connection fails.
func TestSwapUnderLoad(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "loaded-cert", pairData(w.issue(t, "localhost")))
	roots := trusting(w.pki.CertPEM())
	load := w.load(t, roots)
	for range 20 {
		next := w.issue(t, "localhost")
		w.putSecret(t, "loaded-cert", pairData(next))
		w.allPresent(t, 2*time.Second, next)
	}
	load.stop(t)
}

// fetch gets url.
func fetch(transport http.RoundTripper, url string) error {
	return call(transport, 10*time.Second, http.MethodGet, url, "")
}

// TestSwitchedOffAndOn disables the proxy and enables it again. While it is disabled, it does not listen, and logins
// fail, because no server would accept the client certificates.
func TestSwitchedOffAndOn(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.external(t, "switched-cert", pairData(pair))
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)

	w.configure(
		t,
		func(s *configv1alpha1.ImpersonationProxySpec) { s.Mode = configv1alpha1.ImpersonationProxyModeDisabled },
	)
	w.waitForStatus(t, "Disabled", "explicitly disabled")
	w.everyReplica(t, 10*time.Second, func(agent *devinstall.Agent) error {
		if _, err := presented(agent.ProxyAddress()); err == nil {
			return fmt.Errorf("the proxy still listens")
		}
		return agent.Ready(t.Context()) // a disabled proxy is not an error
	})

	w.configure(
		t,
		func(s *configv1alpha1.ImpersonationProxySpec) { s.Mode = configv1alpha1.ImpersonationProxyModeEnabled },
	)
	w.waitForStatus(t, "Listening", "")
	testkit.Eventually(t, 10*time.Second, func() error { return presents(w.agents[0].ProxyAddress(), pair) })
	w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)
}

// standsStill pauses the API server: it accepts connections and never responds. Line one of the status says that users
// get no response.
func (w *world) standsStill(t *testing.T, kubeconfig string) {
	t.Helper()
	signal := func(name string) {
		t.Helper()
		w.succeed(t, "kill", name, strconv.Itoa(w.Cluster.APIServerPID()))
	}
	signal("-STOP")
	defer signal("-CONT")
	asked := time.Now()
	got := w.asAdmin(t, "ip-tls", "status", "--kubeconfigs="+kubeconfig, "--timeout=30s")
	t.Logf("status ended with %d after %s", got.code, time.Since(asked).Round(time.Millisecond))
	line, _, _ := strings.Cut(got.out, "\n")
	if got.code == 0 || !strings.HasPrefix(line, "USERS: no user gets a response") {
		t.Errorf("status ended with %d, and says %q\n%s", got.code, line, got.errOut)
	}
}

// TestTheAPIServerGoesAway stops the API server for longer than a Lease lasts. The replicas keep serving, with status
// 503 meanwhile, and recover by themselves.
func TestTheAPIServerGoesAway(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.external(t, "away-cert", pairData(pair))
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	processes := []int{w.agents[0].PID(), w.agents[1].PID()}
	w.standsStill(t, kubeconfig)
	must.Do(t, w.Cluster.StopAPIServer())
	gone := time.Now()
	roots := trusting(w.pki.CertPEM())
	transport := &http.Transport{
		TLSClientConfig:   clientTLS(roots),
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	err := fetch(transport, "https://"+w.endpoint()+"/version")
	if err == nil || !strings.Contains(err.Error(), "503") ||
		!strings.Contains(err.Error(), `"kind":"Status"`) && !strings.Contains(err.Error(), `"kind": "Status"`) {
		t.Errorf("without an API server: %v", err)
	}
	// The kubelet must neither restart the replicas for it nor take them out of the Service: none is better off, and 503
	// is a response.
	for ; time.Since(gone) < 12*time.Second; time.Sleep(500 * time.Millisecond) {
		for i, agent := range w.agents {
			if err := agent.Live(t.Context()); err != nil {
				t.Fatalf("replica %d is not alive after %s: %v", i, time.Since(gone).Round(time.Second), err)
			}
			if err := agent.Ready(t.Context()); err != nil {
				t.Fatalf("replica %d is not ready after %s: %v", i, time.Since(gone).Round(time.Second), err)
			}
		}
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if waited := time.Since(gone); waited < 17*time.Second { // a Lease lasts 15 s
			return fmt.Errorf("waiting for the Lease to run out: %s", waited)
		}
		return presents(w.agents[0].ProxyAddress(), pair)
	})
	must.Do(t, w.Cluster.RestartAPIServer(t.Context()))
	testkit.Eventually(
		t,
		20*time.Second,
		func() error { return w.run(t, w.cli, "whoami", "--kubeconfig="+kubeconfig).err() },
	)
	for i, agent := range w.agents {
		if !agent.Running() || agent.PID() != processes[i] {
			t.Errorf("replica %d was restarted", i)
		}
	}
	// A leader is elected again, and writes.
	w.putSecret(t, "away-cert", pairData(w.issue(t, "elsewhere.example.com")))
	testkit.Eventually(t, 40*time.Second, func() error {
		if strategy := w.strategy(t); !strings.Contains(strategy.Message, "NameNotCovered") {
			return fmt.Errorf("nobody wrote the status: %s", strategy.Message)
		}
		return nil
	})
}

// TestACleanStopHandsOver stops the leader as a rollout does: requests in flight complete, the process exits, and the
// other replica leads at once.
func TestACleanStopHandsOver(t *testing.T) {
	w := needsCluster(t)
	good := w.issue(t, "localhost")
	w.external(t, "handed-cert", pairData(good))
	leader, other := w.leader(t)
	must.Do(t, leader.Stop())
	stopped := time.Now()
	if log, err := os.ReadFile(leader.Log()); err != nil || !bytes.Contains(log, []byte("terminated signal received")) {
		t.Errorf("the log does not say why the agent has stopped: %v", err)
	}
	testkit.Cleanup(t, func() error { return leader.Restart(context.WithoutCancel(t.Context())) })
	testkit.Eventually(t, 8*time.Second, func() error { // the retry period is 2 s
		if now, _ := w.leader(t); now != other {
			return fmt.Errorf("nobody has taken over")
		}
		return nil
	})
	t.Logf("the other replica led after %s", time.Since(stopped).Round(time.Millisecond))
	if err := presents(other.ProxyAddress(), good); err != nil {
		t.Error(err)
	}
}

// leader returns the replica that leads, and the other one.
func (w *world) leader(t *testing.T) (leader, other *devinstall.Agent) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		holder := strings.TrimSpace(
			w.kubectlDoes(t, "--namespace="+devinstall.Namespace,
				"get", "lease", "pinniped-concierge", "--output=jsonpath={.spec.holderIdentity}"),
		)
		for i, name := range []string{"agent-a", "agent-b"} {
			if name == holder {
				leader, other = w.agents[i], w.agents[1-i]
				return nil
			}
		}
		return fmt.Errorf("the leader is %q", holder)
	})
	return leader, other
}

// TestABodyTooLarge shows that the API server's Status about a body that is too large reaches the client.
func TestABodyTooLarge(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "large-cert", pairData(w.issue(t, "localhost")))
	identity := w.certificateOf(t, "sender", "system:masters")
	roots := trusting(w.pki.CertPEM())
	for _, protocol := range []string{"h2", "http/1.1"} {
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{
				RootCAs:      roots,
				Certificates: []tls.Certificate{identity},
				MinVersion:   tls.VersionTLS12,
				NextProtos:   []string{protocol},
			},
			ForceAttemptHTTP2: protocol == "h2",
		}
		body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"x":"` + strings.Repeat(
			"x",
			4<<20,
		) + `"}}`
		err := call(transport, 30*time.Second, http.MethodPost,
			"https://"+w.endpoint()+"/api/v1/namespaces/default/configmaps?dryRun=All", body)
		transport.CloseIdleConnections()
		if err == nil || !strings.Contains(err.Error(), "413") ||
			!strings.Contains(err.Error(), `"reason":"RequestEntityTooLarge"`) {
			t.Errorf("%s: got %v", protocol, err)
		}
	}
}

// trusting returns the CAs of bundles.
func trusting(bundles ...[]byte) *x509.CertPool {
	roots := x509.NewCertPool()
	for _, bundle := range bundles {
		roots.AppendCertsFromPEM(bundle)
	}
	return roots
}

// certificateOf returns a client certificate of the cluster's CA.
func (w *world) certificateOf(t *testing.T, name string, groups ...string) tls.Certificate {
	t.Helper()
	user := must.Get(w.Cluster.User(name, groups...))(t)
	return must.Get(tls.X509KeyPair(user.CertData, user.KeyData))(t)
}

func clientTLS(roots *x509.CertPool, certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12}
}

// traffic is load on the proxies of both replicas. Half of the clients keep their connection, and half open a new one
// for each request.
type traffic struct {
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	requests atomic.Int64
	dials    atomic.Int64 // of the clients that keep their connection
	failures chan error
}

// keepers is the number of clients that keep their connection.
const keepers = 4

// load sends requests to all replicas, as a known user who trusts only roots.
func (w *world) load(t *testing.T, roots *x509.CertPool) *traffic {
	t.Helper()
	// Like the API server, the proxy closes connections of unauthenticated clients after each response.
	identity := w.certificateOf(t, "ann")
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{cancel: cancel, failures: make(chan error, 100)}
	for i := range 8 {
		keep := i%2 == 0
		url := fmt.Sprintf("https://localhost:%d/version", w.agents[i/2%len(w.agents)].ProxyPort)
		transport := &http.Transport{
			TLSClientConfig:   clientTLS(roots, identity),
			ForceAttemptHTTP2: true,
			DisableKeepAlives: !keep,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if keep {
					l.dials.Add(1)
				}
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
		}
		l.clients.Go(func() {
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				if err := fetch(transport, url); err != nil {
					l.failures <- err
					return
				}
				l.requests.Add(1)
			}
		})
	}
	t.Cleanup(cancel)
	return l
}

// stop ends the load. No request and no kept connection may have failed.
func (l *traffic) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	l.clients.Wait()
	close(l.failures)
	for err := range l.failures {
		t.Errorf("a request failed: %v", err)
	}
	if got := l.dials.Load(); got != keepers {
		t.Errorf("the %d clients that keep their connection dialled %d times", keepers, got)
	}
	t.Logf("%d requests", l.requests.Load())
	if l.requests.Load() < 100 {
		t.Error("that was no load")
	}
}
