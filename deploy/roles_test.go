package deploy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	agentNamespace = "pinniped-concierge"
	usersNamespace = "pinniped-concierge-users"
	proxyAccount   = "pinniped-concierge-impersonation-proxy"
	certificate    = "proxy-tls"
	securityTable  = "../docs/security.md"
)

// role is a shipped or documented Role or ClusterRole.
type role struct {
	kind, name, namespace string // a ClusterRole has no namespace
	rules                 []rbacv1.PolicyRule
	from                  string
}

func (r role) String() string {
	if r.kind == "ClusterRole" {
		return "ClusterRole " + r.name
	}
	return "Role " + r.namespace + "/" + r.name
}

// shippedRoles returns every Role and ClusterRole in the YAML files below deploy and in the documents.
func shippedRoles(t *testing.T) []role {
	t.Helper()
	found := map[string]role{}
	add := func(text, from string) {
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			if !regexp.MustCompile(`(?m)^kind: (Cluster)?Role$`).MatchString(document) {
				continue
			}
			var object struct {
				Kind     string
				Metadata metav1.ObjectMeta
				Rules    []rbacv1.PolicyRule
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%s: %v", from, err)
			}
			r := role{object.Kind, object.Metadata.Name, object.Metadata.Namespace, object.Rules, from}
			if other, ok := found[r.String()]; ok && !cmp.Equal(other.rules, r.rules) {
				t.Errorf("%s is not the same in %s and %s", r, other.from, from)
			}
			found[r.String()] = r
		}
	}
	read := func(path string) string { return string(must.Get(os.ReadFile(path))(t)) }
	fences := regexp.MustCompile("(?ms)^ *```ya?ml\n(.*?)^ *```")
	for _, root := range []string{".", "../docs", "../README.md"} {
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			switch {
			case err != nil || entry.IsDir():
			case filepath.Ext(path) == ".md":
				text := read(path)
				for _, block := range fences.FindAllStringSubmatch(text, -1) {
					add(block[1], path)
				}
				if strings.Contains(text, "kubectl create role ") || strings.Contains(text, "kubectl create clusterrole ") {
					t.Errorf("%s makes a role by a command, which this test does not look at: write YAML", path)
				}
			case filepath.Ext(path) == ".yaml" && !strings.Contains(path, "helm/templates"):
				add(read(path), path)
			}
			return err
		})
		must.Do(t, err)
	}
	var all []role
	for _, r := range found {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b role) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// TestWhatRolesBecome binds every shipped or documented Role and ClusterRole to a user without other permissions, who
// tries to become someone else on a real API server. The results must match the table in docs/security.md: a Role is as
// powerful as the identities that its holder can assume.
func TestWhatRolesBecome(t *testing.T) {
	t.Parallel()
	a := newAttack(t)
	documented := a.documented(t)
	for _, r := range shippedRoles(t) {
		want, ok := documented[r.String()]
		if !ok {
			t.Errorf("%s (%s) is not in the table of %s", r, r.from, securityTable)
		}
		delete(documented, r.String())
		if diff := cmp.Diff(want, a.by(t, r)); diff != "" {
			t.Errorf("%s (%s): (-docs/security.md +tried)\n%s", r, r.from, diff)
		}
	}
	for name := range documented {
		t.Errorf("%s has a row for %s, which is not shipped or documented", securityTable, name)
	}
}

// attack is a cluster with all manifests installed.
type attack struct {
	cluster *devcluster.Cluster
	admin   kubernetes.Interface
}

