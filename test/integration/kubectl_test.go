package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestKubectl runs users' commands with the kubectl on the PATH. hack/controlplane/measure.sh runs it with older ones.
func TestKubectl(t *testing.T) {
	s := startStreams(t)
	s.permit(t, "pinny", "*", "configmaps", "events", "pods", "pods/ephemeralcontainers", "pods/proxy")
	const manifest = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubectl"}, "data": {"a": "1"}}`
	testkit.Eventually(t, 20*time.Second, func() error { // the denial may still be cached
		return s.kubectl(t, strings.NewReader(manifest), "apply", "-f", "-").err()
	})
	known := s.kubectl(t, nil, "help").out + s.kubectl(t, nil, "auth", "--help").out
	for _, tt := range []struct{ line, want string }{
		{"version", "Server Version"},
		{"get configmap kubectl -o yaml", "a: \"1\""},
		{"apply --server-side --force-conflicts -f -", "serverside-applied"},
		{"apply --dry-run=server -f -", "dry run"},
		{"diff -f -", ""},
		{"label configmap kubectl l=1", "labeled"},
		{"annotate configmap kubectl a=1", "annotated"},
		{`patch configmap kubectl --type=merge -p={"data":{"a":"2"}}`, "patched"},
		{"get configmaps -l l=1 --watch-only=false -o name", "configmap/kubectl"},
		{"wait configmap/kubectl --for=jsonpath={.data.a}=2 --timeout=10s", "condition met"},
		{"get --raw /api/v1/namespaces/default/configmaps/kubectl", `"a":"2"`},
		{"describe configmap kubectl", "Name:"},
		{"api-resources --api-group=concierge.pinniped.dev", ""},
		{"explain configmap.data", "DESCRIPTION"},
		{"auth can-i get pods", "yes"},
		{"auth whoami", "pinny"},
		{"events", ""},
		{"get events", ""},
		{"debug warm-up --image=debug --container=debugger --attach=false", ""},
		{"delete configmap kubectl", "deleted"},
	} {
		words := strings.Fields(tt.line)
		if last := words[min(1, len(words)-1)]; (last == "events" && len(words) == 1 || last == "whoami") &&
			!strings.Contains(known, "  "+last+" ") {
			continue // kubectl has events since 1.26, whoami since 1.27
		}
		got := s.kubectl(t, strings.NewReader(manifest), words...)
		if got.code != 0 || !strings.Contains(got.out, tt.want) {
			t.Errorf("kubectl %s ended with %d: %s%s", tt.line, got.code, got.out, got.errOut)
		}
	}

	watch := s.start(t, "get", "configmaps", "--watch-only", "-o", "name")
	testkit.Eventually(t, 20*time.Second, func() error { // the watch may start late
		_ = s.kubectl(t, nil, "delete", "configmap", "kubectl", "--ignore-not-found")
		_ = s.kubectl(t, strings.NewReader(manifest), "create", "-f", "-")
		select {
		case line := <-watch.lines:
			if line != "configmap/kubectl" {
				t.Errorf("the watch said %q", line)
			}
			return nil
		case <-time.After(time.Second):
			return fmt.Errorf("the watch says nothing: %s", watch.errOut)
		}
	})
	_ = s.kubectl(t, nil, "delete", "configmap", "kubectl")

	proxy := s.start(t, "proxy", "--port=0")
	words := strings.Fields(proxy.next(t)) // Starting to serve on 127.0.0.1:40959
	response, err := http.Get("http://" + words[len(words)-1] + "/api/v1/namespaces/default/pods/warm-up")
	must.Do(t, err)
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), `"warm-up"`) {
		t.Errorf("kubectl proxy returned %d: %s", response.StatusCode, body)
	}

	directory := s.run(t, "by-kubectl", repeat)
	execStreams(t, s, "by-kubectl")
	portForwardStreams(t, s, "by-kubectl")
	copies(t, s, "by-kubectl", directory)
	attachAndLogs(t, s, "by-kubectl")
}
