package satoken

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Labels and annotations of the objects.
const (
	// NamespaceLabel is on all objects. Its value is the namespace of the accounts.
	NamespaceLabel = "concierge.pinniped.dev/user-accounts"

	usernameAnnotation = "concierge.pinniped.dev/username"
	uidAnnotation      = "concierge.pinniped.dev/uid"
	// authenticatorAnnotation is Identity.Authenticator.
	authenticatorAnnotation = "concierge.pinniped.dev/authenticator"
	// untilAnnotation of a ServiceAccount is when all its tokens have expired.
	untilAnnotation = "concierge.pinniped.dev/tokens-until"
	// accountAnnotation of a ClusterRole and its binding is the UID of the ServiceAccount. It changes when the account
	// is recreated, so that a collector with an older list deletes neither.
	accountAnnotation = "concierge.pinniped.dev/service-account-uid"
)

// Verbs of impersonation. The constrained ones are those of KEP-5284: they never apply to service accounts, nodes and
// system:masters.
const (
	verbImpersonate            = "impersonate"
	verbImpersonateConstrained = "impersonate:user-info"
	verbOnConstrained          = "impersonate-on:user-info:"

	authenticationGroup = "authentication.k8s.io"
)

func labels(namespace string) map[string]string { return map[string]string{NamespaceLabel: namespace} }

// account returns the ServiceAccount of a user. Its tokens are only requested, never stored in Secrets or pods.
func account(namespace string, id Identity, until time.Time) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Name: id.name(namespace), Namespace: namespace, Labels: labels(namespace),
			Annotations: map[string]string{
				usernameAnnotation: id.Username, uidAnnotation: id.UID, authenticatorAnnotation: id.Authenticator,
				untilAnnotation: until.UTC().Format(time.RFC3339),
			},
		},
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// until returns when the last token of an account expires, or the zero time if unknown.
func until(account *corev1.ServiceAccount) time.Time {
	at, _ := time.Parse(time.RFC3339, account.Annotations[untilAnnotation])
	return at
}

// role returns the ClusterRole that lets the account impersonate the user.
func role(account *corev1.ServiceAccount, id Identity, constrained bool) *rbacv1.ClusterRole {
	rules := legacyRules(id)
	if constrained {
		rules = constrainedRules(id)
	}
	return &rbacv1.ClusterRole{ObjectMeta: meta(account), Rules: rules}
}

func meta(account *corev1.ServiceAccount) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: account.Name, Labels: labels(account.Namespace),
		Annotations: map[string]string{accountAnnotation: string(account.UID)},
	}
}

// binding binds the account to its role.
func binding(account *corev1.ServiceAccount) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(account),
		Subjects: []rbacv1.Subject{{
			Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: account.Namespace,
		}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account.Name},
	}
}

func legacyRules(id Identity) []rbacv1.PolicyRule { return identityRules(id, verbImpersonate, "") }

// constrainedRules let the account impersonate the user on requests of any kind, which are then authorized as the user.
func constrainedRules(id Identity) []rbacv1.PolicyRule {
	return append(identityRules(id, verbImpersonateConstrained, authenticationGroup),
		rbacv1.PolicyRule{
			Verbs:     on("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"),
			APIGroups: []string{rbacv1.APIGroupAll}, Resources: []string{rbacv1.ResourceAll},
		},
		rbacv1.PolicyRule{
			Verbs:           on("delete", "get", "head", "options", "patch", "post", "put"),
			NonResourceURLs: []string{rbacv1.NonResourceAll},
		},
	)
}

func on(verbs ...string) []string {
	constrained := make([]string, 0, len(verbs))
	for _, verb := range verbs {
		constrained = append(constrained, verbOnConstrained+verb)
	}
	return constrained
}

// identityRules returns a rule for each part of the identity. usersGroup is the API group of users and groups, which
// differs between the kinds of impersonation.
func identityRules(id Identity, verb, usersGroup string) []rbacv1.PolicyRule {
	rule := func(group, resource string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names,
		}
	}
	rules := []rbacv1.PolicyRule{rule(usersGroup, "users", id.Username)}
	if len(id.Groups) > 0 { // a rule without names would cover all names
		rules = append(rules, rule(usersGroup, "groups", id.Groups...))
	}
	if id.UID != "" {
		rules = append(rules, rule(authenticationGroup, "uids", id.UID))
	}
	for _, key := range slices.Sorted(maps.Keys(id.Extra)) {
		rules = append(rules, rule(authenticationGroup, "userextras/"+key, id.Extra[key]...))
	}
	return rules
}
