package credentialissuer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
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

// theIssuer returns the CredentialIssuer.
func (r *replica) theIssuer(t *testing.T) (*configv1alpha1.CredentialIssuer, error) {
	t.Helper()
	var issuer configv1alpha1.CredentialIssuer
	err := r.live.Get(t.Context(), types.NamespacedName{Name: testNames.CredentialIssuer}, &issuer)
	return &issuer, err
}

// TestADeletedCredentialIssuer deletes the CredentialIssuer while the Secret that it names is invalid. The running
// replica keeps serving, a new one serves the last known good certificate, and the CredentialIssuer is not recreated.
func TestADeletedCredentialIssuer(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	leader := startNamedReplica(t, cluster, "default", "first", true)
	testkit.Eventually(t, waitLimit, func() error {
		if err := leader.Ready(); !errors.Is(err, errNoIssuer) {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	pki := must.Get(certs.NewCA("corporate", time.Now(), 24*time.Hour))(t)
	good := issue(t, pki, "proxy.example.com")
	leader.putSecret(t, "external", good, pki.CertPEM())
	configured := fromSecret("external")
	configured.TLS.Verification = "Enforce"
	leader.create(t, configured)
	leader.waitForServed(t, leafSHA256(t, good), 1, 1)
	leader.putSecret(t, "external", &certs.KeyPair{CertPEM: []byte("x"), KeyPEM: []byte("y")}, nil)
	leader.waitFor(t, "ErrorDuringSetup", string(certs.NotACertificate))
	issuer := must.Get(leader.theIssuer(t))(t)
	must.Do(t, leader.live.Delete(t.Context(), issuer))
	follower := startReplicaWith(t, cluster, "default", "second", false, func(r *Reconciler) {
		r.FirstSpec = &configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &spec{Mode: "disabled"}}
	})
	serve := func() {
		t.Helper()
		leader.waitForCertificate(t, leafSHA256(t, good))
		follower.waitForCertificate(t, leafSHA256(t, good))
	}
	serve()
	leader.leading.Store(false)
	follower.leading.Store(true)
	follower.notify()
	for range 5 {
		if _, err := follower.theIssuer(t); !apierrors.IsNotFound(err) {
			t.Fatalf("it was made again: %v", err)
		}
		time.Sleep(firstAfter / 4)
		follower.notify()
	}
	serve()
	follower.putSecret(t, "external", good, pki.CertPEM())
	follower.create(t, configured)
	follower.waitFor(t, "Listening", messageListening)
	serve()
}

func leafSHA256(t *testing.T, pair *certs.KeyPair) string {
	t.Helper()
	return certs.Fingerprint(leaf(t, pair).Raw)
}
