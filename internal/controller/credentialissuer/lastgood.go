package credentialissuer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// keepLastGood makes the leader keep a copy of the external certificate in service, for replicas that start while its Secret is bad, and
// remove the copy when something else is served.
func (r *Reconciler) keepLastGood(ctx context.Context) error {
	serving := r.Holder.Current()
	name := r.lastGoodName()
	if !r.IsLeader() || serving != nil && serving.Secret == name {
		return nil // also when an admin named that very Secret
	}
	secret, err := r.secretOrNil(ctx, name)
	if err != nil {
		return coded(configv1alpha1.CodeLastGoodNotKept, err)
	}
	if !servingcert.KeepsLastGood(serving) {
		if secret == nil || !servingcert.IsLastGood(secret) {
			return nil
		}
		return r.remove(ctx, "Secret", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
		}})
	}
	data, err := servingcert.LastGoodData(serving)
	if err != nil || servingcert.SameData(secret, data) {
		return coded(configv1alpha1.CodeLastGoodNotKept, err)
	}
	_, err = r.writeSecret(ctx, name, corev1.SecretTypeTLS, data, secret)
	switch {
	case issuedcert.ChangedMeanwhile(err):
		return nil // it was written a moment ago; its watch wakes us
	case err != nil:
		return coded(configv1alpha1.CodeLastGoodNotKept, fmt.Errorf("keeping a copy of the certificate in service: %w", err))
	}
	log.FromContext(ctx).Info("Kept a copy of the certificate in service", "secret", name, "sha256", serving.SHA256())
	return nil
}

// loadLastGood puts into service what the other replicas still serve while the external certificate is refused: the last good one, else the
// generated one that it is to replace. It is for a replica that has just started.
func (r *Reconciler) loadLastGood(ctx context.Context) error {
	kept, err := r.secretOrNil(ctx, r.lastGoodName())
	if err != nil {
		return err
	}
	if kept != nil {
		certificate, err := servingcert.LastGood(kept)
		if err == nil {
			log.FromContext(ctx).Info("Went back to the last good certificate", "secret", certificate.Secret, "keptIn", r.lastGoodName())
			r.serve(ctx, certificate)
			return nil
		}
		log.FromContext(ctx).Info("Could not use the last good certificate", "secret", r.lastGoodName(), "problem", err.Error())
	}
	generated, err := r.secretOrNil(ctx, types.NamespacedName{Namespace: r.Namespace, Name: r.Names.TLSSecret})
	if err != nil || generated == nil {
		return err
	}
	ca, err := r.secretOrNil(ctx, types.NamespacedName{Namespace: r.Namespace, Name: r.Names.CASecret})
	if err != nil || ca == nil {
		return err
	}
	if certificate := servingcert.StillGenerated(generated, ca); certificate != nil {
		r.serve(ctx, certificate)
	}
	return nil
}

func (r *Reconciler) lastGoodName() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Names.LastGoodSecret}
}

// refuseOwnCopy refuses a valid spec that names the copy as the original: it would be overwritten, and removed when something else is
// served. Mode disabled ignores everything else.
func (r *Reconciler) refuseOwnCopy(spec configv1alpha1.ImpersonationProxySpec) error {
	if spec.TLS == nil || spec.Mode == configv1alpha1.ImpersonationProxyModeDisabled {
		return nil
	}
	name, err := delegation.SecretName(spec.TLS.SecretName, r.Namespace)
	if err != nil || name != r.lastGoodName() {
		return err
	}
	return fmt.Errorf("invalid tls.secretName: Secret %q is the copy that the agent itself keeps, and removes; name the Secret that the certificate comes from", name)
}

// secretOrNil returns a Secret, or nil when it does not exist.
func (r *Reconciler) secretOrNil(ctx context.Context, name types.NamespacedName) (*corev1.Secret, error) {
	secret, found, err := r.Secrets.Get(ctx, name)
	if err != nil || !found {
		return nil, err
	}
	return secret, nil
}
