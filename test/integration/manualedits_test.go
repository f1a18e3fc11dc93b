package integration

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// heals is how soon an edited status must be restored. It is far less than the time between two probes.
const heals = time.Second

// silentWebhook returns the address of a server that accepts connections and never responds.
func silentWebhook(t *testing.T) string {
	t.Helper()
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = connection.Close() })
		}
	}()
	return "https://" + listener.Addr().String()
}

// TestManualEditsOfAStatusHeal edits every status that the agent writes, as with `kubectl edit`.
func TestManualEditsOfAStatusHeal(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	webhookName, issuerName := types.NamespacedName{Name: "local-user-authenticator"}, types.NamespacedName{Name: "edited"}
	jwt := &authenticationv1alpha1.JWTAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: issuerName.Name},
		Spec:       authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: "https://127.0.0.1:1", Audience: "a"},
	}
	w.create(t, jwt)
	for _, test := range []struct {
		name   types.NamespacedName
		object client.Object
		wait   func() error // until the status is settled
		edit   func(client.Object)
		status func(client.Object) any
	}{
		{
			types.NamespacedName{Name: devinstall.CredentialIssuer},
			&configv1alpha1.CredentialIssuer{},
			func() error { return nil },
			func(object client.Object) {
				issuer := object.(*configv1alpha1.CredentialIssuer)
				issuer.Status.Strategies[0].Message = "edited"
				issuer.Status.Strategies[1].Reason = configv1alpha1.ReasonPending
				issuer.Status.ServingCertificate.SHA256 = "edited"
				issuer.Status.Objects.Namespace = "edited"
			},
			func(object client.Object) any {
				status := object.(*configv1alpha1.CredentialIssuer).Status.DeepCopy()
				for i := range status.Strategies {
					status.Strategies[i].LastUpdateTime = metav1.Time{}
				}
				status.ServingCertificate.ServedSince = metav1.Time{} // unknown again after the edit of the fingerprint
				return status
			},
		},
		{
			webhookName, &authenticationv1alpha1.WebhookAuthenticator{}, nil, nil, nil,
		},
		{
			issuerName, &authenticationv1alpha1.JWTAuthenticator{}, nil, nil, nil,
		},
	} {
		if test.wait == nil { // an authenticator
			test.wait = func() error {
				_, conditions := authenticatorStatus(test.object)
				if ready := meta.FindStatusCondition(*conditions, "Ready"); ready == nil ||
					ready.Status == metav1.ConditionUnknown {
					return fmt.Errorf("not settled: %v", *conditions)
				}
				return nil
			}
			test.edit = func(object client.Object) {
				phase, conditions := authenticatorStatus(object)
				*phase = "Pending"
				*conditions = slices.Delete(*conditions, 0, 1)
				(*conditions)[0].Reason, (*conditions)[0].Message = "Edited", "edited"
				(*conditions)[1].Status = metav1.ConditionUnknown
			}
			test.status = func(object client.Object) any {
				phase, conditions := authenticatorStatus(object)
				all := []any{*phase}
				for _, condition := range *conditions {
					condition.LastTransitionTime = metav1.Time{}
					all = append(all, condition)
				}
				return all
			}
		}
		read := func() error { return w.admin.Get(t.Context(), test.name, test.object) }
		testkit.Eventually(t, 30*time.Second, func() error {
			if err := read(); err != nil {
				return err
			}
			return test.wait()
		})
		var want any
		testkit.Eventually(t, 10*time.Second, func() error { // a conflict with the agent's own write
			if err := read(); err != nil {
				return err
			}
			want = test.status(test.object.DeepCopyObject().(client.Object))
			test.edit(test.object)
			return w.admin.Status().Update(t.Context(), test.object)
		})
		edited := time.Now()
		testkit.Eventually(t, 20*time.Second, func() error {
			if err := read(); err != nil {
				return err
			}
			if diff := cmp.Diff(want, test.status(test.object)); diff != "" {
				return errors.New("(-want +got):\n" + diff)
			}
			return nil
		})
		if took := time.Since(edited); took > heals {
			t.Errorf("the status of %T healed after %s", test.object, took)
		}
	}
}

// TestStatusWhileTheWebhookDoesNotRespond checks the status of a new WebhookAuthenticator before the first response.
func TestStatusWhileTheWebhookDoesNotRespond(t *testing.T) {
	w := needsCluster(t)
	object := &authenticationv1alpha1.WebhookAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: "silent"},
		Spec:       authenticationv1alpha1.WebhookAuthenticatorSpec{Endpoint: silentWebhook(t)},
	}
	w.create(t, object)
	created := time.Now()
	testkit.Eventually(t, 60*time.Second, func() error { // shown during the ten seconds of the probe
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(object.Status.Conditions, "Ready")
		if ready == nil || ready.Reason != "BeingChecked" || object.Status.Phase != authenticationv1alpha1.PhasePending {
			return fmt.Errorf("phase %q: %v", object.Status.Phase, object.Status.Conditions)
		}
		return nil
	})
	t.Logf("it said that it is being checked after %s", time.Since(created))
}
