package credentialissuer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// The record is a Secret with the CredentialIssuer as it was last: its spec, labels and annotations. From it the leader
// makes the CredentialIssuer again when somebody has deleted it.
const (
	// recordManifest is the key of a manifest, in the form that kubectl apply takes.
	recordManifest = "credentialissuer.json"
	// recordManagers is the key of metadata.managedFields: which tools own which fields.
	recordManagers = "managedfields.json"
)

// remakeAfter is for how long a CredentialIssuer may be missing before the leader makes it again. Tools that replace an
// object delete it first.
const remakeAfter = 10 * time.Second

// reasonRestored is the reason of the event that tells that the leader made the CredentialIssuer again.
const reasonRestored = "CredentialIssuerRestored"

// manifest is what of a CredentialIssuer is recorded.
type manifest struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        manifestMetadata                    `json:"metadata"`
	Spec            configv1alpha1.CredentialIssuerSpec `json:"spec"`
}

type manifestMetadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// manifestOf returns the manifest of an issuer, as it is recorded.
func (r *Reconciler) manifestOf(issuer *configv1alpha1.CredentialIssuer) ([]byte, error) {
	gvk, err := r.Client.GroupVersionKindFor(issuer)
	if err != nil {
		return nil, fmt.Errorf("finding the kind of CredentialIssuer: %w", err)
	}
	content, err := json.MarshalIndent(manifest{
		TypeMeta: metav1.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind},
		Metadata: manifestMetadata{Name: issuer.Name, Labels: issuer.Labels, Annotations: issuer.Annotations},
		Spec:     issuer.Spec,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the CredentialIssuer: %w", err)
	}
	return content, nil
}

// record keeps the CredentialIssuer as it is now. Only the leader writes.
func (r *Reconciler) record(ctx context.Context, issuer *configv1alpha1.CredentialIssuer) error {
	if !r.IsLeader() {
		return nil
	}
	name := r.local(r.Names.RecordSecret)
	there, err := r.secretOrNil(ctx, name)
	if err != nil {
		return fmt.Errorf("reading the record of the CredentialIssuer: %w", err)
	}
	content, err := r.manifestOf(issuer)
	if err != nil {
		return err
	}
	if there != nil && string(there.Data[recordManifest]) == string(content) {
		return nil
	}
	full := &configv1alpha1.CredentialIssuer{} // the informer leaves out who owns which field
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(issuer), full); err != nil {
		return client.IgnoreNotFound(err) // what has changed since wakes us
	}
	if content, err = r.manifestOf(full); err != nil {
		return err
	}
	managers, err := json.Marshal(slices.DeleteFunc(full.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Subresource != ""
	}))
	if err != nil {
		return fmt.Errorf("encoding the field managers of the CredentialIssuer: %w", err)
	}
	data := map[string][]byte{recordManifest: content, recordManagers: managers}
	if serving.SameData(there, data) {
		return nil
	}
	err = r.writeSecret(ctx, name, corev1.SecretTypeOpaque, data, there)
	if issuedcert.ChangedMeanwhile(err) {
		return nil // it was written a moment ago; its watch wakes us
	}
	if err != nil {
		return fmt.Errorf("keeping a record of the CredentialIssuer: %w", err)
	}
	log.FromContext(ctx).V(2).Info("Kept a record of the CredentialIssuer", "secret", name)
	return nil
}

// recorded returns the CredentialIssuer as it was last, or nil when there is no record of it, and the Secret.
func (r *Reconciler) recorded(ctx context.Context) (*configv1alpha1.CredentialIssuer, *corev1.Secret, error) {
	secret, err := r.secretOrNil(ctx, r.local(r.Names.RecordSecret))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the record of the CredentialIssuer: %w", err)
	}
	if secret == nil || len(secret.Data[recordManifest]) == 0 {
		return nil, nil, nil
	}
	var was manifest
	if err := json.Unmarshal(secret.Data[recordManifest], &was); err != nil {
		return nil, nil, fmt.Errorf("reading the record of the CredentialIssuer in Secret %s: %w", r.local(secret.Name), err)
	}
	if was.Metadata.Name != r.Names.CredentialIssuer {
		return nil, nil, nil // of another name, which the configuration had before
	}
	return &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{
			Name: was.Metadata.Name, Labels: was.Metadata.Labels, Annotations: was.Metadata.Annotations,
		},
		Spec: was.Spec,
	}, secret, nil
}

