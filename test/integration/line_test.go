package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// userKubeconfig creates user pinny's kubeconfig as the seed's walkthrough does.
func (w *world) userKubeconfig(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pinny.kubeconfig")
	w.asAdmin(t, "get", "kubeconfig",
		"--static-token="+token,
		"--concierge-authenticator-type=webhook", "--concierge-authenticator-name=local-user-authenticator",
		"--concierge-mode=ImpersonationProxy", "--output="+path).ok(t)
	return path
}

// external puts a certificate into service with `pinniped ip-tls set` and the corporate CA as the bundle.
func (w *world) external(t *testing.T, secret string, pair map[string][]byte) {
	t.Helper()
	w.generatedOnly(t)
	w.putSecret(t, secret, pair)
	bundle := fileWith(t, "ca.pem", w.pki.CertPEM())
	w.asAdmin(t, "ip-tls", "set", "--secret="+secret, "--ca-bundle="+bundle, "--timeout=30s",
		"--allow=OldClientsBreak").ok(t)
	w.onlyNow(t)
}

// onlyNow retires the revisions of earlier tests, so that no certificate is refused for the sake of their clients.
func (w *world) onlyNow(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() error {
		var kept corev1.ConfigMap
		name := ours("pinniped-concierge-revisions")
		if err := w.admin.Get(t.Context(), name, &kept); err != nil {
			return client.IgnoreNotFound(err)
		}
		history, err := serving.Read(kept.Data)
		if err != nil {
			return err
		}
		retired := map[string]string{}
		for _, state := range history.Revisions {
			if !state.Until.IsZero() && !state.Ended() {
				key, value := state.Retirement(time.Now())
				retired[key] = value
			}
		}
		if len(retired) == 0 {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"data": retired})
		if err != nil {
			return err
		}
		if err := w.admin.Patch(t.Context(), &kept, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return err
		}
		return fmt.Errorf("%d states were not retired yet", len(retired))
	})
}

func TestTheWholeLine(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.external(t, "corporate-cert", pairData(pair))
	if err := presents(w.agents[0].ProxyAddress(), pair); err != nil {
		t.Errorf("right after ip-tls set: %v", err)
	}

	again := w.asAdmin(t, "ip-tls", "set", "--secret=corporate-cert", "--timeout=30s")
	if again.code != 0 || !strings.Contains(again.out+again.errOut, "unchanged") {
		t.Errorf("the same command again ended with %d: %s%s", again.code, again.out, again.errOut)
	}

	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	if info, err := os.Stat(kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig's mode is %v, %v", info.Mode(), err)
	}

	forbidden := w.kubectlAs(t, kubeconfig, "get", "pods", "-A")
	const want = `Error from server (Forbidden): pods is forbidden: User "pinny" cannot list resource "pods" in API group "" at the cluster scope: decision made by impersonation-proxy.concierge.pinniped.dev`
	if forbidden.code == 0 || !strings.Contains(forbidden.errOut, want) {
		t.Errorf("kubectl without permission: %d %s", forbidden.code, forbidden.errOut)
	}

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mtls-admins"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "group-for-mtls"}},
	}
	w.create(t, binding)
	// A new permission must take effect within a second.
	testkit.Eventually(
		t,
		2*time.Second,
		func() error { return w.kubectlAs(t, kubeconfig, "get", "namespaces", "--output=name").err() },
	)
	w.kubectlAs(t, kubeconfig, "create", "configmap", "from-pinny", "--from-literal=a=b").ok(t)
	if got := w.succeed(t, w.kubectl, "--kubeconfig="+kubeconfig, "get", "configmap", "from-pinny",
		"--output=jsonpath={.data.a}"); got != "b" {
		t.Errorf("the ConfigMap holds %q", got)
	}
	w.kubectlAs(t, kubeconfig, "explain", "tokencredentialrequest.spec.token").ok(t)

	whoami := w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)
	for _, line := range []string{"Username: pinny", "Groups: group-for-mtls, system:authenticated"} {
		if !strings.Contains(whoami, line) {
			t.Errorf("whoami lacks %q:\n%s", line, whoami)
		}
	}

	// The three CA bundles of the seed's last step.
	config := must.Get(clientcmd.LoadFromFile(kubeconfig))(t)
	inKubeconfig := config.Clusters[config.Contexts[config.CurrentContext].Cluster].CertificateAuthorityData
	inStatus := must.Get(base64.StdEncoding.DecodeString(
		w.strategy(t).Frontend.ImpersonationProxyInfo.CertificateAuthorityData,
	))(t)
	if onDisk := w.pki.CertPEM(); !bytes.Equal(inKubeconfig, onDisk) || !bytes.Equal(inStatus, onDisk) {
		t.Errorf("the CA bundles differ:\nkubeconfig %q\nstatus %q\ndisk %q", inKubeconfig, inStatus, onDisk)
	}

	w.kubectlAs(t, w.userKubeconfig(t, "pinny:wrong"), "get", "namespaces").fails(t, "authentication failed")
}

