package issuedcert

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestWrite writes Secrets to a real API server while another client writes as well.
func TestWrite(t *testing.T) {
	t.Parallel()
	cluster := testkit.Cluster(t, devcluster.Options{})
	client := must.Get(corev1client.NewForConfig(cluster.AdminConfig()))(t)
	secrets, ctx := client.Secrets("default"), t.Context()
	target := Target{
		Name: types.NamespacedName{Namespace: "default", Name: "own"}, Type: corev1.SecretTypeTLS,
		Labels: map[string]string{"app": "x"}, FieldManager: "agent",
	}
	data := func(pairs ...string) map[string][]byte {
		all := map[string][]byte{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = []byte(pairs[i+1])
		}
		return all
	}
	live := func() *corev1.Secret {
		t.Helper()
		return must.Get(secrets.Get(ctx, target.Name.Name, metav1.GetOptions{}))(t)
	}
	holds := func(want map[string][]byte) {
		t.Helper()
		if diff := cmp.Diff(want, live().Data); diff != "" {
			t.Errorf("data (-want +got):\n%s", diff)
		}
	}

	first := data("tls.crt", "1", "tls.key", "1", "ca.crt", "1")
	created := must.Get(Write(ctx, secrets, target, first, nil))(t)
	holds(first)
	if created.Type != corev1.SecretTypeTLS || created.Labels["app"] != "x" {
		t.Errorf("it created %+v", created)
	}
	if _, err := Write(ctx, secrets, target, data("tls.crt", "2", "tls.key", "2"), nil); !ChangedMeanwhile(err) {
		t.Errorf("it took an existing Secret for missing: %v", err)
	}

	// What others add to the Secret stays. A key that is no longer wanted is removed.
	other := live()
	other.Labels["backup"], other.Annotations = "no", map[string]string{"note": "ours"}
	must.Get(secrets.Update(ctx, other, metav1.UpdateOptions{FieldManager: "someone"}))(t)
	second := data("tls.crt", "3", "tls.key", "3")
	if _, err := Write(ctx, secrets, target, second, created); !ChangedMeanwhile(err) {
		t.Errorf("it overwrote what it had not read: %v", err)
	}
	holds(first)
	applied := must.Get(Write(ctx, secrets, target, second, live()))(t)
	holds(second)
	if applied.Labels["backup"] != "no" || applied.Labels["app"] != "x" || applied.Annotations["note"] != "ours" {
		t.Errorf("it took away what others added: %v %v", applied.Labels, applied.Annotations)
	}

	// When the configured labels change, the agent's change, obsolete ones are removed, and others stay.
	target.Labels = map[string]string{"team": "blue"}
	if HasMetadata(live(), target.Labels) {
		t.Error("it takes the labels for right")
	}
	if err := WriteMetadata(ctx, secrets, target, created); !ChangedMeanwhile(err) {
		t.Errorf("it changed what it had not read: %v", err)
	}
	must.Do(t, WriteMetadata(ctx, secrets, target, live()))
	if diff := cmp.Diff(map[string]string{"team": "blue", "backup": "no"}, live().Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if !HasMetadata(live(), target.Labels) {
		t.Errorf("it takes the labels for wrong: %+v", live().ObjectMeta)
	}
	holds(second)
	applied = live()

	// A writer that has not noticed a deletion does not recreate the Secret.
	must.Do(t, secrets.Delete(ctx, target.Name.Name, metav1.DeleteOptions{}))
	if _, err := Write(ctx, secrets, target, first, applied); !ChangedMeanwhile(err) {
		t.Errorf("it made a deleted Secret again, or says %v", err)
	}

	// The type of a Secret cannot change, so another type stays.
	target.Name.Name = "opaque"
	opaque := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "opaque"}, Type: corev1.SecretTypeOpaque}
	opaque = must.Get(secrets.Create(ctx, opaque, metav1.CreateOptions{}))(t)
	if repaired, err := Write(ctx, secrets, target, first, opaque); err != nil ||
		repaired.Type != corev1.SecretTypeOpaque {
		t.Errorf("got %+v, %v", repaired, err)
	}
	holds(first)
}

func TestForeign(t *testing.T) {
	t.Parallel()
	ours := map[string]string{"app": "agent"}
	content := map[string][]byte{"password": []byte("x")}
	deployment := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "pinniped-concierge"}}
	for name, test := range map[string]struct {
		secret corev1.Secret
		want   bool
	}{
		"a user's":                 {corev1.Secret{Data: content}, true},
		"a user's, labelled":       {corev1.Secret{Data: content, ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}}}, true},
		"empty, for us to fill":    {corev1.Secret{}, false},
		"ours":                     {corev1.Secret{Data: content, ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{labelKeys: ""}}}, false},
		"Pinniped's, labelled":     {corev1.Secret{Data: content, ObjectMeta: metav1.ObjectMeta{Labels: ours}}, false},
		"Pinniped's, by its owner": {corev1.Secret{Data: content, ObjectMeta: metav1.ObjectMeta{OwnerReferences: deployment}}, false},
	} {
		if got := Foreign(&test.secret, ours); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
