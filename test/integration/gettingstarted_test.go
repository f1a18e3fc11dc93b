package integration

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
)

// TestGettingStarted runs the whole page, block by block, without the steps that need a kubelet: the port forwarding,
// because the proxy listens on this machine, and the wait for a pod.
func TestGettingStarted(t *testing.T) {
	const document = "docs/getting-started.md"
	w := needsCluster(t)
	w.generatedOnly(t)
	defer w.generatedOnly(t)
	w.removeAfterwards(t,
		&authenticationv1alpha1.WebhookAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "local-users"}},
		&authenticationv1alpha1.JWTAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "people"}},
		&authenticationv1alpha1.JWTAuthenticator{ObjectMeta: metav1.ObjectMeta{Name: "ci"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "visitors"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.LocalUserNamespace, Name: "ann"}},
	)
	idp := issuer.New(t)
	trusted := "issuer: " + idp.URL + "\n  tls: {certificateAuthorityData: " +
		base64.StdEncoding.EncodeToString(idp.CA) + "}"
	r := w.reader(t)
	r.places = append(r.places, "localhost:8443", w.endpoint(),
		"https://local-user-authenticator.local-user-authenticator.svc/authenticate", w.users.Endpoint(),
		"--clusterrole=view", "--clusterrole=system:aggregate-to-view", // no controller of the cluster aggregates "view"
		"issuer: https://login.example.com", trusted, "issuer: https://token.actions.githubusercontent.com", trusted)
	r.program(t, "kubectl", `case "$1" in port-forward|rollout) exit 0 ;; esac; exec '`+w.kubectl+`' "$@"`)

	printed := strings.Join(r.reads(t, document, map[string]func(){
		"name: people": func() { w.generatedOnly(t) }, // the page has switched back to the load balancer, and there is none
	}), "")
	if !strings.Contains(printed, "Username: ann\nGroups: visitors, system:authenticated") {
		t.Errorf("nobody was ann:\n%s", printed)
	}
	for file, want := range map[string]string{"people.yaml": "--issuer=" + idp.URL, "ci.yaml": "tokenFile: token"} {
		content, err := os.ReadFile(filepath.Join(r.dir, file))
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s has no %q: %v\n%s", file, want, err, content)
		}
	}
}
