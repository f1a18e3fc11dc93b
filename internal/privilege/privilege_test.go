package privilege

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestExcessive(t *testing.T) {
	t.Parallel()
	checker := &Checker{OpenGroups: []string{"login.concierge.pinniped.dev", "identity.concierge.pinniped.dev"}}
	rule := func(verbs, groups, resources string) authorizationv1.ResourceRule {
		return authorizationv1.ResourceRule{
			Verbs:     strings.Split(verbs, ","),
			APIGroups: strings.Split(groups, ","),
			Resources: strings.Split(resources, ","),
		}
	}
	for _, test := range []struct {
		name string
		rule authorizationv1.ResourceRule
		want bool
	}{
		{"lets impersonation pass", rule("impersonate", "", "users,groups,serviceaccounts"), false},
		{"lets impersonation of everything pass", rule("impersonate", "*", "*"), false},
		{
			"lets constrained impersonation pass",
			rule("impersonate:user-info,impersonate-on:user-info:list", "authentication.k8s.io", "users"), false,
		},
		{
			"lets questions about oneself pass",
			rule("create", "authorization.k8s.io", "selfsubjectaccessreviews,selfsubjectrulesreviews"), false,
		},
		{"lets logins pass", rule("create,list", "login.concierge.pinniped.dev", "tokencredentialrequests"), false},
		{
			"finds logins of another product", rule("create,list", "login.concierge.example.com", "tokencredentialrequests"),
			true,
		},
		{"finds all verbs", rule("*", "", "users"), true},
		{"finds a verb next to impersonate", rule("impersonate,get", "", "users"), true},
		{
			"finds reviews about others",
			rule("create", "authorization.k8s.io", "selfsubjectaccessreviews,subjectaccessreviews"), true,
		},
		{"finds everything", rule("*", "*", "*"), true},
		{
			"lets what every service account may read pass",
			rule("get,list,watch", "certificates.k8s.io", "clustertrustbundles"), false,
		},
		{"finds writes to trust bundles", rule("get,update", "certificates.k8s.io", "clustertrustbundles"), true},
		{"finds secrets", rule("get", "", "secrets"), true},
		{"finds to watch logins", rule("create,list,watch", "login.concierge.pinniped.dev", "tokencredentialrequests"), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := checker.excessive(test.rule); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestExcessivePaths(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		verbs []string
		paths []string
		want  []string
	}{
		{
			"lets discovery pass",
			[]string{"get"},
			[]string{
				"/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version",
				"/version/",
			},
			nil,
		},
		{
			"lets the keys of the token issuer pass",
			[]string{"get"},
			[]string{"/.well-known/openid-configuration", "/openid/v1/jwks"},
			nil,
		},
		{"finds metrics among others", []string{"get"}, []string{"/api", "/metrics"}, []string{"/metrics"}},
		{"finds all paths", []string{"get"}, []string{"*"}, []string{"*"}},
		{"finds more than reading", []string{"get", "post"}, []string{"/healthz"}, []string{"/healthz"}},
		{"finds all verbs", []string{"*"}, []string{"/version"}, []string{"/version"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := excessivePaths(authorizationv1.NonResourceRule{Verbs: test.verbs, NonResourceURLs: test.paths})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReportIsOneSentence(t *testing.T) {
	t.Parallel()
	if got := (Report{}).String(); got != "" {
		t.Errorf("want no text, got %q", got)
	}
	report := Report{
		Excess: []Excess{
			{"get a", "binding x"}, {"get b", "binding x"}, {"get c", ""}, {"get d", "binding x"}, {"get e", "binding x"},
		},
	}
	if got, want := report.String(), "get a; get b; get d and 1 more (binding x); get c"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	var many Report
	for _, reason := range strings.Split("a,b,c,d,e", ",") {
		many.Excess = append(many.Excess, Excess{"get x", reason})
	}
	if got, want := many.String(), "get x (a); get x (b); get x (c); 2 more"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

const namespace, account = "agents", "impersonator"

// TestOnARealAPIServer checks a real service account with real RBAC.
func TestOnARealAPIServer(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	admin := kubernetes.NewForConfigOrDie(cluster.AdminConfig())
	w := &realWorld{admin: admin}
	must.Get(admin.CoreV1().
		Namespaces().
		Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	must.Get(admin.CoreV1().
		ServiceAccounts(namespace).
		Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}))(t)
	w.grant(ctx, t, "impersonate", rbacv1.PolicyRule{
		APIGroups: []string{"", "authentication.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"impersonate"},
	})
	config := must.Get(cluster.ServiceAccountConfig(ctx, namespace, account))(t)
	w.config = config

	// Sequential: each grant exists for one case only.
	w.expect(t, "")
	for _, test := range []struct {
		rule rbacv1.PolicyRule
		want string
	}{
		{
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list"}},
			`get,list secrets in agents`,
		},
		{
			rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
			`* *.* in agents`,
		},
		{
			rbacv1.PolicyRule{
				APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create"},
				ResourceNames: []string{"a", "b"},
			},
			`create pods/exec named a,b in agents`,
		},
		{
			rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics", "/logs/*"}, Verbs: []string{"get"}},
			`get /metrics,/logs/*`,
		},
	} {
		w.grant(ctx, t, "extra", test.rule)
		w.expect(t, test.want+
			` (RBAC: allowed by ClusterRoleBinding "extra" of ClusterRole "extra" to ServiceAccount "impersonator/agents")`)
		w.revoke(ctx, t, "extra")
		w.expect(t, "")
	}

	// A Role in only one of the namespaces, bound to the group of all service accounts.
	must.Get(admin.RbacV1().Roles("kube-system").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "peek"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}},
		},
	}, metav1.CreateOptions{}))(t)
	must.Get(admin.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "peek"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "peek"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts"}},
	}, metav1.CreateOptions{}))(t)
	w.expect(
		t,
		`list configmaps in kube-system (RBAC: allowed by RoleBinding "peek/kube-system" of Role "peek" to Group "system:serviceaccounts")`,
	)

	must.Do(t, admin.RbacV1().RoleBindings("kube-system").Delete(ctx, "peek", metav1.DeleteOptions{}))
	w.expect(t, "")
	w.othersInTheCluster(ctx, t)

	// A credential that the API server rejects gives no report.
	other := rest.AnonymousClientConfig(config)
	other.BearerToken = "nobody's"
	if _, err := w.checker().Check(ctx, other); err == nil || strings.Contains(err.Error(), "nobody's") {
		t.Errorf("want an error without the token in it, got %v", err)
	}
}

type realWorld struct {
	admin  kubernetes.Interface
	config *rest.Config
}

func (w *realWorld) checker() *Checker {
	return &Checker{
		Namespaces: []string{namespace, "kube-system"},
		OpenGroups: []string{"login.concierge.pinniped.dev", "identity.concierge.pinniped.dev"},
		Reviews:    w.admin.AuthorizationV1().SubjectAccessReviews(),
	}
}

// othersInTheCluster installs a second installation with another group suffix, and upstream Pinniped. What they let
// every authenticated user do is no excess, and hides none.
func (w *realWorld) othersInTheCluster(ctx context.Context, t *testing.T) {
	t.Helper()
	everybody := []rbacv1.Subject{
		{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"},
		{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:unauthenticated"},
	}
	for _, suffix := range []string{"other.example.com", "pinniped.dev"} {
		w.grantTo(ctx, t, suffix+"-pre-authn-apis", everybody,
			rbacv1.PolicyRule{
				APIGroups: []string{"login.concierge." + suffix}, Resources: []string{"tokencredentialrequests"},
				Verbs: []string{"create", "list"},
			},
			rbacv1.PolicyRule{
				APIGroups: []string{"identity.concierge." + suffix}, Resources: []string{"whoamirequests"},
				Verbs: []string{"create", "list"},
			},
		)
	}
	w.grantTo(ctx, t, "public-page", everybody,
		rbacv1.PolicyRule{NonResourceURLs: []string{"/public"}, Verbs: []string{"get"}})
	w.grantTo(ctx, t, "public-maps", everybody, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"},
	})
	w.waitUntilAllowed(ctx, t,
		"other.example.com-pre-authn-apis", "create", "login.concierge.other.example.com", "tokencredentialrequests")
	w.waitUntilAllowed(ctx, t, "public-maps", "get", "", "configmaps")
	w.expect(t, "")

	// The account alone may do the same and more: every authenticated user has the first permission of this rule.
	w.grant(ctx, t, "extra", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"get"},
	})
	report := w.waitForExcess(t)
	if len(report.Excess) != 1 || !strings.HasPrefix(report.Excess[0].What, "get configmaps,secrets") {
		t.Errorf("got %+v", report)
	}
	w.revoke(ctx, t, "extra")
	w.expect(t, "")

	// All service accounts are not all users.
	w.grantTo(ctx, t, "extra", []rbacv1.Subject{
		{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts"},
	}, rbacv1.PolicyRule{
		APIGroups: []string{"login.concierge.third.example.com"}, Resources: []string{"tokencredentialrequests"},
		Verbs: []string{"create"},
	})
	if report := w.waitForExcess(t); len(report.Excess) != 1 {
		t.Errorf("got %+v", report)
	}
	w.revoke(ctx, t, "extra")
	w.expect(t, "")
}

func (w *realWorld) waitForExcess(t *testing.T) Report {
	t.Helper()
	var report Report
	testkit.Eventually(t, 20*time.Second, func() error {
		var err error
		if report, err = w.checker().Check(t.Context(), w.config); err == nil && len(report.Excess) == 0 {
			err = errors.New("no excess is found")
		}
		return err
	})
	return report
}

// waitUntilAllowed waits until the API server enforces a binding.
func (w *realWorld) waitUntilAllowed(ctx context.Context, t *testing.T, binding, verb, group, resource string) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(w.config)
	testkit.Eventually(t, 20*time.Second, func() error {
		review, err := client.AuthorizationV1().
			SelfSubjectAccessReviews().
			Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: question("", verb, group, resource, ""),
			}, metav1.CreateOptions{})
		if err == nil && !strings.Contains(review.Status.Reason, binding) {
			err = fmt.Errorf("the API server says %+v", review.Status)
		}
		return err
	})
}

// grant grants rule to the account, cluster-wide.
func (w *realWorld) grant(ctx context.Context, t *testing.T, name string, rule rbacv1.PolicyRule) {
	t.Helper()
	w.grantTo(ctx, t, name, []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: account}}, rule)
}

func (w *realWorld) grantTo(
	ctx context.Context, t *testing.T, name string, subjects []rbacv1.Subject, rules ...rbacv1.PolicyRule,
) {
	t.Helper()
	must.Get(w.admin.RbacV1().
		ClusterRoles().
		Create(
			ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
			metav1.CreateOptions{},
		))(t)
	must.Get(w.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   subjects,
	}, metav1.CreateOptions{}))(t)
}

func (w *realWorld) revoke(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	must.Do(t, w.admin.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}))
	must.Do(t, w.admin.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}))
}

// expect waits for the expected report: the API server learns of bindings by a watch.
func (w *realWorld) expect(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		report, err := w.checker().Check(t.Context(), w.config)
		if err != nil || report.String() != want || report.Incomplete {
			return fmt.Errorf("got  %q, %w, incomplete %t\nwant %q", report, err, report.Incomplete, want)
		}
		return nil
	})
}

// TestAuthorizersThatCannotListAreAsked uses an API server with an authorization webhook besides RBAC: its list of
// rules is incomplete.
func TestAuthorizersThatCannotListAreAsked(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(req.URL.Path, "/selfsubjectrulesreviews") {
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).
				Encode(authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{Incomplete: true}})
			return
		}
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if asked := review.Spec.ResourceAttributes; asked.Verb == "list" && asked.Resource == "secrets" &&
			asked.Namespace == "kube-system" {
			review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: strings.Repeat("x", 1000)}
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	report := must.Get((&Checker{Namespaces: []string{namespace, "kube-system"}}).Check(
		t.Context(),
		&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}},
	))(t)
	want := Report{
		Incomplete: true,
		Excess:     []Excess{{What: "list secrets in kube-system", Why: strings.Repeat("x", maxReason-len("…")) + "…"}},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
