package credentialissuer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// errNotLeader is returned where something has to be written first and another replica will do it. The watch wakes us then.
var errNotLeader = errors.New("waiting for the leading replica to make it")

// loadExternal puts the certificate that the spec names into service, unless a check refuses it: then what was served before
// stays. A Secret of another namespace is not even looked at unless its owner permits that.
func (r *Reconciler) loadExternal(ctx context.Context, spec configv1alpha1.ImpersonationProxySpec, service *corev1.Service) (servingcert.Judgement, error) {
	name, delegated, err := r.externalSecret(spec.TLS)
	if err != nil {
		return servingcert.Judgement{}, err
	}
	if delegated {
		refusal, err := r.mayUse(ctx, name)
		if err != nil || refusal != nil {
			return servingcert.Judgement{Refusal: refusal}, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, delegatedTimeout)
		defer cancel()
	}
	secret, found, err := r.Secrets.Get(ctx, name)
	if err != nil {
		return servingcert.Judgement{}, coded(configv1alpha1.CodeSecretUnreadable, err)
	}
	if !found {
		secret = nil
	}
	judgement := servingcert.External(servingcert.ExternalInput{
		Name: name, Secret: secret, Delegated: delegated, Spec: *spec.TLS,
		Endpoint: spec.ExternalEndpoint, Names: servingcert.ClientNames(spec, service), Now: r.Clock.Now(),
	})
	if judgement.Material != nil {
		r.serve(ctx, judgement.Material)
	}
	return judgement, nil
}

// loadGenerated puts the agent's own certificate into service, and makes it and its CA where needed.
func (r *Reconciler) loadGenerated(ctx context.Context, names certs.SANs) error {
	ca, err := r.generatedCA(ctx)
	if err != nil {
		return coded(configv1alpha1.CodeGeneratedCertificateUnavailable, fmt.Errorf("preparing the generated serving CA: %w", err))
	}
	name := types.NamespacedName{Namespace: r.Namespace, Name: r.Names.TLSSecret}
	now := r.Clock.Now()
	secret, err := r.ownSecret(ctx, name, func(secret *corev1.Secret) bool {
		_, plan := servingcert.PlanServing(secret, ca, names, now)
		return plan.Needed()
	})
	if err != nil {
		return coded(configv1alpha1.CodeGeneratedCertificateUnavailable, err)
	}
	material, plan := servingcert.PlanServing(secret, ca, names, now)
	if plan.Needed() {
		err := r.asLeader(func() error {
			pair, err := ca.IssueServing(names, now, servingcert.GeneratedServingTTL)
			if err != nil {
				return err
			}
			data := map[string][]byte{corev1.TLSCertKey: pair.CertPEM, corev1.TLSPrivateKeyKey: pair.KeyPEM}
			if secret, err = r.applySecret(ctx, name, corev1.SecretTypeTLS, data, secret); err != nil {
				return err
			}
			log.FromContext(ctx).Info("Generated serving certificate", "secret", name, "reason", plan.Reason, "cause", plan.Message, "notAfter", pair.NotAfter)
			material, _ = servingcert.PlanServing(secret, ca, names, now)
			return nil
		})
		if err != nil && material == nil {
			return coded(configv1alpha1.CodeGeneratedCertificateUnavailable, fmt.Errorf("preparing the generated serving certificate: %w", err))
		}
	}
	r.serve(ctx, material)
	return nil
}

// generatedCA returns the generated serving CA. One that is missing or damaged is put back as it was, if this replica has seen it: it is in
// kubeconfigs. Only else a new one is made.
func (r *Reconciler) generatedCA(ctx context.Context) (*certs.CA, error) {
	secret, err := r.caSecret(ctx)
	if err != nil {
		return nil, err
	}
	ca, plan := servingcert.PlanCA(secret, r.Clock.Now())
	if !plan.Needed() {
		r.knownCA = ca
		return ca, nil
	}
	err = r.asLeader(func() error {
		restored := r.knownCA != nil && plan.Reason != servingcert.ReasonExpired
		if ca = r.knownCA; !restored {
			if ca, err = servingcert.NewCA(r.Clock.Now()); err != nil {
				return err
			}
		}
		return r.writeCA(ctx, ca, secret, plan, restored)
	})
	return ca, err
}

// keepCA sees to it that the generated CA survives a time in which another certificate is served. It makes none.
func (r *Reconciler) keepCA(ctx context.Context) error {
	secret, err := r.caSecret(ctx)
	if err != nil {
		return err
	}
	ca, plan := servingcert.PlanCA(secret, r.Clock.Now())
	switch {
	case !plan.Needed():
		r.knownCA = ca
		return nil
	case r.knownCA == nil || plan.Reason == servingcert.ReasonExpired || !r.IsLeader():
		return nil
	}
	return r.writeCA(ctx, r.knownCA, secret, plan, true)
}

func (r *Reconciler) writeCA(ctx context.Context, ca *certs.CA, secret *corev1.Secret, plan servingcert.Plan, restored bool) error {
	data, err := servingcert.CAData(ca)
	if err != nil {
		return err
	}
	if _, err := r.applySecret(ctx, r.caName(), corev1.SecretTypeOpaque, data, secret); err != nil {
		return err
	}
	r.knownCA = ca
	message := "Generated serving CA"
	if restored {
		message = "Restored serving CA"
	}
	log.FromContext(ctx).Info(message, "secret", r.caName(), "reason", plan.Reason, "cause", plan.Message)
	return nil
}

func (r *Reconciler) caName() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Names.CASecret}
}