func newAttack(t *testing.T) *attack {
	t.Helper()
	cluster := testkit.Cluster(t, devcluster.Options{ControllerManager: true}, "concierge/namespace.yaml")
	config := cluster.AdminConfig()
	config.WarningHandler = rest.NoWarnings{} // about empty certificates
	admin := must.Get(kubernetes.NewForConfig(config))(t)
	a := &attack{cluster: cluster, admin: admin}
	// A token Secret from before the policy, whose annotation could be changed.
	testkit.Eventually(t, time.Minute, func() error { // its controller deletes Secrets of missing accounts
		_, err := admin.CoreV1().ServiceAccounts(agentNamespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	a.mustCreate(t, agentNamespace, tokenSecret("old-token", "default"))
	testkit.Eventually(t, time.Minute, func() error {
		_, err := a.token(t.Context(), a.admin, agentNamespace, "old-token", "default")
		return err
	})
	must.Do(t, cluster.Install(t.Context(), "concierge", "serviceaccounttokens", "iptlsroles", "local-user-authenticator",
		"clustersigner/rbac.yaml"))
	must.Get(admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}}, metav1.CreateOptions{}))(t)
	for _, namespace := range []string{agentNamespace, usersNamespace, "clusters", "local-user-authenticator"} {
		for _, name := range []string{certificate, agentsKey, "somebodys"} {
			a.mustCreate(t, namespace, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
				Data: map[string][]byte{"tls.crt": {}, "tls.key": {}},
			})
		}
	}
	// The policies take effect when the API server has compiled them.
	testkit.Eventually(t, time.Minute, func() error {
		_, err := admin.CoreV1().Secrets(agentNamespace).Create(t.Context(), tokenSecret("refused", "default"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return fmt.Errorf("an administrator may make a token Secret in the agent's namespace: %w", err)
		}
		return nil
	})
	// They do not affect the token controller's existing Secrets.
	must.Get(admin.CoreV1().Secrets(agentNamespace).Patch(t.Context(), "old-token", types.MergePatchType,
		[]byte(`{"data": null}`), metav1.PatchOptions{}))(t)
	testkit.Eventually(t, time.Minute, func() error {
		_, err := a.token(t.Context(), a.admin, agentNamespace, "old-token", "default")
		return err
	})
	return a
}

const agentsKey = "pinniped-concierge-impersonation-proxy-ca-certificate"

func tokenSecret(name, account string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}
}

func (a *attack) mustCreate(t *testing.T, namespace string, secret *corev1.Secret) {
	t.Helper()
	must.Get(a.admin.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
}

// token returns the token in a Secret of a service account, once the token controller has set it.
func (a *attack) token(ctx context.Context, as kubernetes.Interface, namespace, name, account string) (string, error) {
	secret, err := read(ctx, as, namespace, name)
	if err != nil {
		return "", err
	}
	token := string(secret.Data[corev1.ServiceAccountTokenKey])
	if token == "" {
		return "", fmt.Errorf("the Secret %q holds no token yet", name)
	}
	config := rest.AnonymousClientConfig(a.cluster.AdminConfig())
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("using the token in Secret %q: %w", name, err)
	}
	if got := who.Status.UserInfo.Username; got != "system:serviceaccount:"+namespace+":"+account {
		return "", fmt.Errorf("the token in Secret %q is that of %q", name, got)
	}
	return token, nil
}

