package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
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
	if err := runner.Ready(); err == nil || err.Error() != "the impersonation proxy is not listening" {
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

// TestOldCluster asks API servers of several versions; the status and `get kubeconfig` show the finding.
func TestOldCluster(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.28.15": "Kubernetes 1.28.15 is not supported, the oldest supported version is 1.29",
		"v1.29.0":  "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != "/version" {
				http.NotFound(w, req)
				return
			}
			_, _ = io.WriteString(w, `{"gitVersion":"`+version+`"}`)
		}))
		t.Cleanup(server.Close)
		got := (&agent{kube: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})}).oldCluster(t.Context())
		switch {
		case want == "" && got != nil:
			t.Errorf("%s: %+v", version, got)
		case want != "" && (got == nil || got.Code != configv1alpha1.CodeKubernetesTooOld ||
			!strings.HasPrefix(got.Message, want)):
			t.Errorf("%s: got %+v, want %s", version, got, want)
		}
	}
}

func TestAccountIn(t *testing.T) {
	t.Parallel()
	for username, want := range map[string]string{
		"system:serviceaccount:ns:agent":    "agent",
		"system:serviceaccount:other:agent": "",
		"kubernetes-admin":                  "",
	} {
		if got := accountIn("ns", username); got != want {
			t.Errorf("%s: got %q, want %q", username, got, want)
		}
	}
}

func TestTrustBundle(t *testing.T) {
	t.Parallel()
	a := &agent{config: &Config{TrustBundleEndpoint: "disabled"}}
	if a.trustBundle() != nil {
		t.Error("it is not off")
	}
	a.config.TrustBundleEndpoint = "enabled"
	shown := a.trustBundle()
	if shown() != nil {
		t.Error("there is a bundle before one is published")
	}
	ca := must.Get(certs.NewCA("ca", time.Now(), time.Hour))(t)
	for _, bundle := range [][]byte{nil, ca.CertPEM()} {
		a.bundle.set(bundle, true)
		if found, err := trustbundle.Decode(bytes.NewReader(shown())); err != nil || !bytes.Equal(found, bundle) {
			t.Errorf("want the published bundle, got %q, %v", found, err)
		}
	}
	a.bundle.set(bytes.Repeat([]byte("x"), trustbundle.MaxSize), true)
	if shown() != nil {
		t.Error("a bundle that is too large is shown")
	}
	a.bundle.set([]byte("x"), false)
	if shown() != nil {
		t.Error("a bundle that is no longer published is still returned")
	}
}

// sink accepts events as the API server does.
type sink chan string

func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	s <- event.Message
	return event, nil
}

func (s sink) Update(event *corev1.Event) (*corev1.Event, error) { return event, nil }

func (s sink) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) { return event, nil }

// TestNoTransitionIsLost records the events of an hour in which a certificate is replaced and refused forty times.
func TestNoTransitionIsLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	scheme := runtime.NewScheme()
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	const transitions = 40
	events := make(sink, 2*transitions)
	recorder := newRecorder(ctx, scheme, events, "pod")
	issuer := &configv1alpha1.CredentialIssuer{ObjectMeta: metav1.ObjectMeta{Name: "config", UID: "u-1"}}
	for i := range transitions {
		for _, event := range []struct{ kind, reason string }{
			{corev1.EventTypeNormal, "Serving"}, {corev1.EventTypeWarning, "KeyMismatch"},
		} {
			want := fmt.Sprintf("%s %d", event.reason, i)
			recorder.Event(issuer, event.kind, event.reason, want)
			if got := <-events; got != want {
				t.Fatalf("it says %q instead of %q", got, want)
			}
		}
	}
}
