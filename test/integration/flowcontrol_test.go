package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestReviewsHaveAQueueOfTheirOwn checks the flow schemas of the agent's requests: reviews, which unauthenticated
// clients cause, are separate from Leases and tokens, and both from other service accounts.
func TestReviewsHaveAQueueOfTheirOwn(t *testing.T) {
	w := needsCluster(t)
	schemas, levels := map[string]string{}, map[string]string{}
	var allSchemas flowcontrolv1.FlowSchemaList
	must.Do(t, w.admin.List(t.Context(), &allSchemas))
	for _, schema := range allSchemas.Items {
		schemas[string(schema.UID)] = schema.Name
	}
	var allLevels flowcontrolv1.PriorityLevelConfigurationList
	must.Do(t, w.admin.List(t.Context(), &allLevels))
	for _, level := range allLevels.Items {
		levels[string(level.UID)] = level.Name
	}
	config := must.Get(w.Cluster.ServiceAccountConfig(t.Context(), devinstall.Namespace, devinstall.AgentAccount))(t)
	agent := must.Get(rest.HTTPClientFor(config))(t)
	const (
		reviews, own = "pinniped-concierge-reviews", "pinniped-concierge"
		inNamespace  = "/namespaces/" + devinstall.Namespace
	)
	for _, test := range []struct{ name, method, path, body, want string }{
		{
			"puts access reviews with reviews", http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"ann","nonResourceAttributes":{"path":"/","verb":"get"}}}`, reviews,
		},
		{
			"puts token reviews with reviews", http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"none"}}`, reviews,
		},
		{
			"puts Leases elsewhere", http.MethodGet, "/apis/coordination.k8s.io/v1" + inNamespace + "/leases/pinniped-concierge",
			"", own,
		},
		{
			"puts tokens elsewhere", http.MethodPost, "/api/v1" + inNamespace + "/serviceaccounts/pinniped-concierge-impersonation-proxy/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":600}}`, own,
		},
		{
			"puts what the agent looks at itself elsewhere", http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`, own,
		},
		{"puts paths that are no resource elsewhere", http.MethodGet, "/version", "", own},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := must.Get(http.NewRequestWithContext(t.Context(), test.method, config.Host+test.path,
				bytes.NewReader([]byte(test.body))))(t)
			request.Header.Set("Content-Type", "application/json")
			answer, err := agent.Do(request)
			must.Do(t, err)
			defer answer.Body.Close() //nolint:errcheck // it is read to its end
			said, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusCreated {
				t.Errorf("answered with %d: %s", answer.StatusCode, said)
			}
			if got := schemas[answer.Header.Get("X-Kubernetes-PF-FlowSchema-UID")]; got != test.want {
				t.Errorf("want FlowSchema %q, got %q", test.want, got)
			}
			if got := levels[answer.Header.Get("X-Kubernetes-PF-PriorityLevel-UID")]; got != test.want {
				t.Errorf("want priority level %q, got %q", test.want, got)
			}
		})
	}
	t.Run("counts the running agents there", func(t *testing.T) {
		testkit.Eventually(t, time.Minute, func() error {
			metrics := w.kubectlDoes(t, "get", "--raw=/metrics")
			leases := regexp.MustCompile(
				`(?m)^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="` + own + `",priority_level="` + own + `"\} \d{2,}`,
			)
			if !leases.MatchString(metrics) {
				return fmt.Errorf("the agents' own requests are not counted for %s", own)
			}
			return nil
		})
	})
}

// TestFlowControlCanBeLeftOut shows that the component removes exactly the objects that clusters without FlowSchemas
// reject.
func TestFlowControlCanBeLeftOut(t *testing.T) {
	w := needsCluster(t)
	documents := func(folder string) (kept []string, flowControl int) {
		for _, document := range w.kustomized(t, folder) {
			if strings.Contains(document, "apiVersion: flowcontrol.apiserver.k8s.io/") {
				flowControl++
				continue
			}
			kept = append(kept, document)
		}
		return kept, flowControl
	}
	all, six := documents(filepath.Join(w.Deploy, "concierge"))
	without, none := documents(w.overlay(t, "withoutflowcontrol"))
	if six != 6 || none != 0 {
		t.Errorf("want 6 objects of flow control with the manifests and none with the component, got %d and %d", six, none)
	}
	if strings.Join(all, "\n") != strings.Join(without, "\n") {
		t.Error("the component changes more than flow control")
	}
}
