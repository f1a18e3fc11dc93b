package satoken

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// testGuard tries attacks with the manager's token. It finally removes the policy.
func (r *real) testGuard(t *testing.T) {
	t.Helper()
	manager := r.accounts.Manager
	roles, bindings := manager.RbacV1().ClusterRoles(), manager.RbacV1().ClusterRoleBindings()
	ours := metav1.ObjectMeta{Name: NamePrefix + "x", Labels: labels(accountsNamespace)}
	everything := []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}
	x := legacyRules(Identity{Username: "x"})
	named := func(verbs, groups, resources string, names ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{
			Verbs: strings.Split(verbs, ","), APIGroups: []string{groups}, Resources: strings.Split(resources, ","),
			ResourceNames: names,
		}}
	}
	attempts := map[string]error{}
	write := func(what string, meta metav1.ObjectMeta, rules []rbacv1.PolicyRule) {
		role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
		_, attempts[what] = roles.Create(t.Context(), role, metav1.CreateOptions{})
	}
	write("a role of another name", metav1.ObjectMeta{Name: "x", Labels: ours.Labels}, x)
	write("a role without the label", metav1.ObjectMeta{Name: ours.Name}, x)
	for what, rules := range map[string][]rbacv1.PolicyRule{
		"everything":                everything,
		"impersonating everybody":   named("impersonate", "", "users"),
		"impersonating *":           named("impersonate", "", "users", "*"),
		"system:masters":            named("impersonate", "", "groups", "dev", "system:masters"),
		"System:Masters":            named("impersonate", "", "groups", "System:Masters"),
		"service accounts":          named("impersonate", "", "serviceaccounts", "default"),
		"a second verb":             named("impersonate,get", "", "users", "x"),
		"a second resource":         named("impersonate", "", "users,secrets", "x"),
		"impersonating every extra": named("impersonate", authenticationGroup, "userextras/*", "x"),
		"impersonating nodes":       named("impersonate:arbitrary-node", authenticationGroup, "nodes", "x"),
	} {
		write("a role for "+what, ours, rules)
	}
	aggregated := labels(accountsNamespace)
	aggregated["rbac.authorization.k8s.io/aggregate-to-view"] = "true"
	write("a role whose rules every viewer gets", metav1.ObjectMeta{Name: ours.Name, Labels: aggregated},
		legacyRules(Identity{Username: "bob", Groups: []string{"admins"}}))
	write("a role of another installation", metav1.ObjectMeta{Name: ours.Name, Labels: labels("others")},
		x)
	write("a role that outlives its deletion",
		metav1.ObjectMeta{Name: ours.Name, Labels: ours.Labels, Finalizers: []string{"example.com/never"}},
		x)
	_, attempts["a role that collects others' rules"] = roles.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: ours, AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}},
	}, metav1.CreateOptions{})
	own := Identity{Username: "frank"}
	must.Get(r.accounts.Issue(t.Context(), own, false))(t)
	id, _ := own.normal()
	_, attempts["a label on a role that exists"] = roles.Patch(t.Context(), id.name(accountsNamespace),
		"application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}}}`), metav1.PatchOptions{})
	self := rbacv1.Subject{Kind: "ServiceAccount", Name: managerName, Namespace: managerNamespace}
	account := rbacv1.Subject{Kind: "ServiceAccount", Name: ours.Name, Namespace: accountsNamespace}
	bind := func(what, role string, subjects ...rbacv1.Subject) {
		_, attempts[what] = bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: ours,
			Subjects:   subjects,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}, metav1.CreateOptions{})
	}
	bind("itself to cluster-admin", "cluster-admin", self)
	bind("an account to cluster-admin", "cluster-admin", account)
	bind("itself to a user's role", ours.Name, self)
	bind("two accounts to a user's role", ours.Name, account, self)
	bind("everybody to a user's role", ours.Name,
		rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:authenticated"})
	admin := must.Get(roles.Get(t.Context(), "view", metav1.GetOptions{}))(t)
	admin.Rules = everything
	_, attempts["another role changed"] = roles.Update(t.Context(), admin, metav1.UpdateOptions{})
	admin.Labels = labels(accountsNamespace)
	_, attempts["another role taken over"] = roles.Update(t.Context(), admin, metav1.UpdateOptions{})
	attempts["another role deleted"] = roles.Delete(t.Context(), "view", metav1.DeleteOptions{})
	attempts["another binding deleted"] = bindings.Delete(t.Context(), "cluster-admin", metav1.DeleteOptions{})
	for what, err := range attempts {
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("the manager can write %s: %v", what, err)
		}
	}
	_, attempts["Secrets"] = manager.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	_, attempts["a ServiceAccount elsewhere"] = manager.CoreV1().ServiceAccounts("default").
		Get(t.Context(), "default", metav1.GetOptions{})
	for _, what := range []string{"Secrets", "a ServiceAccount elsewhere"} {
		if !apierrors.IsForbidden(attempts[what]) {
			t.Errorf("the manager can read %s: %v", what, attempts[what])
		}
	}

	must.Do(t, r.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().
		Delete(t.Context(), managerName, metav1.DeleteOptions{}))
	testkit.Eventually(t, time.Minute, func() error {
		if _, err := r.accounts.Check(t.Context(), r.AdminConfig()); !errors.Is(err, ErrUnguarded) {
			return fmt.Errorf("without the policy: %w", err)
		}
		return nil
	})
	other := must.Get(r.User("agent-without-overlay"))(t)
	if _, err := r.withManager(t, other).Check(t.Context(), r.AdminConfig()); !errors.Is(err, ErrNotPermitted) {
		t.Errorf("without the overlay: %v", err)
	}
}

