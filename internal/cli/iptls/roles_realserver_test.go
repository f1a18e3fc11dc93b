package iptls_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestRoles runs the ip-tls commands on a real API server, as users with the Roles in deploy/iptlsroles and as a user
// without.
func TestRoles(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{}, "../../../deploy/crds", "../../../deploy/tlscertificatedelegation")
	w := iptlstest.New(t)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, content, 0o600))
		return path
	}
	secret := func(namespace, name string, pair *certs.KeyPair, ca *certs.CA) map[string]any {
		data := map[string]any{}
		for key, value := range map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": ca.CertPEM()} {
			data[key] = base64.StdEncoding.EncodeToString(value)
		}
		return map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
			"metadata": map[string]any{"namespace": namespace, "name": name},
		}
	}
	var objects bytes.Buffer
	for _, object := range []map[string]any{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "pinniped-concierge"}},
		{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "shared"}},
		secret("pinniped-concierge", "proxy-tls", w.Pair, w.CA), secret("shared", "wildcard-tls", w.Pair, w.CA),
		secret("pinniped-concierge", "next-tls", iptlstest.Serving(t, w.Generated, iptlstest.Loopback()), w.Generated),
		{
			"apiVersion": "v1", "kind": "Service", "spec": map[string]any{"ports": []any{map[string]any{"port": 443}}},
			"metadata": map[string]any{
				"namespace": "pinniped-concierge", "name": "pinniped-concierge-impersonation-proxy-load-balancer",
			},
		},
		{
			"apiVersion": "config.concierge.pinniped.dev/v1alpha1", "kind": "CredentialIssuer",
			"metadata": map[string]any{"name": "pinniped-concierge-config"},
			"spec": map[string]any{"impersonationProxy": map[string]any{
				"mode": "enabled", "service": map[string]any{"type": "LoadBalancer"}, "externalEndpoint": w.Proxy.Endpoint(),
			}},
		},
	} {
		text := must.Get(yaml.Marshal(object))(t)
		fmt.Fprintf(&objects, "---\n%s", text)
	}
	must.Do(t, cluster.Install(t.Context(), write("objects.yaml", objects.Bytes())))
	admin := must.Get(discovery.Connect(cluster.AdminConfig(), apis.DefaultGroupSuffix))(t)
	// The agent records that it has published its own CA before.
	w.Cluster.Report(w.Proxy.URL(), w.Generated.CertPEM())
	w.RecordSince(t, time.Now().Add(-time.Hour))
	w.Cluster.Report(w.Proxy.URL(), w.CA.CertPEM())
	w.RecordSince(t, time.Now())
	const handedOut = "pinniped-concierge-revisions"
	usual, _ := discovery.Objects(&configv1alpha1.CredentialIssuer{}, "pinniped-concierge")
	usual.RevisionsConfigMap = handedOut
	w.Cluster.Issuer.Status.Objects, w.Cluster.Issuer.Status.Revisions = &usual, nil
	must.Get(admin.ApplyConfigMap(t.Context(), "pinniped-concierge", handedOut,
		map[string]any{"data": w.Cluster.Revisions.Data}, discovery.ApplyOptions{FieldManager: "agent"}))(t)
	history, err := serving.Read(w.Cluster.Revisions.Data)
	if err != nil || len(history.Revisions) != 2 {
		t.Fatal(history, err)
	}
	for i := range w.Cluster.Issuer.Status.Strategies {
		w.Cluster.Issuer.Status.Strategies[i].LastUpdateTime = metav1.Now()
	}
	must.Get(admin.MergeCredentialIssuer(t.Context(), "pinniped-concierge-config",
		map[string]any{"status": w.Cluster.Issuer.Status}, discovery.ApplyOptions{FieldManager: "agent", Status: true}))(t)
	must.Do(t, cluster.Install(t.Context(), "../../../deploy/iptlsroles"))
	user := func(name, role string) string {
		if role != "" {
			bindings := ""
			for _, kind := range []string{"ClusterRole", "Role"} {
				binding := must.Get(yaml.Marshal(map[string]any{
					"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind + "Binding",
					"metadata": map[string]any{"name": name, "namespace": "pinniped-concierge"},
					"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
					"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}},
				}))(t)
				bindings += "---\n" + string(binding)
			}
			bindings = strings.Replace(bindings, "  name: "+name+"\n  namespace: pinniped-concierge\n", "  name: "+name+"\n", 1)
			must.Do(t, cluster.Install(t.Context(), write(name+".yaml", []byte(bindings))))
		}
		config := must.Get(cluster.User(name))(t)
		path := filepath.Join(dir, name+".kubeconfig")
		must.Do(t, cluster.WriteKubeconfig(path, config))
		return path
	}
	nobody := user("nobody", "")
	users := map[string]string{
		"viewer": user("viewer", "pinniped-ip-tls-viewer"), "operator": user("operator", "pinniped-ip-tls-operator"),
	}
	cert, key, ca := write("cert.pem", w.Pair.CertPEM), write("key.pem", w.Pair.KeyPEM), write("ca.pem", w.CA.CertPEM())
	for _, tt := range []struct {
		user string
		args []string
		code int
	}{
		{"viewer", []string{"status"}, ui.ExitNotConverged},
		{"viewer", []string{"history"}, 0},
		{"viewer", []string{"history"}, 0},
		{"viewer", []string{"manifest", "--for", "cert-manager", "--issuer", "Issuer/x"}, 0},
		{"operator", []string{"set", "--secret", "proxy-tls", "--wait=false", "--allow", "OldClientsBreak"}, 0},
		{"operator", []string{
			"set", "--secret", "proxy-tls", "--cert", cert, "--key", key, "--ca-bundle", ca, "--overwrite-secret",
			"--wait=false",
			"--allow", "OldClientsBreak",
		}, 0},
		{"operator", []string{"check"}, 0},
		{"operator", []string{"status"}, ui.ExitNotConverged},
		{"operator", []string{"history", "--retire", history.Revisions[0].ID}, 0},
		{"operator", []string{"history"}, 0},
		{"operator", []string{"undo", "--wait=false", "--allow", "OldClientsBreak"}, 0},
		{"operator", []string{"unset", "--wait=false", "--allow", "OldClientsBreak"}, 0},
	} {
		code, _, said := runIPTLS(t.Context(), tt.args, "--kubeconfig", nobody)
		if code != ui.ExitNotPermitted || !strings.Contains(said, `User "nobody" cannot `) ||
			!strings.Contains(said, "deploy/iptlsroles") {
			t.Errorf("%v without a Role: exit code %d, %s", tt.args, code, said)
		}
		testkit.Eventually(t, 30*time.Second, func() error { // the API server's authorizer needs a moment
			code, out, said := runIPTLS(t.Context(), tt.args, "--kubeconfig", users[tt.user])
			if code != tt.code || strings.Contains(out+said, "not permitted") && tt.user == "operator" {
				return fmt.Errorf("%v as %s: exit code %d, %s%s", tt.args, tt.user, code, out, said)
			}
			return nil
		})
	}
	fillsASecretThatAnAdministratorMakes(t, cluster, []string{
		"set", "--secret", "proxy-tls", "--cert", cert, "--key", key, "--ca-bundle", ca, "--wait=false",
		"--allow", "OldClientsBreak", "--kubeconfig", users["operator"],
	})
	code, _, said := runIPTLS(t.Context(), []string{"delegate", "shared/wildcard-tls"}, "--kubeconfig", users["operator"])
	if code != ui.ExitNotPermitted || !strings.Contains(said, `ask the owner of namespace "shared"`) {
		t.Errorf("delegate as operator: exit code %d, %s", code, said)
	}
}

