package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// scrape returns the metrics of a replica by name{label="value",...}, as printed.
func scrape(t *testing.T, agent *devinstall.Agent) map[string]float64 {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+agent.MetricsAddress()+"/metrics", nil))(t)
	response, err := http.DefaultClient.Do(request)
	must.Do(t, err)
	defer response.Body.Close() //nolint:errcheck // only read
	found := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if strings.HasPrefix(name, "#") || !ok {
			continue
		}
		if at := strings.LastIndexByte(lines.Text(), ' '); at > 0 { // label values may hold spaces
			name, value = lines.Text()[:at], lines.Text()[at+1:]
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		found[name] = number
	}
	must.Do(t, lines.Err())
	return found
}

// TestWhatReplicasMeasure checks the metrics of both replicas after some use.
func TestWhatReplicasMeasure(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.external(t, "measured-cert", pairData(pair))
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)
	leaders := 0.0
	for _, agent := range w.agents {
		got := scrape(t, agent)
		leaders += got["pinniped_agent_leader"]
		expiry := got[`pinniped_agent_serving_certificate_expiry_timestamp_seconds{source="external"}`]
		if in := time.Until(time.Unix(int64(expiry), 0)); in < 89*24*time.Hour || in > 91*24*time.Hour {
			t.Errorf("the certificate runs out in %s", in)
		}
		for _, name := range []string{
			"process_resident_memory_bytes", "go_goroutines",
			`pinniped_proxy_memory_limit_bytes{clients="users"}`,
			`controller_runtime_reconcile_total{controller="credentialissuer",result="requeue_after"}`,
		} {
			if got[name] == 0 {
				t.Errorf("there is no %s", name)
			}
		}
	}
	w.putSecret(t, "measured-cert", pairData(w.issue(t, "elsewhere.example.com")))
	w.everyReplica(t, 20*time.Second, func(agent *devinstall.Agent) error {
		if scrape(t, agent)[`pinniped_agent_serving_certificate_findings{code="NameNotCovered",severity="error"}`] != 1 {
			return errors.New("no refusal is measured")
		}
		return nil
	})
	w.putSecret(t, "measured-cert", pairData(pair))
	w.everyReplica(t, 20*time.Second, func(agent *devinstall.Agent) error {
		if _, refused := scrape(t, agent)[`pinniped_agent_serving_certificate_findings{code="NameNotCovered",severity="error"}`]; refused {
			return errors.New("the refusal is still measured")
		}
		return nil
	})
	if leaders != 1 {
		t.Errorf("%v replicas lead", leaders)
	}
	got := scrape(t, w.agents[0])
	if got[`pinniped_proxy_requests_total{code="201",verb="create"}`] < 1 ||
		got["pinniped_proxy_added_seconds_count"] < 1 {
		t.Errorf("the requests of whoami were not counted: %v", got)
	}
}

// TestTheUpstreamCredentialIsWatched grants the proxy's own credential excess permissions. The agent, which checks at
// its start and every ten minutes, reports them with the binding everywhere, keeps serving, and stops reporting them
// when the grant is deleted.
func TestTheUpstreamCredentialIsWatched(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "watched-cert", pairData(w.issue(t, "localhost")))
	const metric = "pinniped_agent_upstream_credential_excess_rules"
	w.everyReplica(t, 20*time.Second, func(agent *devinstall.Agent) error {
		if rules, known := scrape(t, agent)[metric]; !known || rules != 0 {
			return fmt.Errorf("as shipped, %v rules are too many (known: %t)", rules, known)
		}
		return nil
	})
	w.waitForStatus(t, "Listening", "")

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "well-meant"},
		// No controller aggregates the role view here.
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts:" + devinstall.Namespace},
		},
	}
	must.Do(t, w.admin.Create(t.Context(), binding))
	removed := false
	remove := func() {
		if !removed {
			removed = true
			if err := w.admin.Delete(context.WithoutCancel(t.Context()), binding); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(remove)
	restart := func() {
		t.Helper()
		for _, agent := range w.agents {
			must.Do(t, agent.Restart(t.Context()))
			waitReady(t, agent)
		}
	}
	restart()
	w.waitForStatus(t, "Listening", "the proxy's own credential can do more than impersonate")
	if message := w.strategy(t).Message; !strings.Contains(
		message,
		`ClusterRoleBinding "well-meant" of ClusterRole "system:aggregate-to-view"`,
	) {
		t.Errorf("the status does not name the binding: %s", message)
	}
	w.everyReplica(t, 20*time.Second, func(agent *devinstall.Agent) error {
		log, err := os.ReadFile(agent.Log())
		if err != nil {
			return err
		}
		if rules := scrape(t, agent)[metric]; rules == 0 ||
			!strings.Contains(string(log), `"level":"WARN","msg":"Found excess permissions of the upstream credential"`) {
			return fmt.Errorf("%v rules, or nothing in the log", rules)
		}
		return agent.Ready(t.Context())
	})

	remove()
	restart()
	testkit.Eventually(t, 20*time.Second, func() error {
		if strings.Contains(w.strategy(t).Message, "more than impersonate") {
			return errors.New("the status still says so")
		}
		return nil
	})
}

// TestReadyMeansWithACredential restarts a replica that may not get its upstream credential: it listens, and is not
// ready until it may.
func TestReadyMeansWithACredential(t *testing.T) {
	w := needsCluster(t)
	good := w.issue(t, "localhost")
	w.external(t, "credential-cert", pairData(good))
	_, replica := w.leader(t)
	permitTokens := func(ctx context.Context, permit bool) {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, func() error {
			var role rbacv1.Role
			if err := w.admin.Get(ctx, ours("pinniped-concierge-agent"), &role); err != nil {
				return err
			}
			found := false
			for i := range role.Rules {
				if slices.Equal(role.Rules[i].Resources, []string{"serviceaccounts/token"}) {
					found = true
					role.Rules[i].Verbs = map[bool][]string{true: {"create"}, false: {"get"}}[permit]
				}
			}
			if !found {
				t.Fatalf("Role %q has no rule for tokens", role.Name)
			}
			return w.admin.Update(ctx, &role)
		})
		testkit.Eventually(t, 10*time.Second, func() error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + devinstall.Namespace + ":" + devinstall.AgentAccount,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace:   devinstall.Namespace,
					Verb:        "create",
					Resource:    "serviceaccounts",
					Subresource: "token",
					Name:        "pinniped-concierge-impersonation-proxy",
				},
			}}
			if err := w.admin.Create(ctx, review); err != nil {
				return err
			}
			if review.Status.Allowed != permit {
				return fmt.Errorf("the API server says %+v", review.Status)
			}
			return nil
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			permitTokens(context.WithoutCancel(t.Context()), true)
		}
	})
	permitTokens(t.Context(), false)
	must.Do(t, replica.Restart(t.Context()))
	testkit.Eventually(t, 20*time.Second, func() error { return presents(replica.ProxyAddress(), good) })
	for start := time.Now(); time.Since(start) < time.Second; {
		if replica.Ready(t.Context()) == nil {
			t.Fatal("it is Ready without a credential for the API server")
		}
	}
	permitTokens(t.Context(), true)
	waitReady(t, replica)
}