// by returns the ways in which a user with only this role can become someone else.
func (a *attack) by(t *testing.T, r role) []string {
	t.Helper()
	ctx := t.Context()
	user := strings.ToLower(r.kind) + "-" + r.namespace + "-" + r.name
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: r.kind, Name: r.name}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	meta := metav1.ObjectMeta{Name: user}
	var err error
	if r.kind == "ClusterRole" {
		_, err = a.admin.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
	} else {
		// A role that is only documented is not installed yet.
		_, err = a.admin.RbacV1().Roles(r.namespace).Create(ctx, &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: r.name}, Rules: r.rules,
		}, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			_, err = a.admin.RbacV1().RoleBindings(r.namespace).Create(ctx,
				&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
		}
	}
	must.Do(t, err)
	config := must.Get(a.cluster.User(user))(t)
	client := must.Get(kubernetes.NewForConfig(config))(t)
	h := &holder{attack: a, Interface: client, config: config, role: r}
	h.waitForPermissions(t)

	var can []string
	try := func(what string, does func(context.Context) error) {
		switch err := does(ctx); {
		case err == nil:
			can = append(can, what)
		case !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err):
			t.Errorf("%s: %s: %v", r, what, err)
		}
	}
	try("impersonate", h.impersonates)
	try("escalate", h.escalates)
	try("approve", h.approves)
	for _, namespace := range []string{agentNamespace, usersNamespace, "local-user-authenticator", "clusters"} {
		in := ""
		if namespace != agentNamespace {
			in = " in " + namespace
		}
		at := func(does func(context.Context, string) error) func(context.Context) error {
			return func(ctx context.Context) error { return does(ctx, namespace) }
		}
		try("token request"+in, at(h.requestsTokens))
		try("token Secret"+in, at(h.makesTokenSecrets))
		try("retarget a token Secret"+in, at(h.retargetsTokenSecrets))
		try("pods"+in, at(h.runsPods))
		for _, one := range []struct{ what, name string }{
			{"any Secret", "somebodys"}, {"the CA's key", agentsKey}, {"the certificate's key", certificate},
		} {
			if slices.Contains(can, "any Secret"+in) {
				break
			}
			try(one.what+in, at(func(ctx context.Context, namespace string) error {
				_, err := read(ctx, h.Interface, namespace, one.name)
				return err
			}))
		}
		try("make Secrets"+in, at(h.makesSecrets))
	}
	for what, asked := range map[string][]authorizationv1.ResourceAttributes{
		"admission": {
			{Verb: "create", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
			{Verb: "patch", Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
			{Verb: "delete", Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"},
		},
		"APIServices": {
			{
				Verb: "patch", Group: "apiregistration.k8s.io", Resource: "apiservices",
				Name: "v1alpha1.login.concierge.pinniped.dev",
			},
		},
		"authenticators": {
			{Verb: "create", Group: "authentication.concierge.pinniped.dev", Resource: "webhookauthenticators"},
			{Verb: "patch", Group: "authentication.concierge.pinniped.dev", Resource: "jwtauthenticators"},
		},
		"CredentialIssuer": {
			{
				Verb: "patch", Group: "config.concierge.pinniped.dev", Resource: "credentialissuers",
				Name: "pinniped-concierge-config",
			},
		},
		"exec": {
			{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: agentNamespace},
			{Verb: "patch", Resource: "pods", Subresource: "ephemeralcontainers", Namespace: agentNamespace},
			{Verb: "create", Resource: "nodes", Subresource: "proxy"},
		},
		"workloads": {
			{Verb: "create", Group: "apps", Resource: "deployments", Namespace: agentNamespace},
			{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: agentNamespace},
			{Verb: "create", Group: "apps", Resource: "daemonsets", Namespace: agentNamespace},
			{Verb: "create", Group: "apps", Resource: "statefulsets", Namespace: agentNamespace},
			{Verb: "create", Group: "apps", Resource: "replicasets", Namespace: agentNamespace},
			{Verb: "create", Group: "batch", Resource: "jobs", Namespace: agentNamespace},
			{Verb: "create", Group: "batch", Resource: "cronjobs", Namespace: agentNamespace},
			{Verb: "create", Resource: "replicationcontrollers", Namespace: agentNamespace},
		},
	} {
		try(what, func(ctx context.Context) error { return h.mayAnyOf(ctx, asked) })
	}
	slices.Sort(can)
	return can
}

// holder is a user with one role.
type holder struct {
	*attack
	kubernetes.Interface
	config *rest.Config
	role   role
}

var errNo = apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("nothing of it may be done"))

// waitForPermissions waits until the API server's authorizer has observed the binding.
func (h *holder) waitForPermissions(t *testing.T) {
	t.Helper()
	rule := h.role.rules[0]
	asked := authorizationv1.ResourceAttributes{
		Namespace: h.role.namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: rule.Resources[0],
	}
	asked.Resource, asked.Subresource, _ = strings.Cut(asked.Resource, "/")
	if len(rule.ResourceNames) > 0 {
		asked.Name = rule.ResourceNames[0]
	}
	testkit.Eventually(t, time.Minute, func() error {
		return h.mayAnyOf(t.Context(), []authorizationv1.ResourceAttributes{asked})
	})
}

func (h *holder) mayAnyOf(ctx context.Context, asked []authorizationv1.ResourceAttributes) error {
	for _, attributes := range asked {
		review, err := h.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes},
		}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed {
			return err
		}
	}
	return errNo
}

func (h *holder) impersonates(ctx context.Context) error {
	as := rest.CopyConfig(h.config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "root", Groups: []string{"system:masters"}}
	return isMaster(ctx, as)
}

// isMaster reads an object that only an administrator may read.
func isMaster(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
	return err
}

func (h *holder) escalates(ctx context.Context) error {
	everything := []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
	_, err := h.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "attack-"}, Rules: everything},
		metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		return err
	}
	_, err = h.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "attack-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "attacker"}},
	}, metav1.CreateOptions{})
	return err
}

func (h *holder) approves(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "kubernetes-admin"}}, key)
	if err != nil {
		return err
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	csr, err := h.admin.CertificatesV1().CertificateSigningRequests().Create(ctx,
		&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "attack-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: request, SignerName: certificatesv1.KubeAPIServerClientSignerName,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Attack",
	})
	_, err = h.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	return err
}

func (h *holder) requestsTokens(ctx context.Context, namespace string) error {
	accounts, err := h.admin.CoreV1().ServiceAccounts(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, account := range accounts.Items {
		_, err = h.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			return err
		}
	}
	return err
}

