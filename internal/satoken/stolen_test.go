package satoken

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// testStolen tries attacks with a user's token.
func (r *real) testStolen(t *testing.T, constrained bool) {
	t.Helper()
	credential := must.Get(r.accounts.Issue(
		t.Context(),
		Identity{Username: "mallory", Groups: []string{"guests"}},
		constrained,
	))(t)
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
