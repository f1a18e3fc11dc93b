package serving

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// How long generated certificates live. The CA is in kubeconfigs, so it is kept for good. The serving certificate is
// renewed so often that renewal is nothing special.
const (
	GeneratedCATTL      = 100 * 365 * 24 * time.Hour
	GeneratedServingTTL = 365*24*time.Hour - certs.Backdate

	generatedCAName = "Pinniped Impersonation Proxy Serving CA"

	caKeyKey = "ca.key" // of the Secret of the generated serving CA
)

// GeneratedCA is the policy of the Secret that holds the generated serving CA.
func GeneratedCA() issuedcert.Policy {
	return issuedcert.Policy{
		Name: "serving CA",
		CA: &issuedcert.CAPolicy{
			CommonName: generatedCAName, Life: GeneratedCATTL,
			Keys:           issuedcert.Keys{Certificate: CACertKey, PrivateKey: caKeyKey},
			RestoreDeleted: true,
		},
	}
}

// GeneratedServing is the policy of the Secret that holds the generated serving certificate. Its CA is in another
// Secret.
func GeneratedServing(names certs.SANs) issuedcert.Policy {
	return issuedcert.Policy{
		Name: "generated serving certificate",
		Certificate: &issuedcert.CertificatePolicy{
			Names: names, Life: GeneratedServingTTL,
			Keys: issuedcert.Keys{Certificate: corev1.TLSCertKey, PrivateKey: corev1.TLSPrivateKeyKey},
		},
	}
}

// FromGenerated returns the generated certificate of the Secret called name for serving.
func FromGenerated(state *issuedcert.State, name types.NamespacedName) *Certificate {
	return &Certificate{
		Certificate: *state.Certificate,
		Source:      SourceGenerated,
		Secret:      name,
		Bundle:      state.CA.CertPEM(),
	}
}

// StillGenerated returns the certificate in secret if caSecret holds the generated CA that issued it, whatever its
// names and dates are; else nil. It stays in service while the external certificate that is to replace it is
// refused.
func StillGenerated(secret, caSecret *corev1.Secret) *Certificate {
	now := time.Time{} // nothing here depends on the time
	ca := issuedcert.Inspect(GeneratedCA(), caSecret, now).CA
	state := issuedcert.InspectUnder(ca, GeneratedServing(certs.SANs{}), secret, now)
	if !state.SignedByCA() {
		return nil
	}
	return FromGenerated(state, types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name})
}

// GeneratedBundle returns the CA bundle that goes with the generated certificates, as PEM. caSecret is the Secret
// of the generated CA, or nil. The result is nil when the agent is about to make another CA.
func GeneratedBundle(caSecret *corev1.Secret, now time.Time) []byte {
	state := issuedcert.Inspect(GeneratedCA(), caSecret, now)
	if state.Verdict() != nil {
		return nil
	}
	return state.CA.CertPEM()
}