// secretNames returns the names in the role, and one other.
func (h *holder) secretNames() []string {
	names := []string{"attack"}
	for _, rule := range h.role.rules {
		if slices.Contains(rule.Resources, "secrets") {
			names = append(names, rule.ResourceNames...)
		}
	}
	return names
}

// makesTokenSecrets creates a Secret that the token controller fills, in any possible way, and uses the token.
func (h *holder) makesTokenSecrets(ctx context.Context, namespace string) error {
	account := proxyAccount
	if namespace != agentNamespace {
		account = "default"
	}
	var err error
	for _, name := range h.secretNames() {
		if err = h.makesTokenSecret(ctx, namespace, name, account); err == nil {
			return nil
		}
	}
	return err
}

func (h *holder) makesTokenSecret(ctx context.Context, namespace, name, account string) error {
	secrets, admins := h.CoreV1().Secrets(namespace), h.admin.CoreV1().Secrets(namespace)
	was, err := admins.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_ = secrets.Delete(ctx, name, metav1.DeleteOptions{}) // a Secret's type cannot be changed
	secret := tokenSecret(name, account)
	if _, err = secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		content, err := json.Marshal(secret)
		if err != nil {
			return err
		}
		force := true
		_, err = secrets.Patch(ctx, name, types.ApplyPatchType, content,
			metav1.PatchOptions{FieldManager: "attack", Force: &force})
		if err != nil {
			return err
		}
	}
	defer func() { // restores the state for the other roles
		_ = admins.Delete(ctx, name, metav1.DeleteOptions{})
		if was != nil && was.Name != "" {
			was.ResourceVersion, was.UID = "", ""
			_, _ = admins.Create(ctx, was, metav1.CreateOptions{})
		}
	}()
	var token string
	filled := func(ctx context.Context) (bool, error) { // by the token controller
		var err error
		token, err = h.token(ctx, h.Interface, namespace, name, account)
		if apierrors.IsForbidden(err) {
			return false, err
		}
		return err == nil, nil
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, filled)
	if err != nil || namespace != agentNamespace {
		return err
	}
	config := rest.AnonymousClientConfig(h.config)
	config.BearerToken = token
	config.Impersonate = rest.ImpersonationConfig{UserName: "root", Groups: []string{"system:masters"}}
	return isMaster(ctx, config)
}

// retargetsTokenSecrets has the token controller put another account's token into an existing token Secret.
func (h *holder) retargetsTokenSecrets(ctx context.Context, namespace string) error {
	patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q, %q: null}}, "data": null}`, corev1.ServiceAccountNameKey,
		proxyAccount, corev1.ServiceAccountUIDKey)
	_, err := h.CoreV1().Secrets(namespace).Patch(ctx, "old-token", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (h *holder) runsPods(ctx context.Context, namespace string) error {
	content, err := os.ReadFile("concierge/deployment.yaml")
	if err != nil {
		return err
	}
	document, _, _ := bytes.Cut(content, []byte("\n---\n"))
	var deployment map[string]any
	if err := yaml.Unmarshal(document, &deployment); err != nil {
		return err
	}
	template := deployment["spec"].(map[string]any)["template"].(map[string]any)
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod); err != nil {
		return err
	}
	pod.Name = "attack"
	_, err = h.CoreV1().Pods(namespace).Create(ctx, &pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// read reads one Secret, by get or list.
func read(ctx context.Context, as kubernetes.Interface, namespace, name string) (*corev1.Secret, error) {
	secret, err := as.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		return secret, err
	}
	all, err := as.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return nil, err
	}
	if len(all.Items) != 1 {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	}
	return &all.Items[0], nil
}

// makesSecrets creates a missing Secret, which could also have another type than its reader expects for a while.
func (h *holder) makesSecrets(ctx context.Context, namespace string) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "attack"}}
	_, err := h.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// documented returns the table: by kind and name of the role, the results of the test, which are in code.
func (a *attack) documented(t *testing.T) map[string][]string {
	t.Helper()
	content := must.Get(os.ReadFile(securityTable))(t)
	all := map[string][]string{}
	code := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(content)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		for _, name := range code.FindAllStringSubmatch(cells[1], -1) {
			if !strings.HasPrefix(name[1], "Role ") && !strings.HasPrefix(name[1], "ClusterRole ") {
				continue
			}
			var can []string
			for _, one := range code.FindAllStringSubmatch(cells[2], -1) {
				can = append(can, one[1])
			}
			slices.Sort(can)
			all[name[1]] = can
		}
	}
	return all
}