// TestCredentialsOfTheClusterItself shows that the proxy accepts the credentials that the API server accepts.
func TestCredentialsOfTheClusterItself(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	through := func(name string, change func(path string)) string {
		path := filepath.Join(t.TempDir(), name)
		change(path)
		w.succeed(t, w.kubectl, "--kubeconfig="+path, "config", "set-cluster", currentCluster(t, path),
			"--server=https://"+w.endpoint())
		w.succeed(t, w.kubectl, "--kubeconfig="+path, "config", "set",
			"clusters."+currentCluster(t, path)+".certificate-authority-data",
			base64.StdEncoding.EncodeToString(w.pki.CertPEM()))
		return path
	}
	whoAmI := func(kubeconfig string) string {
		return w.kubectlAs(t, kubeconfig, "auth", "whoami", "--output=json").ok(t).out
	}

	certificate := through("certificate", func(path string) {
		user := must.Get(w.Cluster.User("ann", "ops"))(t)
		must.Do(t, w.Cluster.WriteKubeconfig(path, user))
	})
	if got := whoAmI(certificate); !strings.Contains(got, `"username": "ann"`) || !strings.Contains(got, `"ops"`) {
		t.Errorf("a client certificate of the cluster's CA: %s", got)
	}

	account := through("account", func(path string) {
		identity := must.Get(w.Cluster.ServiceAccountConfig(
			t.Context(),
			"pinniped-concierge",
			"pinniped-concierge-impersonation-proxy",
		))(t)
		must.Do(t, w.Cluster.WriteKubeconfig(path, identity))
	})
	if got := whoAmI(account); !strings.Contains(
		got, `"username": "system:serviceaccount:pinniped-concierge:pinniped-concierge-impersonation-proxy"`,
	) ||
		!strings.Contains(got, `"uid"`) {
		t.Errorf("a service account's token: %s", got)
	}
	w.kubectlAs(t, certificate, "--as=bob", "get", "--raw=/api/v1/namespaces/default").fails(t, "cannot impersonate")
}

func currentCluster(t *testing.T, path string) string {
	t.Helper()
	config := must.Get(clientcmd.LoadFromFile(path))(t)
	return config.Contexts[config.CurrentContext].Cluster
}

