package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

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
