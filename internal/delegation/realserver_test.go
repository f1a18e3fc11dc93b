package delegation

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// withdrawal is the maximum time until a withdrawn permission takes effect.
const withdrawal = 5 * time.Second

const mayLook = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: may-look}
rules:
- {apiGroups: [projectcontour.io], resources: [tlscertificatedelegations], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: may-look}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: may-look}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccount:agents:agent"}]
---
apiVersion: v1
kind: Namespace
metadata: {name: shared}
`

// TestPermissionsOnARealAPIServer grants and withdraws a permission piece by piece, and shows that it survives a
// restart of the API server.
func TestPermissionsOnARealAPIServer(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{
		AuditPolicy: []byte(
			"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\nomitStages: [RequestReceived]\n",
		),
	})
	manifest := filepath.Join(t.TempDir(), "may-look.yaml")
	must.Do(t, os.WriteFile(manifest, []byte(mayLook), 0o600))
	must.Do(t, cluster.Install(t.Context(), manifest))
	admin, err := dynamic.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	identity := must.Get(cluster.User("system:serviceaccount:agents:agent"))(t)
	client := must.Get(corev1client.NewForConfig(identity))(t)
	var changes, revocations atomic.Int64
	poller := NewPoller(t.Context(), PollerOptions{
		Client: client.RESTClient(), Namespace: "agents", Clock: clock.RealClock{},
		Changed: func(types.NamespacedName) { changes.Add(1) },
		Revoke:  func(types.NamespacedName) { revocations.Add(1) },
	})
	becomes := func(want Outcome, limit time.Duration) {
		t.Helper()
		start := time.Now()
		for {
			got := must.Get(poller.Get(t.Context(), wildcard))(t)
			if got == want {
				t.Logf("%s after %s", want, time.Since(start).Round(time.Millisecond))
				return
			}
			if time.Since(start) > limit {
				t.Fatalf("the outcome is %s, not %s, after %s", got, want, limit)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	// The pieces of a permission.
	resources := map[string]schema.GroupVersionResource{
		"Role":        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
		"RoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		Kind:          Resource(),
	}
	grant := Grant{Secret: wildcard, Namespace: "agents", ServiceAccount: "agent"}
	pieces := map[string]*unstructured.Unstructured{}
	for _, object := range grant.Objects() {
		piece := &unstructured.Unstructured{Object: object}
		pieces[piece.GetKind()] = piece
	}
	put := func(kind string) {
		t.Helper()
		must.Get(admin.Resource(resources[kind]).Namespace("shared").Apply(t.Context(), grant.Name(), pieces[kind],
			metav1.ApplyOptions{FieldManager: "test", Force: true}))(t)
	}
	remove := func(kind string) {
		t.Helper()
		must.Do(t, admin.Resource(resources[kind]).
			Namespace("shared").
			Delete(t.Context(), grant.Name(), metav1.DeleteOptions{}))
	}

	const appears = 20 * time.Second
	becomes(NoDelegations, appears)
	kind := filepath.Join("..", "..", "deploy", "tlscertificatedelegation")
	must.Do(t, cluster.Install(t.Context(), kind))
	becomes(NotDelegated, appears)
	put(Kind)
	becomes(NotReadable, appears)
	put("Role")
	put("RoleBinding")
	becomes(Permitted, appears)
	secrets := corev1client.NewForConfigOrDie(cluster.AdminConfig()).Secrets("shared")
	must.Get(secrets.Create(
		t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: wildcard.Name}},
		metav1.CreateOptions{},
	))(t)
	// The grant permits reading this one Secret, and nothing else.
	mine := client.Secrets("shared")
	byName := metav1.ListOptions{FieldSelector: "metadata.name=" + wildcard.Name}
	if list, err := mine.List(t.Context(), byName); err != nil || len(list.Items) != 1 {
		t.Errorf("what is permitted does not work: %v", err)
	}
	if _, err := mine.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("all Secrets of the namespace can be listed")
	}
	if _, err := mine.Get(t.Context(), "other", metav1.GetOptions{}); err == nil ||
		!strings.Contains(err.Error(), "forbidden") {
		t.Errorf("another Secret: %v", err)
	}
	asked := secretsAsked(t, cluster.AuditLog())

	remove("RoleBinding")
	becomes(NotReadable, withdrawal)
	put("RoleBinding")
	becomes(Permitted, appears)

	// An API server that stops or starts withdraws nothing.
	changesBefore, revocationsBefore := changes.Load(), revocations.Load()
	for range 2 {
		must.Do(t, cluster.StopAPIServer())
		must.Do(t, cluster.RestartAPIServer(t.Context()))
		for start := time.Now(); time.Since(start) < 2*period; time.Sleep(10 * time.Millisecond) {
			if got, err := poller.Get(t.Context(), wildcard); err != nil || got != Permitted {
				t.Fatalf("after a restart of the API server: %s, %v", got, err)
			}
		}
	}
	if changes.Load() != changesBefore || revocations.Load() != revocationsBefore {
		t.Error("a restart of the API server changed something")
	}

	remove(Kind)
	becomes(NotDelegated, withdrawal)
	put(Kind)
	becomes(Permitted, appears)
	definitions := admin.Resource(
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	)
	must.Do(t, definitions.Delete(t.Context(), Plural+"."+Group, metav1.DeleteOptions{}))
	gone := time.Now()
	for got := Permitted; got == Permitted; time.Sleep(10 * time.Millisecond) {
		if got, err = poller.Get(t.Context(), wildcard); err != nil || time.Since(gone) > withdrawal {
			t.Fatalf("after the kind was removed: %s, %v", got, err)
		}
	}
	becomes(NoDelegations, appears)
	must.Do(t, cluster.Install(t.Context(), kind))
	put(Kind)
	becomes(Permitted, appears)

	if now := secretsAsked(t, cluster.AuditLog()); asked == 0 || now != asked {
		t.Errorf("the watcher itself asked for Secrets: %d requests before, %d after", asked, now)
	}
	poller.Forget(func(types.NamespacedName) bool { return false })
	if len(poller.secrets) != 0 {
		t.Error("a forgotten Secret is still followed")
	}
}

// secretsAsked counts the agent's requests for Secrets in the audit log.
func secretsAsked(t *testing.T, path string) int {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	count := 0
	for line := range bytes.Lines(content) {
		var event struct {
			User      struct{ Username string }
			ObjectRef struct{ Resource string }
		}
		must.Do(t, json.Unmarshal(line, &event))
		if event.User.Username == "system:serviceaccount:agents:agent" && event.ObjectRef.Resource == "secrets" {
			count++
		}
	}
	return count
}