// serve puts material into service and logs it, once for each change.
func (r *Reconciler) serve(ctx context.Context, material *servingcert.Material) {
	before := r.Holder.Current()
	if before != nil && before.Source == material.Source && before.Secret == material.Secret &&
		string(before.Bundle) == string(material.Bundle) && sameChain(before, material) {
		return
	}
	r.Holder.Serve(material)
	log.FromContext(ctx).Info("Put serving certificate into service", "source", material.Source, "secret", material.Secret,
		"sha256", material.SHA256(), "notAfter", material.Certificate.Leaf.NotAfter)
}

func sameChain(a, b *servingcert.Material) bool {
	if len(a.Certificate.Certificate) != len(b.Certificate.Certificate) {
		return false
	}
	for i := range a.Certificate.Certificate {
		if string(a.Certificate.Certificate[i]) != string(b.Certificate.Certificate[i]) {
			return false
		}
	}
	return true
}

// removeGenerated removes the generated serving certificate, which nothing serves any more. Its CA stays: it is in kubeconfigs,
// and comes back into use when the external certificate goes. A Secret of that name which somebody else filled stays as well.
func (r *Reconciler) removeGenerated(ctx context.Context) error {
	if !r.IsLeader() {
		return nil
	}
	name := types.NamespacedName{Namespace: r.Namespace, Name: r.Names.TLSSecret}
	if serving := r.Holder.Current(); serving != nil && serving.Secret == name {
		return nil // also when an admin named the generated Secret as the external one
	}
	secret, found, err := r.Secrets.Get(ctx, name)
	if err != nil || !found {
		return err
	}
	ca, found, err := r.Secrets.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: r.Names.CASecret})
	if err != nil || !found || !servingcert.Generated(secret, ca) {
		return err
	}
	return r.remove(ctx, "Secret", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
	}})
}

// loadSigner loads the CA that signs client certificates, and makes it where needed.
func (r *Reconciler) loadSigner(ctx context.Context) error {
	name := types.NamespacedName{Namespace: r.Namespace, Name: r.Names.SignerSecret}
	now := r.Clock.Now()
	secret, err := r.ownSecret(ctx, name, func(secret *corev1.Secret) bool {
		_, plan := planSigner(secret, now)
		return plan.Needed()
	})
	if err != nil {
		return coded(configv1alpha1.CodeSignerUnavailable, err)
	}
	state, plan := planSigner(secret, now)
	if plan.Needed() {
		err := r.asLeader(func() error {
			made, data, err := nextSigner(state, r.knownSigner, plan, now)
			if err != nil {
				return err
			}
			if _, err := r.applySecret(ctx, name, corev1.SecretTypeOpaque, data, secret); err != nil {
				return err
			}
			state = made
			log.FromContext(ctx).Info("Wrote signer CA for client certificates", "secret", name, "reason", plan.Reason, "cause", plan.Message,
				"restored", made == r.knownSigner)
			return nil
		})
		if err != nil && state == nil {
			return coded(configv1alpha1.CodeSignerUnavailable, fmt.Errorf("could not load the impersonator's credential signing secret: %w", err))
		}
	}
	signing, accepted := r.signing, state.ca.CertPEM()
	if signing == nil || !state.overlaps(signing, now) {
		signing, accepted = state.ca, nil
	}
	r.knownSigner, r.signing = state, signing
	if r.Signer.Load(signing, append(accepted, state.previous...)) {
		log.FromContext(ctx).Info("Loaded signer CA for client certificates", "secret", name, "notAfter", state.ca.Certificate().NotAfter)
	}
	return nil
}

// caSecret returns the Secret of the generated serving CA, or nil when it does not exist.
func (r *Reconciler) caSecret(ctx context.Context) (*corev1.Secret, error) {
	return r.ownSecret(ctx, r.caName(), func(secret *corev1.Secret) bool {
		_, plan := servingcert.PlanCA(secret, r.Clock.Now())
		return plan.Needed()
	})
}

// ownSecret returns a Secret that the agent writes itself, or nil when it does not exist. What the watch has shown may be older than our
// own last write: the leader, when it would have to write, asks the API server, and does not do the same thing twice.
func (r *Reconciler) ownSecret(ctx context.Context, name types.NamespacedName, toWrite func(*corev1.Secret) bool) (*corev1.Secret, error) {
	secret, err := r.secretOrNil(ctx, name)
	if err != nil || !r.IsLeader() || !toWrite(secret) {
		return secret, err
	}
	live := &corev1.Secret{}
	switch err := r.Live.Get(ctx, name, live); {
	case err == nil:
		return live, nil
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // as secretOrNil
	default:
		return secret, nil // what is written must not have changed since it was read: see applySecret
	}
}

func (r *Reconciler) asLeader(write func() error) error {
	if !r.IsLeader() {
		return errNotLeader
	}
	return write()
}

// applySecret writes a Secret of the agent's own. When it was there already, it must not have changed since it was read, so that two
// writers cannot overwrite each other's keys.
func (r *Reconciler) applySecret(ctx context.Context, name types.NamespacedName, kind corev1.SecretType, data map[string][]byte, old *corev1.Secret) (*corev1.Secret, error) {
	if old == nil {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: r.Labels},
			Type:       kind, Data: data,
		}
		if err := r.Client.Create(ctx, secret, client.FieldOwner(FieldManager)); err != nil {
			return nil, fmt.Errorf("creating Secret %s: %w", name, err)
		}
		return secret, nil
	}
	// The type of a Secret cannot change, so what has another one is repaired under the type that it has.
	apply := corev1ac.Secret(name.Name, name.Namespace).
		WithResourceVersion(old.ResourceVersion).WithLabels(r.Labels).WithType(old.Type).WithData(data)
	if err := r.Client.Apply(ctx, apply, client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("applying Secret %s: %w", name, err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Type: old.Type, Data: data,
	}, nil
}
