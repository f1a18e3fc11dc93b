package credentialissuer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// loadExternal puts the certificate that the spec names into service, unless a check refuses it: then what was served before
// stays. A Secret of another namespace is not even looked at unless its owner permits that.
func (r *Reconciler) loadExternal(ctx context.Context, spec configv1alpha1.ImpersonationProxySpec, service *corev1.Service) (servingcert.Evaluation, error) {
	name, delegated, err := r.externalSecret(spec.TLS)
	if err != nil {
		return servingcert.Evaluation{}, err
	}
	if delegated {
		refusal, err := r.mayUse(ctx, name)
		if err != nil || refusal != nil {
			return servingcert.Evaluation{Refusal: refusal}, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, delegatedTimeout)
		defer cancel()
	}
	secret, found, err := r.Secrets.Get(ctx, name)
	if err != nil {
		return servingcert.Evaluation{}, coded(configv1alpha1.CodeSecretUnreadable, err)
	}
	if !found {
		secret = nil
	}
	evaluation := servingcert.External(servingcert.ExternalInput{
		Name: name, Secret: secret, Delegated: delegated, Spec: *spec.TLS,
		Endpoint: spec.ExternalEndpoint, Names: servingcert.ClientNames(spec, service), Now: r.Clock.Now(),
	})
	if evaluation.Certificate != nil {
		r.serve(ctx, evaluation.Certificate)
	}
	return evaluation, nil
}

// loadGenerated puts the agent's own certificate into service, and makes it and its CA where needed.
func (r *Reconciler) loadGenerated(ctx context.Context, names certs.SANs) error {
	ca, err := r.maintain(ctx, r.generatedCA(), r.knownCA)
	if err != nil {
		return coded(configv1alpha1.CodeGeneratedCertificateUnavailable, fmt.Errorf("preparing the generated serving CA: %w", err))
	}
	r.knownCA = ca
	own := r.generatedServing(ca.CA, names)
	state, err := r.maintain(ctx, own, nil)
	if err != nil {
		return coded(configv1alpha1.CodeGeneratedCertificateUnavailable,
			fmt.Errorf("preparing the generated serving certificate: %w", err))
	}
	r.serve(ctx, servingcert.FromGenerated(state, own.name))
	return nil
}

// keepCA sees to it that the generated CA survives a time in which another certificate is served. It makes none.
func (r *Reconciler) keepCA(ctx context.Context) error {
	own := r.generatedCA()
	secret, state, err := r.inspect(ctx, own)
	if err != nil {
		return err
	}
	verdict := state.Verdict()
	if verdict == nil {
		r.knownCA = state
		return nil
	}
	restored := state.Restore(verdict, r.knownCA)
	if restored == nil || !r.IsLeader() {
		return nil
	}
	return r.writeOwn(ctx, own, restored, verdict, secret, true)
}

// serve puts certificate into service and logs it, once for each change.
func (r *Reconciler) serve(ctx context.Context, certificate *servingcert.ServingCertificate) {
	before := r.Holder.Current()
	if before != nil && before.Source == certificate.Source && before.Secret == certificate.Secret &&
		string(before.Bundle) == string(certificate.Bundle) && sameChain(before, certificate) {
		return
	}
	r.Holder.Serve(certificate)
	log.FromContext(ctx).Info("Put serving certificate into service", "source", certificate.Source, "secret", certificate.Secret,
		"sha256", certificate.SHA256(), "notAfter", certificate.Certificate.Leaf.NotAfter)
}

func sameChain(a, b *servingcert.ServingCertificate) bool {
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
	if err != nil || !found || servingcert.StillGenerated(secret, ca) == nil {
		return err
	}
	return r.remove(ctx, "Secret", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
	}})
}

// loadSigner loads the CA that signs client certificates, and makes it where needed.
func (r *Reconciler) loadSigner(ctx context.Context) error {
	own := r.ownSigner()
	state, err := r.maintain(ctx, own, r.knownSigner)
	if err != nil {
		return coded(configv1alpha1.CodeSignerUnavailable,
			fmt.Errorf("could not load the impersonator's credential signing secret: %w", err))
	}
	signing, accepted := chooseSigner(state, r.signing, r.Clock.Now())
	r.knownSigner, r.signing = state, signing
	if r.Signer.Load(signing, accepted) {
		log.FromContext(ctx).Info("Loaded signer CA for client certificates", "secret", own.name, "notAfter", state.CA.Certificate().NotAfter)
	}
	return nil
}
