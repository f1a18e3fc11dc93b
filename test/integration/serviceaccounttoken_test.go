package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/kubeversion"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const userAccounts = "pinniped-concierge-users"

// accountTokens returns its own world: a cluster with no load balancer, no signer and no proxy.
func accountTokens(t *testing.T) *world {
	t.Helper()
	w := ownWorld(t, devcluster.Options{})
	must.Do(t, w.Install(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must.Do(t, w.startAll(ctx, nil, "agent-tokens"))
	return w
}

// setTokens sets the mode of the strategy.
func (w *world) setTokens(t *testing.T, mode configv1alpha1.ServiceAccountTokensMode) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error { // the agent also writes the status
		issuer := w.issuer(t)
		issuer.Spec.ImpersonationProxy.Mode = configv1alpha1.ImpersonationProxyModeDisabled
		issuer.Spec.ServiceAccountTokens = &configv1alpha1.ServiceAccountTokensSpec{Mode: mode}
		return w.admin.Update(t.Context(), issuer)
	})
}

// waitForTokens waits until the strategy has this reason, "" for not listed, and returns it.
func (w *world) waitForTokens(
	t *testing.T,
	reason configv1alpha1.StrategyReason,
) (strategy configv1alpha1.CredentialIssuerStrategy) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		strategy = configv1alpha1.CredentialIssuerStrategy{}
		for _, listed := range w.issuer(t).Status.Strategies {
			if listed.Type == configv1alpha1.StrategyServiceAccountToken {
				strategy = listed
			}
		}
		if strategy.Reason != reason {
			return fmt.Errorf("the strategy is %+v", strategy)
		}
		return nil
	})
	return strategy
}

// setGroups sets pinny's groups.
func (w *world) setGroups(t *testing.T, groups string) {
	t.Helper()
	var secret corev1.Secret
	key := types.NamespacedName{Namespace: devinstall.LocalUserNamespace, Name: "pinny"}
	must.Do(t, w.admin.Get(t.Context(), key, &secret))
	secret.Data["groups"] = []byte(groups)
	must.Do(t, w.admin.Update(t.Context(), &secret))
}

// TestLoginsByTokensOfServiceAccounts logs users in on a cluster with no load balancer, no proxy and no signer.
func TestLoginsByTokensOfServiceAccounts(t *testing.T) {
	t.Parallel() // has its own world
	w := accountTokens(t)
	w.setTokens(t, configv1alpha1.ServiceAccountTokensModeEnabled)
	strategy := w.waitForTokens(t, configv1alpha1.ReasonErrorDuringSetup)
	if len(strategy.Findings) != 1 || strategy.Findings[0].Code != configv1alpha1.CodeUserAccountsNotPermitted {
		t.Errorf("without the overlay, the status says %+v", strategy)
	}
	r := w.reader(t)
	r.places = append(r.places, "ann@example.com", "pinny")
	blocks := r.blocks(t, "docs/howto/no-load-balancer.md")
	r.types(t, blocks[0])
	strategy = w.waitForTokens(t, configv1alpha1.ReasonIssuingTokens)
	constrained := strings.Contains(strategy.Message, "constrained impersonation")
	if constrained != kubeversion.ConstrainedImpersonation.In(w.Cluster.Version()) ||
		strategy.Frontend.TokenCredentialRequestAPIInfo.Server == "" {
		t.Errorf("the status says %+v", strategy)
	}
	for _, object := range []client.Object{
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "views"},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"configmaps", "pods"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "group-views"},
			Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "group-for-mtls"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "views"},
		},
	} {
		must.Do(t, w.admin.Create(t.Context(), object))
	}
	dir := t.TempDir()
	user := filepath.Join(dir, "user.yaml")
	got := w.asAdmin(t, "get", "kubeconfig", "--static-token=pinny:password123", "--concierge-mode=auto", "--output="+user)
	if got.code != 0 || !strings.Contains(got.errOut, "chose strategy ServiceAccountToken") {
		t.Fatalf("get kubeconfig ended with %d: %s", got.code, got.errOut)
	}

	t.Run("stock kubectl", func(t *testing.T) {
		if out := w.kubectlAs(t, user, "auth", "whoami", "--output=json").ok(t).out; !strings.Contains(
			out, `"username": "pinny"`) || !strings.Contains(out, `"group-for-mtls"`) {
			t.Errorf("kubectl is %s", out)
		}
		w.kubectlAs(t, user, "get", "configmaps", "--namespace=default").ok(t)
		w.kubectlAs(t, user, "get", "secrets").fails(t, `User "pinny" cannot list resource "secrets"`)
	})
	t.Run("the audit log names the account and the user", func(t *testing.T) {
		if !w.auditedAs(t, "system:serviceaccount:"+userAccounts+":pinniped-user-", "pinny") {
			t.Error("no request of a user's service account as pinny is in the audit log")
		}
	})
	t.Run("as the document has it", func(t *testing.T) {
		r.program(t, "k9s", "exec kubectl get configmaps --namespace=default") // any client will do
		r.types(t, blocks[1])
		r.types(t, blocks[2])
		user := "--kubeconfig=" + filepath.Join(r.dir, "user.yaml")
		if who := w.runWith(t, r.environment, nil, w.kubectl, user, "auth", "whoami"); !strings.Contains(who.out, "pinny") {
			t.Errorf("kubectl with user.yaml: %+v", who)
		}
	})
	t.Run("any client", func(t *testing.T) {
		everybody := filepath.Join(dir, "everybody.yaml")
		w.asAdmin(t, "get", "kubeconfig", "--static-token-env=TOKEN", "--concierge-mode=ServiceAccountToken",
			"--no-impersonation", "--output="+everybody).ok(t)
		w.testClients(t, everybody)
		got := w.runWith(t, []string{"TOKEN=pinny:password123"}, nil, w.cli,
			"kubectl", "--kubeconfig", everybody, "auth", "whoami", "--output=jsonpath={.status.userInfo.username}")
		if got.code != 0 || got.out != "pinny" {
			t.Errorf("pinniped kubectl: %+v", got)
		}
	})
	t.Run("a group that is gone", func(t *testing.T) {
		w.setGroups(t, "other")
		w.kubectlAs(t, user, "get", "configmaps").fails(t, "your kubeconfig is out of date")
		environment := []string{"KUBECONFIG=" + user, "PINNIPED_UPDATE_KUBECONFIG=true"}
		w.runWith(t, environment, nil, w.kubectl, "get", "configmaps").fails(t, "is now up to date: run the command again")
		out := w.kubectlAs(t, user, "auth", "whoami", "--output=jsonpath={.status.userInfo.groups}").ok(t).out
		if strings.Contains(out, "group-for-mtls") || !strings.Contains(out, "other") {
			t.Errorf("the groups are %s", out)
		}
		w.setGroups(t, "group-for-mtls")
	})
	t.Run("switched off", func(t *testing.T) {
		w.setTokens(t, configv1alpha1.ServiceAccountTokensModeDisabled)
		w.waitForTokens(t, "")
		var accounts corev1.ServiceAccountList
		var roles rbacv1.ClusterRoleList
		must.Do(t, w.admin.List(t.Context(), &accounts, client.InNamespace(userAccounts)))
		must.Do(t, w.admin.List(t.Context(), &roles, client.HasLabels{"concierge.pinniped.dev/user-accounts"}))
		if len(accounts.Items)+len(roles.Items) > 0 {
			t.Errorf("left: %d service accounts, %d ClusterRoles", len(accounts.Items), len(roles.Items))
		}
		w.kubectlAs(t, user, "get", "configmaps").fails(t, "this cluster issues no service account tokens")
		w.setTokens(t, configv1alpha1.ServiceAccountTokensModeEnabled)
		w.waitForTokens(t, configv1alpha1.ReasonIssuingTokens)
		fresh := filepath.Join(t.TempDir(), "fresh.yaml")
		w.asAdmin(t, "get", "kubeconfig", "--static-token=pinny:password123", "--output="+fresh).ok(t)
		w.kubectlAs(t, fresh, "get", "configmaps", "--namespace=default").ok(t)
		if out := r.types(t, blocks[3]); !strings.Contains(out, `" deleted`) {
			t.Errorf("no service account was deleted: %s", out)
		}
	})
	t.Run("a user who is removed in the middle", w.testRemoval)
}

