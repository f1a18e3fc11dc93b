package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/testkit"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// TestADeletedCredentialIssuerComesBack deletes the CredentialIssuer while every replica is stopped and the Secret is
// bad. The replicas start, serve the last good certificate, and make the CredentialIssuer again with the rights of the
// shipped manifests; `ip-tls undo` still knows what it has to take back.
func TestADeletedCredentialIssuerComesBack(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	good := w.issue(t, "localhost")
	w.putSecret(t, "deleted-cert", withBundle(w, good))
	if got := w.asAdmin(t, "ip-tls", "set", "--secret=deleted-cert", "--ca-from-secret", "--allow=OldClientsBreak",
		"--timeout=60s"); got.code != 0 {
		t.Fatalf("ip-tls set ended with %d: %s%s", got.code, got.out, got.errOut)
	}
	w.waitForServed(t, 20*time.Second, good, 2, 2)
	kubeconfig := w.userKubeconfig(t, "pinny:password123")
	before := w.issuer(t)
	for _, agent := range w.agents {
		if err := agent.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	w.putSecret(t, "deleted-cert", map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")})
	if err := w.admin.Delete(t.Context(), before.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	for _, agent := range w.agents {
		if err := agent.Restart(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	for _, agent := range w.agents {
		testkit.Eventually(t, 30*time.Second, func() error {
			return errors.Join(presents(agent.ProxyAddress(), good), agent.Ready(t.Context()))
		})
	}
	// A login goes to the aggregated APIs. The API server took them for away while no replica ran, and looks again in its
	// own time.
	waiting, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := w.WaitAvailable(waiting); err != nil {
		t.Fatal(err)
	}
	w.succeed(t, w.cli, "whoami", "--kubeconfig="+kubeconfig)

	var after configv1alpha1.CredentialIssuer
	testkit.Eventually(t, 60*time.Second, func() error {
		err := w.admin.Get(t.Context(), types.NamespacedName{Name: devinstall.CredentialIssuer}, &after)
		if err == nil && (after.UID == before.UID || len(after.Status.Strategies) == 0) {
			err = fmt.Errorf("UID %s, status %+v", after.UID, after.Status)
		}
		return err
	})
	if diff := cmp.Diff([]any{before.Spec, before.Annotations}, []any{after.Spec, after.Annotations}); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		issuer := w.issuer(t)
		if !slices.ContainsFunc(issuer.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == "pinniped-cli" && entry.Subresource == ""
		}) {
			return fmt.Errorf("ip-tls does not own what it has set: %+v", issuer.ManagedFields)
		}
		return nil
	})
	w.putSecret(t, "deleted-cert", withBundle(w, good))
	w.waitForStatus(t, "Listening", "")
	if got := w.asAdmin(t, "ip-tls", "undo", "--allow=OldClientsBreak", "--timeout=60s"); got.code != 0 {
		t.Errorf("ip-tls undo ended with %d: %s%s", got.code, got.out, got.errOut)
	}
	if w.issuer(t).Spec.ImpersonationProxy.TLS != nil {
		t.Error("ip-tls undo took nothing back")
	}
	w.generatedOnly(t)
}
