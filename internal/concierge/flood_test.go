package concierge_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestAFloodAtTheAPIServer sends logins to the API server directly, not through the proxy, with a webhook that does not
// respond: few of them are at the webhook at a time, and users who are logged in are not affected.
func TestAFloodAtTheAPIServer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	a := startAgent(t, cluster)
	release := make(chan struct{})
	var now, most atomic.Int64
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1beta1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err == nil && review.Spec.Token == "slow" {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			now.Add(-1)
		}
		review.Status = authenticationv1beta1.TokenReviewStatus{
			Authenticated: true, User: authenticationv1beta1.UserInfo{Username: "pinny"},
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(webhook.Close)
	ended := sync.OnceFunc(func() { close(release) })
	t.Cleanup(ended)
	a.createAuthenticator(t, "webhook", webhook.URL,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}))
	anonymous := rest.AnonymousClientConfig(cluster.AdminConfig())
	testkit.Eventually(t, time.Minute, func() error {
		return exchanged(t.Context(), anonymous, tokenRequest("", "quick", "webhook"))
	})
	testkit.Eventually(t, time.Minute, func() error { return a.loginsHaveAQueue(t, anonymous) })

	const logins = 80
	var served, refused atomic.Int64
	var flood sync.WaitGroup
	for range logins {
		flood.Go(func() {
			code, response, err := send(t.Context(), anonymous, http.MethodPost, loginPath, tokenRequest("", "slow", "webhook"))
			switch {
			case err == nil && code == http.StatusCreated && strings.Contains(response, "clientCertificateData"):
				served.Add(1)
			case err == nil && code == http.StatusTooManyRequests:
				refused.Add(1)
			default:
				t.Errorf("a login ended with %d, %v: %s", code, err, response)
			}
		})
	}
	testkit.Eventually(t, time.Minute, func() error {
		if now.Load() != 12 {
			return fmt.Errorf("%d logins are at the webhook", now.Load())
		}
		return nil
	})
	user := must.Get(cluster.User("ann"))(t)
	for range 50 {
		code, response, err := send(t.Context(), user, http.MethodPost, whoAmIPath, whoAmIRequest)
		if err != nil || code != http.StatusCreated || !strings.Contains(response, "ann") {
			t.Fatalf("a user who is logged in got %d, %v: %s", code, err, response)
		}
		if code, response, err = send(t.Context(), user, http.MethodGet, "/apis", ""); err != nil || code != http.StatusOK {
			t.Fatalf("a user who is logged in got %d, %v: %s", code, err, response)
		}
	}
	if served.Load() != 0 {
		t.Error("the flood had ended by then")
	}
	ended()
	flood.Wait()
	if most.Load() > 12 || served.Load()+refused.Load() != logins {
		t.Errorf(
			"%d logins were at the webhook at a time; %d were served, %d refused",
			most.Load(),
			served.Load(),
			refused.Load(),
		)
	}
}

// loginsHaveAQueue returns nil when the API server assigns the login of an unauthenticated client to its priority
// level.
func (a *agent) loginsHaveAQueue(t *testing.T, anonymous *rest.Config) error {
	t.Helper()
	admin, err := kubernetes.NewForConfig(a.cluster.AdminConfig())
	if err != nil {
		return err
	}
	var level *flowcontrolv1.PriorityLevelConfiguration
	if level, err = admin.FlowcontrolV1().PriorityLevelConfigurations().
		Get(t.Context(), "pinniped-concierge-logins", metav1.GetOptions{}); err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, anonymous.Host+loginPath,
		strings.NewReader(tokenRequest("", "quick", "webhook")))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only the header counts
	if got := types.UID(response.Header.Get("X-Kubernetes-PF-PriorityLevel-UID")); got != level.UID {
		return fmt.Errorf("a login is at priority level %s", got)
	}
	return nil
}
