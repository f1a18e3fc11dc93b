package fleet

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// management is a real API server with kubeconfigs in Secrets.
type management struct {
	config *rest.Config
	client *kubernetes.Clientset
}

func newManagement(t *testing.T) *management {
	t.Helper()
	cluster := testkit.Cluster(t, devcluster.Options{})
	if err := cluster.Install(t.Context(), filepath.Join("testdata", "crds")); err != nil {
		t.Fatal(err)
	}
	m := &management{config: cluster.AdminConfig()}
	var err error
	if m.client, err = kubernetes.NewForConfig(m.config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"east", "west"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := m.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *management) create(
	t *testing.T,
	namespace, name string,
	kind corev1.SecretType,
	labels map[string]string,
	data map[string]string,
) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        name,
			Labels:      labels,
			Annotations: map[string]string{"note": "of others"},
		},
		Type:       kind,
		StringData: data,
	}
	if _, err := m.client.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (m *management) get(t *testing.T, namespace, name string) *corev1.Secret {
	t.Helper()
	secret, err := m.client.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func (m *management) place(t *testing.T, kind, selector string, namespaces ...string) *Secrets {
	t.Helper()
	format, ok := FormatOf(kind)
	if !ok {
		t.Fatalf("no format %s", kind)
	}
	place, err := NewSecrets(m.config, format, namespaces, selector)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// TestSecrets rotates kubeconfigs in Secrets of Cluster API, Argo CD and Flux on a real API server, and rotates them
// back.
func TestSecrets(t *testing.T) {
	t.Parallel()
	m, p := newManagement(t), newProxy(t)
	before, after := login(p.URL, p.old.CertPEM()), login(p.URL, p.both())
	label := func(name string) map[string]string { return map[string]string{clusterAPILabel: name, "team": name} }
	m.create(
		t,
		"east",
		"one-kubeconfig",
		clusterAPIType,
		label("one"),
		map[string]string{"value": before, "other": "stays"},
	)
	m.create(t, "west", "two-kubeconfig", corev1.SecretTypeOpaque, label("two"), map[string]string{"value": before})
	m.create(t, "west", "two-etcd", clusterAPIType, label("two"), map[string]string{"tls.key": "none"})
	m.create(t, "west", "broken-kubeconfig", clusterAPIType, label("broken"), map[string]string{"other": before})
	old := base64.StdEncoding.EncodeToString(p.old.CertPEM())
	argo := fmt.Sprintf(
		`{"bearerToken":"<&>","tlsClientConfig":{"serverName":"127.0.0.1","caData":%q,"unknown":[1.50]},"execProviderConfig":{"command":"pinniped","args":["login","static","--concierge-endpoint=%s","--concierge-ca-bundle-data=%s"],"apiVersion":"client.authentication.k8s.io/v1beta1","installHint":"x"}}`,
		old,
		p.URL,
		old,
	)
	m.create(t, "east", "argo", corev1.SecretTypeOpaque, map[string]string{"argocd.argoproj.io/secret-type": "cluster"},
		map[string]string{"name": "in argo", "server": p.URL, "config": argo})
	m.create(t, "east", "tenant", corev1.SecretTypeOpaque, nil, map[string]string{"value.yaml": before, "kube": before})
	m.create(t, "east", "unnamed", corev1.SecretTypeOpaque, nil, map[string]string{"value": before})
	for name, ref := range map[string]string{"a": `{"name":"tenant"}`, "b": `{"name":"tenant","key":"kube"}`, "c": `{"name":"tenant","key":"kube"}`, "d": `{"name":"gone"}`} {
		object := fmt.Sprintf(
			`{"apiVersion":"kustomize.toolkit.fluxcd.io/v1","kind":"Kustomization","metadata":{"name":%q},"spec":{"kubeConfig":{"secretRef":%s}}}`,
			name,
			ref,
		)
		if err := m.client.RESTClient().Post().AbsPath("/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/east/kustomizations").
			Body([]byte(object)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}

	o := options()
	o.Places = []Place{m.place(t, "capi", ""), m.place(t, "argocd", "", "east"), m.place(t, "flux", "", "east")}
	result, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, item := range result.Items {
		got[item.Item.ID] = string(item.Outcome)
	}
	if diff := cmp.Diff(map[string]string{
		"east/one-kubeconfig/value":    "rotated",
		"west/two-kubeconfig/value":    "rotated",
		"west/broken-kubeconfig/value": "failed",
		"east/argo/config":             "rotated",
		"east/tenant/value.yaml":       "rotated",
		"east/tenant/kube":             "rotated",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the cluster was asked %d times", n)
	}
	one := m.get(t, "east", "one-kubeconfig")
	if string(one.Data["value"]) != after || string(one.Data["other"]) != "stays" || one.Labels["team"] != "one" ||
		one.Annotations["note"] != "of others" {
		t.Errorf("of Cluster API: %+v", one)
	}
	managers := map[string]string{}
	for _, field := range one.ManagedFields {
		managers[field.Manager] = field.FieldsV1.GetRawString()
	}
	if mine := managers[fieldManager]; !strings.Contains(mine, `"f:value"`) || strings.Contains(mine, "f:labels") {
		t.Errorf("we own %s", mine)
	}
	tenant := m.get(t, "east", "tenant")
	if string(tenant.Data["value.yaml"]) != after || string(tenant.Data["kube"]) != after {
		t.Errorf("of Flux: %q", tenant.Data)
	}
	if string(m.get(t, "east", "unnamed").Data["value"]) != before {
		t.Error("a Secret that Flux does not use was changed")
	}
	var config, wanted any
	next := base64.StdEncoding.EncodeToString(p.both())
	content := m.get(t, "east", "argo").Data["config"]
	if err := json.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(argo, old, next)), &wanted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, config); diff != "" || !bytes.Contains(content, []byte(`"<&>"`)) ||
		!bytes.Contains(content, []byte("[1.50]")) {
		t.Errorf("of Argo CD (-want +got):\n%s\n%s", diff, content)
	}

	some, err := m.place(t, "capi", "team=two", "west").List(t.Context())
	if err != nil || len(some) != 1 || some[0].ID != "west/two-kubeconfig/value" {
		t.Errorf("by label and namespace: %+v, %v", some, err)
	}
	m.guarded(t, p)
}

// guarded checks that concurrent changes are not overwritten, and that a deleted Secret is not recreated.
func (m *management) guarded(t *testing.T, p *proxy) {
	t.Helper()
	place := m.place(t, "capi", "team=two", "west")
	items, err := place.List(t.Context())
	if err != nil || len(items) != 1 {
		t.Fatal(items, err)
	}
	target := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: p.URL}, CABundle: p.old.CertPEM()}
	secrets := m.client.CoreV1().Secrets("west")
	times := 0
	update := kubeconfig.FileUpdate{Change: func(content []byte) (*kubeconfig.Rotation, error) {
		if times++; times == 1 {
			secret := m.get(t, "west", "two-kubeconfig")
			secret.Data["value"] = bytes.Replace(secret.Data["value"], []byte("# a comment"), []byte("# theirs"), 1)
			if _, err := secrets.Update(context.WithoutCancel(t.Context()), secret, metav1.UpdateOptions{}); err != nil {
				return nil, err
			}
		}
		return kubeconfig.Rotate(content, target)
	}}
	if _, err := place.Update(t.Context(), items[0], update); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(login(p.URL, p.old.CertPEM()), "# a comment", "# theirs", 1)
	if got := string(m.get(t, "west", "two-kubeconfig").Data["value"]); got != want || times != 2 {
		t.Errorf("after %d tries it is\n%s", times, got)
	}
	target.CABundle = p.new.CertPEM()
	update.Change = func(content []byte) (*kubeconfig.Rotation, error) {
		if err := secrets.Delete(t.Context(), "two-kubeconfig", metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
		return kubeconfig.Rotate(content, target)
	}
	if _, err := place.Update(t.Context(), items[0], update); !apierrors.IsNotFound(err) {
		t.Errorf("of a deleted Secret the error is %v", err)
	}
	if _, err := secrets.Get(t.Context(), "two-kubeconfig", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a deleted Secret is there again: %v", err)
	}
}
