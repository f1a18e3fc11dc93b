package credentialissuer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestTheFirstCredentialIssuer starts a new installation, whose leader creates the CredentialIssuer, and then applies
// the administrator's own without a conflict.
func TestTheFirstCredentialIssuer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &spec{
		Mode: "enabled", Service: svc{Type: "ClusterIP", Annotations: map[string]string{"example.com/a": "b"}},
	}}
	tooOld := configv1alpha1.StrategyFinding{
		Code: configv1alpha1.CodeKubernetesTooOld, Severity: configv1alpha1.FindingWarning, Message: "too old",
	}
	start := func(name string, leading bool) *replica {
		return startReplicaWith(t, cluster, "default", name, leading, func(r *Reconciler) {
			r.FirstSpec, r.OldCluster = &first, &tooOld
		})
	}
	leader, follower := start("first", true), start("second", false)
	testkit.Eventually(t, waitLimit, func() error {
		if err := leader.Ready(); !errors.Is(err, errNoIssuer) {
			return fmt.Errorf("it is ready without a CredentialIssuer: %w", err)
		}
		return nil
	})
	leader.waitForCodes(t, "Listening", "", tooOld.Code)
	testkit.Eventually(t, waitLimit, func() error { return errors.Join(leader.Ready(), follower.Ready()) })
	issuer := must.Get(leader.theIssuer(t))(t)
	if diff := cmp.Diff(first, issuer.Spec); diff != "" || issuer.Labels["app"] != "x" {
		t.Errorf("labels %v, (-want +got):\n%s", issuer.Labels, diff)
	}
	if told := <-leader.events.Events; !strings.HasPrefix(told, "Normal "+reasonMade) {
		t.Errorf("the event is %q", told)
	}

	own := fmt.Sprintf(`{"apiVersion":"config.concierge.pinniped.dev/v1alpha1","kind":"CredentialIssuer",
		"metadata":{"name":%q},"spec":{"impersonationProxy":{"mode":"disabled","service":{"type":"None"}}}}`,
		testNames.CredentialIssuer)
	object := &configv1alpha1.CredentialIssuer{ObjectMeta: metav1.ObjectMeta{Name: testNames.CredentialIssuer}}
	if err := leader.live.Patch(t.Context(), object, client.RawPatch(types.ApplyPatchType, []byte(own)),
		client.FieldOwner("gitops")); err != nil {
		t.Errorf("applying an administrator's own: %v", err)
	}
	leader.waitForCodes(t, "Disabled", "", tooOld.Code, configv1alpha1.CodeDisabledBySpec)
}

func TestIsNew(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		seen observed
		want bool
	}{
		{"is so when nothing is there", observed{secrets: map[string]ownSecret{"signer": {}}}, true},
		{"is not when a CA is left", observed{secrets: map[string]ownSecret{"ca": {secret: &corev1.Secret{}}}}, false},
		{"is not when that is unknown", observed{secrets: map[string]ownSecret{"ca": {err: errors.New("no answer")}}}, false},
		{"is not while something is served", observed{serving: &serving.Certificate{}}, false},
	} {
		if got := test.seen.isNew(); got != test.want {
			t.Errorf("it %s: got %v", test.name, got)
		}
	}
}