// fillsASecretThatAnAdministratorMakes checks that an operator cannot create a Secret, which would make them an
// administrator, and that the command in the hint creates one that the operator can fill.
func fillsASecretThatAnAdministratorMakes(t *testing.T, cluster *devcluster.Cluster, set []string) {
	t.Helper()
	kubectl := must.Get(cluster.Kubectl())(t)
	admin := func(command string) {
		t.Helper()
		run := exec.CommandContext(t.Context(), "bash", "-c", command)
		run.Env = append(os.Environ(), "KUBECONFIG="+cluster.AdminKubeconfig(),
			"PATH="+filepath.Dir(kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	admin("kubectl delete secret proxy-tls --namespace=pinniped-concierge")
	code, _, said := runIPTLS(t.Context(), set)
	if code != ui.ExitNotPermitted || !strings.Contains(said, `User "operator" cannot create resource "secrets"`) {
		t.Errorf("without the Secret: exit code %d, %s", code, said)
	}
	_, command, found := strings.Cut(said, "create it once, empty: ")
	if !found {
		t.Fatalf("no hint with a command in %s", said)
	}
	admin(command)
	if code, _, said := runIPTLS(t.Context(), set); code != 0 {
		t.Errorf("with an empty Secret: exit code %d, %s", code, said)
	}
}

func runIPTLS(ctx context.Context, args []string, more ...string) (code int, out, said string) {
	var stdout, stderr bytes.Buffer
	f := factory.New(append(append([]string{"ip-tls"}, args...), more...))
	f.IOStreams = genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	code = cli.Main(ctx, f)
	return code, stdout.String(), stderr.String()
}