// testRemoval deletes the user and the account while a program runs: logins fail at once, the token a few seconds
// later.
func (w *world) testRemoval(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pinny.yaml")
	w.asAdmin(t, "get", "kubeconfig", "--static-token=pinny:password123", "--output="+path).ok(t)
	command := exec.CommandContext(t.Context(), w.cli, "run", "--kubeconfig="+path, "--", "sh", "-c",
		`while read line; do kubectl auth whoami --output=name >/dev/null 2>&1; echo $?; done`)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	in := must.Get(command.StdinPipe())(t)
	out := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	answers := bufio.NewReader(out)
	ask := func() string {
		t.Helper()
		must.Get(io.WriteString(in, "\n"))(t)
		answer := must.Get(answers.ReadString('\n'))(t)
		return strings.TrimSpace(answer)
	}
	if got := ask(); got != "0" {
		t.Fatalf("kubectl ended with %s", got)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.LocalUserNamespace, Name: "pinny"}}
	must.Do(t, w.admin.Delete(t.Context(), secret))
	if got := w.kubectlAs(t, path, "auth", "whoami"); got.code == 0 {
		t.Error("a user who is removed logs in")
	}
	var accounts corev1.ServiceAccountList
	must.Do(t, w.admin.List(t.Context(), &accounts, client.InNamespace(userAccounts)))
	for i := range accounts.Items {
		if accounts.Items[i].Annotations["concierge.pinniped.dev/username"] == "pinny" {
			must.Do(t, w.admin.Delete(t.Context(), &accounts.Items[i]))
		}
	}
	testkit.Eventually(t, 30*time.Second, func() error { // the API server caches accepted tokens for ten seconds
		if ask() == "0" {
			return fmt.Errorf("the token of a deleted service account works")
		}
		return nil
	})
	must.Do(t, in.Close())
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

// auditedAs reports whether a user whose name has the prefix impersonated another one, according to the audit log.
func (w *world) auditedAs(t *testing.T, userPrefix, as string) bool {
	t.Helper()
	for event := range w.audit(t) {
		if strings.HasPrefix(event.User.Username, userPrefix) && event.as() == as {
			return true
		}
	}
	return false
}
