package getkubeconfig

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

// clusterAt returns a kubeconfig for a server.
func clusterAt(server string, caBundle []byte) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: caBundle}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "x"
	return config
}

func serve(t *testing.T, names certs.SANs, issued time.Time, lifetime time.Duration) *discoverytest.Server {
	t.Helper()
	ca, err := certs.NewCA("CA", time.Now().Add(-48*time.Hour), 96*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.IssueServing(names, issued, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	server, err := discoverytest.NewServing("pinniped.dev", ca, serving)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// TestCertainFailures checks that permanent failures end at once, although an hour is left.
func TestCertainFailures(t *testing.T) {
	t.Parallel()
	loopback := certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	now := time.Now()
	good := serve(t, loopback, now, time.Hour)
	unrelated, err := certs.NewCA("unrelated", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	wrongName := serve(t, certs.SANs{DNSNames: []string{"proxy.example.com"}}, now, time.Hour)
	expired := serve(t, loopback, now.Add(-24*time.Hour), time.Hour)
	early := serve(t, loopback, now.Add(24*time.Hour), time.Hour)
	plain := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = plain.Serve(listener) }()
	t.Cleanup(func() { _ = plain.Close() })

	for _, test := range []struct {
		name       string
		server     string
		bundle     []byte
		says, hint string
	}{
		{
			name: "names a CA bundle that does not verify", server: good.URL, bundle: unrelated.CertPEM(),
			says: "unknown authority", hint: "CA bundle does not verify",
		},
		{name: "names missing system roots", server: good.URL, says: "unknown authority", hint: "CA bundle does not verify"},
		{
			name: "names a wrong host", server: wrongName.URL, bundle: wrongName.CA.CertPEM(),
			says: "doesn't contain any IP SANs", hint: "not valid for this host",
		},
		{name: "names an expired certificate", server: expired.URL, bundle: expired.CA.CertPEM(), says: "expired or is not " +
			"yet valid", hint: "renew it"},
		{
			name: "names a certificate that is not yet valid", server: early.URL, bundle: early.CA.CertPEM(),
			says: "expired or is not yet valid", hint: "clock",
		},
		{
			name: "names a server without TLS", server: "https://" + listener.Addr().String(), bundle: good.CA.CertPEM(),
			says: "server gave HTTP response", hint: "check which server listens",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			o := &Options{Progress: &ui.Progress{}, PollInterval: time.Hour, Timeout: time.Hour}
			err := o.tryConnection(ctx, clusterAt(test.server, test.bundle))
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(ui.HintOf(err), test.hint) {
				t.Errorf("want an error that says %q and hints %q, got %v, %q", test.says, test.hint, err, ui.HintOf(err))
			}
		})
	}
}

// TestWaitsForAnEndpoint checks an endpoint that closes the first connections, like a load balancer without backends.
func TestWaitsForAnEndpoint(t *testing.T) {
	t.Parallel()
	server := serve(t, certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour)
	var tries atomic.Int32
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	// Close the first connections, then forward to the real server.
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			if tries.Add(1) <= 3 {
				_ = connection.Close()
				continue
			}
			go pass(connection, strings.TrimPrefix(server.URL, "https://"))
		}
	}()
	var stderr bytes.Buffer
	o := &Options{Progress: &ui.Progress{Out: &stderr}, PollInterval: time.Millisecond, Timeout: time.Minute}
	if err := o.tryConnection(
		t.Context(),
		clusterAt("https://"+listener.Addr().String(), server.CA.CertPEM()),
	); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"could not immediately connect to the cluster but it may be initializing", "✓ validated connection to the cluster",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("want progress that says %q, got:\n%s", want, &stderr)
		}
	}
	if got := tries.Load(); got < 4 {
		t.Errorf("want at least 4 tries, got %d", got)
	}
	// From here on, the agent counts the kubeconfig as a client.
	if !slices.ContainsFunc(server.Requests(), func(r discoverytest.Request) bool { return r.Path == trustbundle.Path }) {
		t.Errorf("want the trust bundle fetched, got %v", server.Requests())
	}
}

func TestGivesUpWithTheCause(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	const limit = 2 * time.Second // time for one attempt on a busy machine
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	o := &Options{Progress: &ui.Progress{}, PollInterval: 50 * time.Millisecond, Timeout: limit}
	err = o.tryConnection(ctx, clusterAt("https://"+listener.Addr().String(), nil))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") ||
		ui.ExitCodeOf(err) != ui.ExitTimedOut {
		t.Errorf("want a passed deadline with the cause, got %v", err)
	}
}

// pass copies data between a connection and the server at address.
func pass(connection net.Conn, address string) {
	defer func() { _ = connection.Close() }()
	upstream, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	go func() {
		_, _ = io.Copy(upstream, connection)
		_ = upstream.Close()
	}()
	_, _ = io.Copy(connection, upstream)
}
