package integration

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// signing returns its own world: a cluster with a kube-controller-manager, and the agent with deploy/clustersigner.
func signing(t *testing.T) *world {
	t.Helper()
	w := ownWorld(t, devcluster.Options{ControllerManager: true})
	overlay := t.TempDir()
	deploy := must.Get(filepath.Rel(overlay, w.Deploy))(t)
	content := fmt.Sprintf(
		"resources: [%[1]s/concierge, %[1]s/local-user-authenticator]\ncomponents: [%[1]s/clustersigner]\n",
		filepath.ToSlash(deploy),
	)
	must.Do(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(content), 0o600))
	issuer := filepath.Join(w.Deploy, "concierge", "credentialissuer.yaml")
	must.Do(t, w.Cluster.Install(t.Context(), overlay, issuer))
	// The agent does not run in a pod: it gets the configuration of the overlay.
	w.Config = w.kubectlDoes(t, "--namespace="+devinstall.Namespace,
		"get", "configmap", "pinniped-concierge-agent", `--output=jsonpath={.data.pinniped\.yaml}`)
	must.Do(t, w.admin.Create(t.Context(), w.clusterInfo(t, w.Cluster.URL())))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must.Do(t, w.startAll(ctx, []string{"shutdownDelay=0s"}, "agent-a", "agent-b"))
	// Logins go to the replica that does not lead. The leader writes the status, so it must learn the result.
	leader, other := w.leader(t)
	w.agents = []*devinstall.Agent{other, leader}
	must.Do(t, w.PointAt(t.Context(), other))
	must.Do(t, w.WaitAvailable(ctx))
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.Mode, s.ExternalEndpoint = configv1alpha1.ImpersonationProxyModeEnabled, w.agents[0].ProxyAddress()
		s.Service.Type = configv1alpha1.ServiceTypeNone
	})
	return w
}

// waitForStrategies waits until both strategies have these reasons, and returns them.
func (w *world) waitForStrategies(
	t *testing.T,
	cluster, proxy configv1alpha1.StrategyReason,
) []configv1alpha1.CredentialIssuerStrategy {
	t.Helper()
	var found []configv1alpha1.CredentialIssuerStrategy
	testkit.Eventually(t, time.Minute, func() error {
		found = w.issuer(t).Status.Strategies
		if len(found) != 2 || found[0].Type != configv1alpha1.StrategyKubeClusterSigningCertificate ||
			found[0].Reason != cluster || found[1].Reason != proxy {
			return fmt.Errorf("the strategies are %+v", found)
		}
		return nil
	})
	return found
}

func (w *world) clusterInfo(t *testing.T, server string) *corev1.ConfigMap {
	t.Helper()
	info := must.Get(clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: server, CertificateAuthorityData: w.Cluster.CABundle()},
	}}))(t)
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": string(info)},
	}
}

// moveAPIServer changes the address of the API server in the cluster-info, and waits until the status has it.
func (w *world) moveAPIServer(t *testing.T, server string) {
	t.Helper()
	must.Do(t, w.admin.Update(t.Context(), w.clusterInfo(t, server)))
	testkit.Eventually(t, 30*time.Second, func() error {
		frontend := w.issuer(t).Status.Strategies[0].Frontend
		if frontend == nil || frontend.TokenCredentialRequestAPIInfo.Server != server {
			return fmt.Errorf("clients are told %+v", frontend)
		}
		return nil
	})
}