// withoutIssuer goes on as the CredentialIssuer said last, although somebody has deleted it, and makes it again.
func (r *Reconciler) withoutIssuer(ctx context.Context) (ctrl.Result, error) {
	now := r.Clock.Now()
	if r.missingSince.IsZero() {
		r.missingSince = now
	}
	issuer, secret, err := r.recorded(ctx)
	if err != nil {
		r.logRetried(ctx, err.Error())
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	if issuer == nil {
		return r.withoutRecord(ctx)
	}
	strategy, err := r.converge(ctx, issuer)
	r.publish(strategy)
	missing := fmt.Sprintf("there is no CredentialIssuer %q any more; it is made again as it was last", issuer.Name)
	if err != nil {
		r.logRetried(ctx, missing+", and until then: "+err.Error())
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	r.logProblem(ctx, missing)
	if wait := r.missingSince.Add(remakeAfter).Sub(now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if !r.IsLeader() {
		return ctrl.Result{RequeueAfter: recheck}, nil // what the leader makes wakes us
	}
	if err := r.remake(ctx, issuer, secret); err != nil {
		r.logRetried(
			ctx,
			fmt.Sprintf("there is no CredentialIssuer %q any more, and it cannot be made again: %v; make it with: %s",
				issuer.Name, err, r.remakeCommand()),
		)
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	r.retries.Store(0)
	return ctrl.Result{RequeueAfter: recheck}, nil
}

// remakeCommand is how an admin makes the CredentialIssuer again from the record.
func (r *Reconciler) remakeCommand() string {
	return fmt.Sprintf(
		`kubectl get secret %s --namespace %s --output jsonpath='{.data.credentialissuer\.json}' | base64 -d | `+
			`kubectl apply --server-side -f -`,
		r.Names.RecordSecret,
		r.Namespace,
	)
}

// remake makes the CredentialIssuer again, and gives its fields back to the tools that owned them: else they would meet
// conflicts, and ip-tls could not take back what it has set.
func (r *Reconciler) remake(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, record *corev1.Secret) error {
	made := issuer.DeepCopy()
	err := r.Client.Create(ctx, made, client.FieldOwner(FieldManager))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	logs.Warn(ctx, "Made the CredentialIssuer again, which somebody had deleted", "record", r.local(record.Name))
	r.Events.Event(made, corev1.EventTypeWarning, reasonRestored,
		"the CredentialIssuer was deleted; it was made again as it was last")
	var managers []metav1.ManagedFieldsEntry
	if err := json.Unmarshal(record.Data[recordManagers], &managers); err != nil {
		return nil //nolint:nilerr // an earlier version, or nobody
	}
	r.setOwners(ctx, made, managers)
	return nil
}

// setOwners says who owns the fields of a CredentialIssuer that was just made. Without any owner it would be nobody's,
// and the API server would have the next one that applies it meet conflicts.
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
		logs.Warn(ctx, "Could not give the fields of the CredentialIssuer to the tools that own them", "problem", err.Error())
	}
}

// errNoRecord is why a replica does not know what to do.
var errNoRecord = errors.New("there is no CredentialIssuer, and no record of one")

// withoutRecord goes on serving, or serves what was served last. What clients should know cannot be told.
func (r *Reconciler) withoutRecord(ctx context.Context) (ctrl.Result, error) {
	s := r.look(ctx, &configv1alpha1.CredentialIssuer{}, configv1alpha1.ImpersonationProxySpec{}, nil, false)
	if r.FirstSpec != nil && s.isNew() {
		return r.first(ctx)
	}
	d := decideWithoutSpec(s)
	r.phase.Store(d.phase)
	err := d.failure(r.apply(ctx, d))
	problem := fmt.Sprintf(
		"%v: apply a CredentialIssuer called %q, such as deploy/concierge/credentialissuer.yaml",
		errNoRecord,
		r.Names.CredentialIssuer,
	)
	switch inService := r.Holder.Current(); {
	case err != nil:
		problem += "; until then: " + err.Error()
	case inService == nil:
		problem += "; until then nothing is served"
	default:
		problem += fmt.Sprintf("; until then the certificate of Secret %s is served", inService.Secret)
	}
	r.publish(errorStrategy(errors.New(problem)))
	r.logProblem(ctx, problem)
	if err != nil {
		return ctrl.Result{RequeueAfter: r.retryAfter()}, nil
	}
	return ctrl.Result{RequeueAfter: recheck}, nil
}
