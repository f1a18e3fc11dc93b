package relay

import (
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

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
		client, err := rest.HTTPClientFor(test.config)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if set := response.Header.Get(flowSchemaHeader) != ""; response.StatusCode != test.code || set != test.set {
			t.Errorf("%s: %s, header set: %v, want %d, %v", test.name, response.Status, set, test.code, test.set)
		}
	}
}