func (r *real) withManager(t *testing.T, config *rest.Config) *Accounts {
	t.Helper()
	client := must.Get(kubernetes.NewForConfig(config))(t)
	return New(client, r.admin, accountsNamespace, 1000)
}

// testStolen tries attacks with a user's token.
func (r *real) testStolen(t *testing.T, constrained bool) {
	t.Helper()
	mallory := Identity{Username: "mallory", Groups: []string{"guests"}}
	credential := must.Get(r.accounts.Issue(t.Context(), mallory, constrained))(t)
	victim := Identity{Username: "admin@example.com", Groups: []string{"admins"}}
	must.Get(r.accounts.Issue(t.Context(), victim, constrained))(t)
	for name, headers := range map[string]map[string][]string{
		"another user":         {"Impersonate-User": {"admin@example.com"}},
		"another group":        {"Impersonate-User": {"mallory"}, "Impersonate-Group": {"guests", "admins"}},
		"system:masters":       {"Impersonate-User": {"mallory"}, "Impersonate-Group": {"system:masters"}},
		"Kubernetes' admin":    {"Impersonate-User": {"kubernetes-admin"}},
		"a service account":    {"Impersonate-User": {"system:serviceaccount:pinniped-concierge:" + managerName}},
		"a node":               {"Impersonate-User": {"system:node:one"}},
		"the anonymous user":   {"Impersonate-User": {"system:anonymous"}},
		"a UID":                {"Impersonate-User": {"mallory"}, "Impersonate-Uid": {"1"}},
		"an extra":             {"Impersonate-User": {"mallory"}, "Impersonate-Extra-Role": {"admin"}},
		"a prefix of the name": {"Impersonate-User": {"mallor"}},
		"another case":         {"Impersonate-User": {"Mallory"}},
	} {
		if got, err := whoAmI(t.Context(), r.as(t, credential.Token, headers)); !apierrors.IsForbidden(err) {
			t.Errorf("acts as %s: %+v, %v", name, got, err)
		}
	}
	for name, headers := range map[string]map[string][]string{"the account": nil, "the user": credential.Headers} {
		client := r.as(t, credential.Token, headers)
		got := must.Get(whoAmI(t.Context(), client))(t)
		id, _ := Identity{Username: "mallory"}.normal()
		own := id.name(accountsNamespace)
		attempts := map[string]error{}
		_, attempts["reads Secrets"] = client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		_, attempts["lists the accounts"] = client.CoreV1().ServiceAccounts(accountsNamespace).
			List(t.Context(), metav1.ListOptions{})
		_, attempts["renews its own token"] = client.CoreV1().ServiceAccounts(accountsNamespace).
			CreateToken(t.Context(), own, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		_, attempts["gets a token of the manager"] = client.CoreV1().ServiceAccounts(managerNamespace).
			CreateToken(t.Context(), managerName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		_, attempts["reads its own role"] = client.RbacV1().ClusterRoles().Get(t.Context(), own, metav1.GetOptions{})
		_, attempts["changes its own role"] = client.RbacV1().ClusterRoles().Patch(t.Context(), own,
			"application/merge-patch+json", []byte(`{"rules":null}`), metav1.PatchOptions{})
		attempts["deletes an account"] = client.CoreV1().ServiceAccounts(accountsNamespace).
			Delete(t.Context(), own, metav1.DeleteOptions{})
		_, attempts["makes a pod with an account"] = client.CoreV1().Pods(accountsNamespace).
			Create(t.Context(), &corev1.Pod{}, metav1.CreateOptions{})
		for what, err := range attempts {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s (%s) %s: %v", name, got.Username, what, err)
			}
		}
	}
}
