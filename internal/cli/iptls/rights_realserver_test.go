package iptls_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/testkit"
	"github.com/pinniped-toolkit/pinniped/internal/trust"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TestRights runs each ip-tls command on a real API server as a user of its own: first without any rights, then with
// exactly those that --print-rbac prints.
func TestRights(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{}, "../../../deploy/crds", "../../../deploy/tlscertificatedelegation")
	w := iptlstest.New(t)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
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
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&objects, "---\n%s", text)
	}
	if err := cluster.Install(t.Context(), write("objects.yaml", objects.Bytes())); err != nil {
		t.Fatal(err)
	}
	admin, err := discovery.Connect(cluster.AdminConfig(), apis.DefaultGroupSuffix)
	if err != nil {
		t.Fatal(err)
	}
	// The agent remembers that clients were told of its own CA before.
	w.Cluster.Report(w.Proxy.URL(), w.Generated.CertPEM())
	w.Remember(t, time.Now().Add(-time.Hour))
	w.Cluster.Report(w.Proxy.URL(), w.CA.CertPEM())
	w.Remember(t, time.Now())
	const handedOut = "pinniped-concierge-handed-out"
	usual, _ := discovery.Objects(&configv1alpha1.CredentialIssuer{}, "pinniped-concierge")
	usual.HandedOutConfigMap = handedOut
	w.Cluster.Issuer.Status.Objects, w.Cluster.Issuer.Status.HandedOut = &usual, nil
	_, err = admin.ApplyConfigMap(t.Context(), "pinniped-concierge", handedOut,
		map[string]any{"data": w.Cluster.HandedOut.Data}, discovery.ApplyOptions{FieldManager: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	history, err := trust.Read(w.Cluster.HandedOut.Data)
	if err != nil || len(history.States) != 2 {
		t.Fatal(history, err)
	}
	for i := range w.Cluster.Issuer.Status.Strategies {
		w.Cluster.Issuer.Status.Strategies[i].LastUpdateTime = metav1.Now()
	}
	_, err = admin.MergeCredentialIssuer(t.Context(), "pinniped-concierge-config",
		map[string]any{"status": w.Cluster.Issuer.Status}, discovery.ApplyOptions{FieldManager: "agent", Status: true})
	if err != nil {
		t.Fatal(err)
	}
	cert := write("cert.pem", w.Pair.CertPEM)
	key := write("key.pem", w.Pair.KeyPEM)
	ca := write("ca.pem", w.CA.CertPEM())
	planned := filepath.Join(dir, "plan.json")
	const issuer, ours = `credentialissuers.config.concierge.pinniped.dev "pinniped-concierge-config"`,
		` in namespace "pinniped-concierge"`
	service := `get services "pinniped-concierge-impersonation-proxy-load-balancer"` + ours
	for _, tt := range []struct {
		name string
		args []string
		want []string // what a user without rights lacks
		code int      // with the rights
	}{
		{
			name: "set", args: []string{"set", "--secret", "proxy-tls", "--wait=false", "--allow", "OldClientsBreak"},
			want: []string{"get " + issuer, "patch " + issuer, service, `get secrets "proxy-tls"` + ours},
		},
		{
			name: "set-cert",
			args: []string{
				"set", "--secret", "from-files", "--cert", cert, "--key", key, "--ca-bundle", ca, "--wait=false",
				"--allow", "OldClientsBreak",
			},
			want: []string{
				"get " + issuer, "patch " + issuer, service, `get secrets "from-files"` + ours, "create secrets" + ours,
				`patch secrets "from-files"` + ours, `delete secrets "from-files"` + ours,
			},
		},
		{name: "check", args: []string{"check"}, want: []string{"get " + issuer, service, "get the Secret that the CredentialIssuer names"}},
		{name: "status", args: []string{"status"}, want: []string{"get " + issuer}, code: ui.ExitNotConverged},
		{name: "clients", args: []string{"clients"}, want: []string{"get " + issuer, `get configmaps "` + handedOut + `"` + ours}},
		{
			name: "retire", args: []string{"clients", "--retire", history.States[0].ID},
			want: []string{
				"get " + issuer, `get configmaps "` + handedOut + `"` + ours, `patch configmaps "` + handedOut + `"` + ours,
			},
		},
		{name: "history", args: []string{"history"}, want: []string{"get " + issuer}},
		{
			name: "undo", args: []string{"undo", "--wait=false", "--allow", "OldClientsBreak"},
			want: []string{"get " + issuer, "patch " + issuer, service, "get the Secret that the CredentialIssuer names"},
		},
		{
			name: "unset", args: []string{"unset", "--wait=false", "--allow", "OldClientsBreak"},
			want: []string{"get " + issuer, "patch " + issuer},
		},
		{
			name: "delegate", args: []string{"delegate", "shared/wildcard-tls"},
			want: []string{
				`patch roles.rbac.authorization.k8s.io "wildcard-tls-to-pinniped-concierge" in namespace "shared"`,
				`create tlscertificatedelegations.projectcontour.io in namespace "shared"`,
				`watch secrets "wildcard-tls" in namespace "shared"`,
			},
		},
		{
			name: "explain", args: []string{"explain", "shared/wildcard-tls"},
			want: []string{
				`list tlscertificatedelegations.projectcontour.io in namespace "shared"`,
				`create localsubjectaccessreviews.authorization.k8s.io in namespace "shared"`,
			},
		},
		{name: "manifest", args: []string{"manifest", "--for", "cert-manager", "--issuer", "Issuer/x"}, want: []string{"get " + issuer}},
		{
			name: "set-delegated",
			args: []string{
				"set", "--secret", "shared/wildcard-tls", "--dry-run=server", "--allow", "OldClientsBreak",
			},
			want: []string{
				`get secrets "wildcard-tls" in namespace "shared"`,
				`list tlscertificatedelegations.projectcontour.io in namespace "shared"`,
			},
		},
		{
			name: "revoke", args: []string{"delegate", "shared/wildcard-tls", "--revoke"},
			want: []string{
				`delete rolebindings.rbac.authorization.k8s.io "wildcard-tls-to-pinniped-concierge" in namespace "shared"`,
			},
		},
		{
			name: "apply", args: []string{"apply", "-f", planned, "--wait=false"},
			want: []string{"get " + issuer, "patch " + issuer, service, `get secrets "proxy-tls"` + ours},
		},
		{
			name: "rotate", args: []string{"rotate", "--secret", "next-tls", "--step", "1", "--wait=false"},
			want: []string{"get " + issuer, "patch " + issuer, service, `get secrets "next-tls"` + ours},
		},
	} {
		if tt.name == "apply" {
			code, out, said := runIPTLS(t.Context(), []string{"set", "--secret", "proxy-tls", "--dry-run", "-o", "json"},
				"--kubeconfig", cluster.AdminKubeconfig(), "--allow", "OldClientsBreak")
			if code != 0 {
				t.Fatalf("making a plan: exit code %d, %s", code, said)
			}
			write(filepath.Base(planned), []byte(out))
		}
		config, err := cluster.User("user-of-" + tt.name)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, tt.name+".kubeconfig")
		if err := cluster.WriteKubeconfig(path, config); err != nil {
			t.Fatal(err)
		}
		code, _, said := runIPTLS(t.Context(), tt.args, "--kubeconfig", path)
		if code != ui.ExitNotPermitted || !strings.Contains(said, "--print-rbac") {
			t.Errorf("%s without rights: exit code %d, %s", tt.name, code, said)
		}
		code, manifest, _ := runIPTLS(t.Context(), tt.args, "--kubeconfig", cluster.AdminKubeconfig(), "--print-rbac")
		if code != 0 {
			t.Fatalf("%s --print-rbac: exit code %d", tt.name, code)
		}
		// A user without rights is not told what is configured, and gets the usual names.
		code, named, _ := runIPTLS(t.Context(), tt.args, "--kubeconfig", path, "--print-rbac")
		if code != 0 || !strings.Contains(named, "kind: ClusterRole") {
			t.Errorf("%s --print-rbac without rights: exit code %d, %s", tt.name, code, named)
		}
		for _, want := range tt.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s without rights does not name %q: %s", tt.name, want, said)
			}
		}
		grants := write(tt.name+".yaml", []byte(manifest+bindings(t, manifest, "user-of-"+tt.name)))
		if err := cluster.Install(t.Context(), grants); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, 30*time.Second, func() error { // the API server's authorizer follows
			code, out, said := runIPTLS(t.Context(), tt.args, "--kubeconfig", path)
			if code != tt.code || strings.Contains(out+said, "not permitted") {
				return fmt.Errorf("%s with the rights that it prints: exit code %d, %s%s\n%s", tt.name, code, out, said, manifest)
			}
			return nil
		})
	}
}

// bindings binds every Role of a manifest to a user.
func bindings(t *testing.T, manifest, user string) string {
	t.Helper()
	var all strings.Builder
	for document := range strings.SplitSeq(manifest, "---\n") {
		var role struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		binding, err := yaml.Marshal(map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": role.Kind + "Binding",
			"metadata": map[string]any{"name": user, "namespace": role.Metadata.Namespace},
			"roleRef": map[string]any{
				"apiGroup": "rbac.authorization.k8s.io", "kind": role.Kind, "name": role.Metadata.Name,
			},
			"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}},
		})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "---\n%s", binding)
	}
	return all.String()
}

func runIPTLS(ctx context.Context, args []string, more ...string) (code int, out, said string) {
	var stdout, stderr bytes.Buffer
	f := factory.New(append(append([]string{"ip-tls"}, args...), more...))
	f.IOStreams = genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	code = cli.Main(ctx, f)
	return code, stdout.String(), stderr.String()
}
