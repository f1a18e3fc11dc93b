package session

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Renewer is the controller that writes a Secret and renews the certificate in it.
type Renewer struct {
	// Kind and Name identify the controller's object: a Certificate of cert-manager, or an object of another
	// controller.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Issuer names the cert-manager issuer of the certificate, with its kind: "ClusterIssuer my-ca".
	Issuer string `json:"issuer,omitempty"`
	// RenewalTime is when cert-manager says that it will renew the certificate.
	RenewalTime *time.Time `json:"renewalTime,omitempty"`
	// Trouble is what keeps cert-manager from renewing.
	Trouble string `json:"trouble,omitempty"`
}

func (r *Renewer) String() string {
	if r.Kind == CertManagerCertificate {
		return fmt.Sprintf("it is of cert-manager's Certificate %q", r.Name)
	}
	return fmt.Sprintf("it is of %s %q", r.Kind, r.Name)
}

// CertManagerCertificate is the Kind of a Renewer that is cert-manager.
const CertManagerCertificate = "Certificate"

// IssuedBy returns the program that fills the Secret, as its annotations and owners tell; nil when they tell nothing.
func IssuedBy(secret *corev1.Secret) *Renewer {
	const prefix = "cert-manager.io/"
	if name := secret.Annotations[prefix+"certificate-name"]; name != "" {
		renewer := &Renewer{Kind: CertManagerCertificate, Name: name}
		if issuer := secret.Annotations[prefix+"issuer-name"]; issuer != "" {
			renewer.Issuer = cmp.Or(secret.Annotations[prefix+"issuer-kind"], "Issuer") + " " + issuer
		}
		return renewer
	}
	controller := slices.IndexFunc(secret.OwnerReferences,
		func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller })
	if controller >= 0 {
		owner := secret.OwnerReferences[controller]
		return &Renewer{Kind: owner.Kind, Name: owner.Name}
	}
	return nil
}
