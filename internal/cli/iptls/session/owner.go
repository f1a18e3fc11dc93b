package session

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

// IssuedBy returns the controller that fills the Secret according to its annotations and owners, or nil if unknown.
func IssuedBy(secret *corev1.Secret) *result.Renewer {
	const prefix = "cert-manager.io/"
	if name := secret.Annotations[prefix+"certificate-name"]; name != "" {
		renewer := &result.Renewer{Kind: result.CertManagerCertificate, Name: name}
		if issuer := secret.Annotations[prefix+"issuer-name"]; issuer != "" {
			renewer.Issuer = cmp.Or(secret.Annotations[prefix+"issuer-kind"], "Issuer") + " " + issuer
		}
		return renewer
	}
	controller := slices.IndexFunc(secret.OwnerReferences,
		func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller })
	if controller >= 0 {
		owner := secret.OwnerReferences[controller]
		return &result.Renewer{Kind: owner.Kind, Name: owner.Name}
	}
	return nil
}
