package relay

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestUpstreamStatus(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name, method string
		err          error
		code, retry  int32

		problem string
	}{
		{"a request that was never sent can be made again", "POST", dial, 503, 1, problemUnreachable},
		{"also when the name is not known", "POST", &net.DNSError{Err: "no such host"}, 503, 1, problemUnreachable},
		{"also when TLS takes too long", "POST", errors.New("net/http: TLS handshake timeout"), 503, 1, problemUnreachable},
		{"a lost read can be made again", "GET", io.ErrUnexpectedEOF, 503, 1, problemLost},
		{"a lost write must not be made again by itself", "POST", io.ErrUnexpectedEOF, 503, 0, problemLost},
		{"GOAWAY with the body gone is for the client to try again", "PUT", errors.New("http2: Transport: cannot retry err " +
			"[x] after Request.Body was written"), 429, 1, problemRefusedStream},
		{"an identity too large is nobody's outage", "GET", errors.New("http2: request header list larger than peer's " +
			"published limit"), 431, 0, problemTooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var status apierrors.APIStatus
			problem, err := upstreamStatus(&http.Request{Method: test.method}, test.err)
			if problem != test.problem {
				t.Errorf("want problem %s, got %s", test.problem, problem)
			}
			if !errors.As(err, &status) {
				t.Fatalf("want a status, got %v", err)
			}
			got := status.Status()
			var retry int32
			if got.Details != nil {
				retry = got.Details.RetryAfterSeconds
			}
			if got.Code != test.code || retry != test.retry || got.Message == "" {
				t.Errorf("want %d with retry after %d, got %+v", test.code, test.retry, got)
			}
		})
	}
}

// TestFlowSchemaHeaderOfARealAPIServer checks what ownResponse relies on: the API server sets the header on responses
// to authenticated requests, and not on its own 401.
//
// It was run with 1.36. For another version, set KUBEBUILDER_ASSETS to a directory with its etcd and kube-apiserver, as
// setup-envtest creates it:
//
//	KUBEBUILDER_ASSETS=DIR go test ./internal/proxy/relay -run TestFlowSchemaHeaderOfARealAPIServer
func TestFlowSchemaHeaderOfARealAPIServer(t *testing.T) {
	t.Parallel()
	config := testkit.Cluster(t, devcluster.Options{}).AdminConfig()
	refused := rest.AnonymousClientConfig(config)
	refused.BearerToken = "not-a-token"
	for _, test := range []struct {
		name   string
		config *rest.Config
		path   string
		code   int
		set    bool
	}{
		{"a credential that is refused", refused, "/api/v1/nodes", http.StatusUnauthorized, false},
		{"a credential that is accepted", config, "/api/v1/nodes", http.StatusOK, true},
		{"an object that is not there", config, "/api/v1/nodes/x", http.StatusNotFound, true},
	} {
		client := must.Get(rest.HTTPClientFor(test.config))(t)
		request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+test.path, nil))(t)
		response, err := client.Do(request)
		must.Do(t, err)
		_ = response.Body.Close()
		if set := response.Header.Get(flowSchemaHeader) != ""; response.StatusCode != test.code || set != test.set {
			t.Errorf("%s: %s, header set: %v, want %d, %v", test.name, response.Status, set, test.code, test.set)
		}
	}
}

// TestLimitsAreDocumented compares the table of limits in the reference with the code of this package.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "agent.md")))(t)
	for what, limit := range map[string]string{
		"buffered response": fmt.Sprintf("up to %d MiB if the client has not read it for 20 ms and "+
			"memory is free; otherwise %d KiB in transit from the API server and 32 KiB in the proxy (for a stream, %d KiB and 16 KiB)",
			maxAhead>>20, upstreamWindow>>10, streamWindow>>10),
		"time to connect to the API server": fmt.Sprintf("%.0f s, and %.0f s for TLS; then 503",
			dialTimeout.Seconds(), handshakeTimeout.Seconds()),
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
}
