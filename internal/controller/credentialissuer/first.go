package credentialissuer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// reasonMade is the reason of the event for the creation of the first CredentialIssuer.
const reasonMade = "CredentialIssuerMade"

// firstAfter is how long the leader of a new installation waits for a CredentialIssuer before it creates one.
const firstAfter = 10 * time.Second

// errNoIssuer says that a replica has no configuration.
var errNoIssuer = errors.New("there is no CredentialIssuer")

// isNew reports whether the agent has served nothing in its namespace yet. If there is a certificate, CA or signer,
// there was a CredentialIssuer, whose content is unknown.
func (s *observed) isNew() bool {
	for _, read := range s.secrets {
		if read.err != nil || read.secret != nil {
			return false
		}
	}
	return s.serving == nil
}

// first creates the CredentialIssuer of a new installation. It waits first, in case the administrator is about to apply
// one.
func (r *Reconciler) first(ctx context.Context) (ctrl.Result, error) {
	r.phase.Store(phaseLost)
	if wait := r.missingSince.Add(firstAfter).Sub(r.Clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if !r.IsLeader() {
		return ctrl.Result{RequeueAfter: recheck}, nil // the watch triggers a reconcile once the leader has created it
	}
	made := &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: r.Names.CredentialIssuer, Labels: r.Labels},
		Spec:       *r.FirstSpec.DeepCopy(),
	}
	switch err := r.Client.Create(ctx, made, client.FieldOwner(FieldManager)); {
	case apierrors.IsAlreadyExists(err): // the watch triggers a reconcile
		return ctrl.Result{RequeueAfter: recheck}, nil
	case err != nil:
		r.logRetried(ctx, fmt.Sprintf("cannot create the missing CredentialIssuer %q: %v", made.Name, err))
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	r.retries.Store(0)
	r.problem.Clear()
	log.FromContext(ctx).Info("Created the first CredentialIssuer")
	r.Events.Event(made, corev1.EventTypeNormal, reasonMade,
		"the agent created this CredentialIssuer, as none existed")
	r.setOwners(ctx, made, withoutSpec(made.ManagedFields))
	return ctrl.Result{RequeueAfter: recheck}, nil
}

// withoutSpec returns managed fields without the spec, which then belongs to the administrator: server-side apply of
// another spec meets no conflict.
func withoutSpec(owners []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var left []metav1.ManagedFieldsEntry
	for _, entry := range owners {
		var fields map[string]json.RawMessage
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		delete(fields, "f:spec")
		content, err := json.Marshal(fields)
		if err != nil || len(fields) == 0 {
			continue
		}
		entry.FieldsV1 = metav1.NewFieldsV1(string(content))
		left = append(left, entry)
	}
	return left
}

// setOwners sets the managed fields of the new CredentialIssuer. It leaves them unchanged if owners is empty, because
// the API server would then attribute all fields to an unknown manager, which conflicts with the next apply.
func (r *Reconciler) setOwners(
	ctx context.Context, made *configv1alpha1.CredentialIssuer, owners []metav1.ManagedFieldsEntry,
) {
	if len(owners) == 0 {
		return
	}
	before := made.DeepCopy()
	made.ManagedFields = owners
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, made, patch, client.FieldOwner(FieldManager)); err != nil {
		logs.Warn(ctx, "Failed to release the fields of the CredentialIssuer", "problem", err.Error())
	}
}

// withoutIssuer keeps serving after the CredentialIssuer was deleted, or serves what was served last. It reports
// nothing, and does not recreate the CredentialIssuer, which was deleted on purpose.
func (r *Reconciler) withoutIssuer(ctx context.Context) (ctrl.Result, error) {
	if r.missingSince.IsZero() {
		r.missingSince = r.Clock.Now()
	}
	s := r.observe(ctx, &configv1alpha1.CredentialIssuer{}, serving.Desired{}, nil, false)
	if r.FirstSpec != nil && s.isNew() {
		return r.first(ctx)
	}
	d := decideWithoutSpec(s)
	r.phase.Store(d.phase)
	err := d.failure(r.apply(ctx, d))
	problem := fmt.Sprintf(
		"%v: apply one named %q",
		errNoIssuer,
		r.Names.CredentialIssuer,
	)
	switch inService := r.Holder.Current(); {
	case err != nil:
		problem += "; another problem: " + err.Error()
	case inService == nil:
		problem += "; until then nothing is served"
	default:
		problem += fmt.Sprintf("; until then the certificate in Secret %s is served", inService.Secret)
	}
	r.publish(errorStrategy(errors.New(problem)))
	r.logProblem(ctx, problem)
	if err != nil {
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	return ctrl.Result{RequeueAfter: recheck}, nil
}
