package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// balancer simulates a Service and its kubelet: it probes the readiness of the replicas, and sends each new connection
// to a ready one. Existing connections stay.
type balancer struct {
	listener net.Listener
	replicas []*devinstall.Agent
	ready    []atomic.Bool
	next     atomic.Int64
	busy     sync.WaitGroup
}

func startBalancer(t *testing.T, replicas ...*devinstall.Agent) *balancer {
	t.Helper()
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	b := &balancer{listener: listener, replicas: replicas, ready: make([]atomic.Bool, len(replicas))}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	for i := range replicas {
		b.busy.Go(func() { b.probe(ctx, i) })
	}
	b.busy.Go(func() { b.accept(ctx) })
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		b.busy.Wait()
	})
	return b
}

func (b *balancer) probe(ctx context.Context, i int) {
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, 500*time.Millisecond) // like a load balancer's probe
		b.ready[i].Store(b.replicas[i].Ready(attempt) == nil)
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (b *balancer) waitForAll(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		if !b.ready[0].Load() || !b.ready[1].Load() {
			return errors.New("the balancer does not know yet that the replicas are ready")
		}
		return nil
	})
}

func (b *balancer) accept(ctx context.Context) {
	for {
		from, err := b.listener.Accept()
		if err != nil {
			return
		}
		to, err := b.dial(ctx)
		if err != nil {
			_ = from.Close()
			continue
		}
		closeBoth := context.AfterFunc(ctx, func() { _ = from.Close(); _ = to.Close() })
		b.busy.Go(func() { pass(to, from) })
		b.busy.Go(func() { pass(from, to); closeBoth() })
	}
}

func (b *balancer) dial(ctx context.Context) (net.Conn, error) {
	for range b.replicas {
		i := int(b.next.Add(1)) % len(b.replicas)
		if b.ready[i].Load() {
			return (&net.Dialer{}).DialContext(ctx, "tcp", b.replicas[i].ProxyAddress())
		}
	}
	return nil, errors.New("no replica is ready")
}

// pass copies one direction, and then closes it.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.(*net.TCPConn).CloseWrite()
}

// TestARollingRestartLosesNothing restarts two replicas in turn, several times, under load of clients that keep their
// connections. No request fails, whether or not it can be retried.
func TestARollingRestartLosesNothing(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "rollout-cert", pairData(w.issue(t, "localhost")))
	replicas := make([]*devinstall.Agent, 2)
	defer func() { // the other tests need their own replicas
		for _, replica := range replicas {
			if replica != nil {
				if err := replica.Stop(); err != nil {
					t.Error(err)
				}
			}
		}
		if err := w.PointAt(t.Context(), w.agents[0]); err != nil {
			t.Error(err)
		}
		if err := w.WaitAvailable(t.Context()); err != nil {
			t.Error(err)
		}
		w.leader(t)
	}()
	// They also write an audit log. No line may be missing afterwards.
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	must.Do(t, os.WriteFile(
		policy,
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"),
		0o600,
	))
	logs := make([]string, 2)
	for i, name := range []string{"rolled-a", "rolled-b"} {
		logs[i] = filepath.Join(t.TempDir(), "audit.log")
		replicas[i] = must.Get(w.StartAgent(t.Context(), name, "shutdownDelay=3s",
			"audit.policyFile="+policy, "audit.logPath="+logs[i]))(t)
		waitReady(t, replicas[i])
	}
	b := startBalancer(t, replicas...)
	b.waitForAll(t)

	load := startLoad(t, w, b.listener.Addr().(*net.TCPAddr).Port)
	restarts := 0
	for range 3 {
		for _, replica := range replicas {
			before := load.requests.Load()
			testkit.Eventually(t, time.Minute, func() error {
				if load.requests.Load() < before+100 {
					return errors.New("there is no load")
				}
				return nil
			})
			must.Do(t, replica.Restart(t.Context()))
			waitReady(t, replica)
			// Like a Deployment: the next one stops when this one is ready.
			b.waitForAll(t)
			restarts++
		}
	}
	load.stop()
	t.Logf("%d requests on %d connections during %d restarts, %d failed", load.requests.Load(), load.dials.Load(),
		restarts, load.failed.Load())
	if load.failed.Load() != 0 {
		t.Errorf("%d requests failed", load.failed.Load())
	}
	if audited := auditedRequests(t, "loader", logs...); audited != int(load.requests.Load()) {
		t.Errorf("%d of %d requests are in the audit logs", audited, load.requests.Load())
	}
	if load.dials.Load() < 24 {
		t.Errorf("the clients dialled %d times: they cannot have met the restarts", load.dials.Load())
	}
}

// auditedRequests counts the requests of a user in audit logs.
func auditedRequests(t *testing.T, user string, paths ...string) int {
	t.Helper()
	ids := map[string]bool{}
	for _, path := range paths {
		content := must.Get(os.ReadFile(path))(t)
		for line := range bytes.Lines(content) {
			var event struct {
				AuditID string
				User    struct{ Username string }
			}
			if err := json.Unmarshal(line, &event); err != nil {
				t.Fatalf("%s: %q: %v", path, line, err)
			}
			if event.User.Username == user {
				ids[event.AuditID] = true
			}
		}
	}
	return len(ids)
}

func waitReady(t *testing.T, replica *devinstall.Agent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.Do(t, replica.WaitReady(ctx))
}

// load has 16 workers: half use HTTP/1.1 and half HTTP/2; half read and half write.
type load struct {
	requests, failed, dials atomic.Int64
	stop                    func()
}

func startLoad(t *testing.T, w *world, port int) *load {
	t.Helper()
	roots := trusting(w.pki.CertPEM())
	identity := w.certificateOf(t, "loader", "system:masters")
	l := &load{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var workers sync.WaitGroup
	l.stop = func() { cancel(); workers.Wait() }
	t.Cleanup(l.stop)
	for i := range 16 {
		protocol := []string{"http/1.1", "h2"}[i%2]
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{
				RootCAs: roots, Certificates: []tls.Certificate{identity}, MinVersion: tls.VersionTLS12,
				NextProtos: []string{protocol}, ServerName: "localhost",
			},
			ForceAttemptHTTP2: protocol == "h2",
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				l.dials.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
		}
		method, path, body := http.MethodGet, "/api/v1/namespaces/default", ""
		if i%4 < 2 {
			method, path = http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All"
			body = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"of-the-load"}}`
		}
		url := fmt.Sprintf("https://127.0.0.1:%d%s", port, path)
		workers.Go(func() {
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				if err := call(transport, 30*time.Second, method, url, body); err != nil {
					l.failed.Add(1)
					t.Errorf("%s over %s: %v", method, protocol, err)
				}
				l.requests.Add(1)
			}
		})
	}
	return l
}

// call sends one request, which the end of the load does not cancel.
func call(transport http.RoundTripper, limit time.Duration, method, url, body string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end below
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", response.Status, said)
	}
	return nil
}