// TestRenewalUnderAWatch renews the certificate during a kubectl watch: the watch continues, and on every replica new
// connections get the new certificate within two seconds.
func TestRenewalUnderAWatch(t *testing.T) {
	w := needsCluster(t)
	first := w.issue(t, "localhost")
	w.external(t, "corporate-cert", pairData(first))
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "watchers"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
		},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "watchers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "pinny"}},
	}
	w.create(t, role, binding)
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	testkit.Eventually(t, 5*time.Second, func() error { return w.kubectlAs(t, kubeconfig, "get", "configmaps").err() })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := exec.CommandContext(ctx, w.kubectl, "--kubeconfig="+kubeconfig, "get", "configmaps", "--watch-only",
		"--output=name")
	watch.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	out := must.Get(watch.StdoutPipe())(t)
	must.Do(t, watch.Start())
	seen := make(chan string, 100)
	var ended atomic.Bool
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			seen <- lines.Text()
		}
		ended.Store(true)
	}()
	waitFor := func(name string) {
		t.Helper()
		number := 0
		testkit.Eventually(t, 15*time.Second, func() error { // the watch may miss the first ones
			if number++; number%10 == 1 {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: name + "-"}}
				must.Do(t, w.admin.Create(t.Context(), object))
			}
			for {
				select {
				case line := <-seen:
					if strings.HasPrefix(line, "configmap/"+name+"-") {
						return nil
					}
				default:
					if ended.Load() {
						t.Fatal("the watch has ended")
					}
					return fmt.Errorf("the watch has not shown %s", name)
				}
			}
		})
	}
	waitFor("before")

	second := w.issue(t, "localhost")
	w.putSecret(t, "corporate-cert", pairData(second))
	renewed := time.Now()
	w.allPresent(t, 2*time.Second, second)
	t.Logf("every replica served the new certificate after %s", time.Since(renewed).Round(time.Millisecond))
	waitFor("after")
}

// TestTokenCredentialRequestThroughTheAPIServer logs in at the API server itself, through its aggregated API.
func TestTokenCredentialRequestThroughTheAPIServer(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	request := `{"apiVersion":"login.concierge.pinniped.dev/v1alpha1","kind":"TokenCredentialRequest","spec":{"token":"pinny:password123",
		"authenticator":{"apiGroup":"authentication.concierge.pinniped.dev","kind":"WebhookAuthenticator","name":"local-user-authenticator"}}}`
	path := fileWith(t, "request.json", []byte(request))
	out := w.kubectlDoes(t, "create", "--output=json",
		"--filename="+path)
	var answer struct {
		Spec   struct{ Token string }
		Status struct {
			Credential struct{ ClientCertificateData, ClientKeyData, ExpirationTimestamp string }
			Message    string
		}
	}
	must.Do(t, json.Unmarshal([]byte(out), &answer))
	if !strings.HasPrefix(answer.Status.Credential.ClientCertificateData, "-----BEGIN CERTIFICATE-----") ||
		answer.Status.Message != "" {
		t.Errorf("no certificate; the message is %q", answer.Status.Message)
	}
	if answer.Spec.Token != "" {
		t.Error("the token came back")
	}
}

// TestPublicCertificate serves a certificate whose CA is not published: everything else keeps working.
func TestPublicCertificate(t *testing.T) {
	w := needsCluster(t)
	pair := w.issue(t, "localhost")
	w.generatedOnly(t)
	w.putSecret(t, "public-cert", pairData(pair))
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "public-cert"}
	})
	testkit.Eventually(t, 10*time.Second, func() error { return presents(w.agents[0].ProxyAddress(), pair) })
	testkit.Eventually(t, 10*time.Second, func() error {
		strategy := w.strategy(t)
		if strategy.Status != configv1alpha1.StrategySuccess ||
			strategy.Frontend.ImpersonationProxyInfo.CertificateAuthorityData != "" {
			return fmt.Errorf("the status is %+v", strategy)
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	bundle := fileWith(t, "roots.pem", w.pki.CertPEM())
	w.runWith(t, []string{"SSL_CERT_FILE=" + bundle}, nil, w.cli, "get", "kubeconfig",
		"--kubeconfig="+w.Cluster.AdminKubeconfig(), "--static-token=pinny:password123",
		"--concierge-mode=ImpersonationProxy", "--output="+path).ok(t)
	config := must.Get(clientcmd.LoadFromFile(path))(t)
	if cluster := config.Clusters[currentCluster(t, path)]; len(cluster.CertificateAuthorityData) > 0 ||
		cluster.InsecureSkipTLSVerify {
		t.Errorf("the cluster is %+v", cluster)
	}
	w.runWith(t, []string{"SSL_CERT_FILE=" + bundle}, nil, w.cli, "whoami", "--kubeconfig="+path).
		exits(t, 0, "Username: pinny")
}
