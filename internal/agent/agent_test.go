package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestProxyRunnerSaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	taken := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer taken.Close() //nolint:errcheck // only the address matters
	runner := &proxyRunner{life: t.Context(), address: taken.Addr().String()}
	if err := runner.Start(
		t.Context(),
	); err == nil ||
		!strings.Contains(err.Error(), "listening on "+taken.Addr().String()) {
		t.Errorf("a port in use: %v", err)
	}

	insecure := &rest.Config{Host: "http://127.0.0.1:1"}
	runner = &proxyRunner{
		life: t.Context(), address: "127.0.0.1:0", options: proxy.Options{Agent: insecure, Upstream: insecure},
	}
	if err := runner.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "is not https") {
		t.Errorf("an API server without TLS: %v", err)
	}
	if runner.Serving() {
		t.Error("it claims to serve")
	}
	if err := runner.Ready(); err == nil || err.Error() != "the impersonation proxy does not listen" {
		t.Errorf("it is ready, or says %v", err)
	}
	if err := runner.Stop(t.Context()); err != nil {
		t.Errorf("stopping what does not run: %v", err)
	}
	runner.Wait()
}

func TestSignerBundleFollowsTheSigner(t *testing.T) {
	t.Parallel()
	s := &signer.Signer{}
	bundle := signerBundle(s)
	if bundle() != nil {
		t.Fatal("there is a bundle before there is a signer")
	}
	load := func(name string) {
		ca := must.Get(certs.NewCA(name, time.Now(), time.Hour))(t)
		s.Load(ca, nil)
	}
	load("first")
	first := bundle()
	if first == nil || !bytes.Equal(first, s.Current().Bundle()) {
		t.Fatal("the bundle is not the signer's")
	}
	load("second")
	if second := bundle(); bytes.Equal(second, first) || !bytes.Equal(second, s.Current().Bundle()) {
		t.Error("the bundle did not follow the signer")
	}
	s.Clear()
	if bundle() != nil {
		t.Error("there is a bundle after the signer is gone")
	}
}

func TestTriggersNeverBlock(t *testing.T) {
	t.Parallel()
	var all triggers
	first, firstWoken := all.add()
	_, secondWoken := all.add()
	for range 3 {
		first(types.NamespacedName{Name: "a"}) // without a listener
	}
	all.fireAll()
	if len(firstWoken) != 1 || len(secondWoken) != 1 {
		t.Errorf("%d and %d events wait, want one each", len(firstWoken), len(secondWoken))
	}
}

// TestRunWithoutACluster is not parallel, because Run sets the loggers of the process.
func TestRunWithoutACluster(t *testing.T) {
	config := must.Get(load(t, ""))(t)
	var log bytes.Buffer
	missing := filepath.Join(t.TempDir(), "missing")
	if err := Run(
		t.Context(),
		Options{Kubeconfig: missing, LogOutput: &log},
		config,
	); err == nil ||
		!strings.Contains(err.Error(), missing) {
		t.Errorf("a kubeconfig that does not exist: %v", err)
	}
}

// TestWaitsForTheAPIServer starts the agent without an API server: the agent logs that once, and ends with the context.
// It is not parallel, because Run sets the loggers of the process.
func TestWaitsForTheAPIServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const unreachable = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"secret-token"}}]}`
	must.Do(t, os.WriteFile(path, []byte(unreachable), 0o600))
	config := must.Get(load(t, ""))(t)
	config.AggregatedAPIServerPort = 0 // any free one
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	log := &testkit.Buffer{}
	if err := Run(ctx, Options{Kubeconfig: path, BindAddress: "127.0.0.1", LogOutput: log}, config); err != nil {
		t.Errorf("an end while it waits is no error: %v", err)
	}
	waits := 0
	for line := range strings.Lines(log.String()) {
		var entry struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("a line of the log is not JSON: %q", line)
		}
		if strings.HasPrefix(entry.Msg, "Failed to read the CredentialIssuer API") {
			waits++
		}
	}
	if waits != 1 {
		t.Errorf("it logged %d times that it waits:\n%s", waits, log)
	}
	if strings.Contains(log.String(), "secret-token") {
		t.Error("the log holds a token")
	}
}