// TestLoginsByTheClustersOwnSigner logs users in at the API server, with certificates of the real
// kube-controller-manager, and at the proxy when that is down.
func TestLoginsByTheClustersOwnSigner(t *testing.T) {
	t.Parallel() // has its own world
	w := signing(t)
	const pinny = "pinny"
	strategies := w.waitForStrategies(t, configv1alpha1.ReasonFetchedKey, configv1alpha1.ReasonListening)
	if info := strategies[0].Frontend.TokenCredentialRequestAPIInfo; info == nil || info.Server != w.Cluster.URL() ||
		info.CertificateAuthorityData != base64.StdEncoding.EncodeToString(w.Cluster.CABundle()) {
		t.Errorf("clients are told %+v", info)
	}
	w.moveAPIServer(t, "https://moved.example.com:6443")
	w.moveAPIServer(t, w.Cluster.URL())
	newKubeconfig := func(args ...string) string {
		path := filepath.Join(t.TempDir(), "user.kubeconfig")
		w.asAdmin(t, append([]string{
			"get", "kubeconfig", "--static-token=pinny:password123", "--output=" + path,
		}, args...)...).ok(t)
		return path
	}
	server := func(path string) string {
		config := must.Get(clientcmd.LoadFromFile(path))(t)
		return config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
	}
	whoAmI := func(path string, args ...string) result {
		return w.run(t, w.kubectl, append([]string{"--kubeconfig=" + path, "auth", "whoami", "--output=name"}, args...)...)
	}
	signed := func(by string) int {
		log := must.Get(os.ReadFile(w.agents[0].Log()))(t)
		return strings.Count(string(log), fmt.Sprintf(`"signer":%q`, by))
	}

	r := w.reader(t)
	transcript := r.blocks(t, "docs/howto/cluster-signer.md")[0]
	if printed := r.types(t, transcript); !strings.Contains(transcript.Text, "\n"+printed+"\n") {
		t.Errorf("%s prints %q", transcript, printed)
	}
	direct := newKubeconfig()
	if at := server(direct); at != w.Cluster.URL() {
		t.Errorf("get kubeconfig chose %s, not the API server", at)
	}
	if got := whoAmI(direct, "--output=jsonpath={.status.userInfo.username}"); got.code != 0 || got.out != pinny {
		t.Fatalf("at the API server: %d %s%s", got.code, got.out, got.errOut)
	}
	if signed("cluster") != 1 || signed("agent") != 0 {
		t.Error("the cluster's signer did not sign the login at the API server")
	}
	proxyCA := filepath.Join(t.TempDir(), "proxy-ca.crt")
	bundle := must.Get(
		base64.StdEncoding.DecodeString(strategies[1].Frontend.ImpersonationProxyInfo.CertificateAuthorityData),
	)(t)
	must.Do(t, os.WriteFile(proxyCA, bundle, 0o600))
	if got := whoAmI(direct, "--output=jsonpath={.status.userInfo.username}",
		"--server="+strategies[1].Frontend.ImpersonationProxyInfo.Endpoint, "--certificate-authority="+proxyCA,
	); got.code != 0 || got.out != pinny {
		t.Errorf("the proxy does not accept the cluster's certificate: %d %s%s", got.code, got.out, got.errOut)
	}

	before := signed("cluster")
	through := newKubeconfig("--concierge-mode=ImpersonationProxy")
	if got := whoAmI(through, "--output=jsonpath={.status.userInfo.username}"); got.code != 0 || got.out != pinny {
		t.Errorf("at the proxy: %d %s%s", got.code, got.out, got.errOut)
	}
	if signed("cluster") != before || signed("agent") != 1 {
		t.Error("a login at the proxy made a CertificateSigningRequest")
	}

	must.Do(t, w.Cluster.StopControllerManager())
	if got := whoAmI(direct); got.code == 0 ||
		!strings.Contains(got.errOut, "the cluster's own signer issues no certificates at the moment") {
		t.Errorf("without a signer, at the API server: %d %s%s", got.code, got.out, got.errOut)
	}
	strategies = w.waitForStrategies(t, configv1alpha1.ReasonCouldNotFetchKey, configv1alpha1.ReasonListening)
	if !strings.Contains(strategies[0].Message, "no response within 10s") || strategies[0].Frontend != nil {
		t.Errorf("the status says %+v", strategies[0])
	}
	fallback := newKubeconfig()
	if at := server(fallback); at != strategies[1].Frontend.ImpersonationProxyInfo.Endpoint {
		t.Errorf("get kubeconfig chose %s, not the proxy", at)
	}
	began := time.Now()
	if got := whoAmI(fallback, "--output=jsonpath={.status.userInfo.username}"); got.code != 0 || got.out != pinny {
		t.Errorf("at the proxy, without a signer: %d %s%s", got.code, got.out, got.errOut)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("a login at the proxy waited for the cluster's signer: %s", took)
	}
}
