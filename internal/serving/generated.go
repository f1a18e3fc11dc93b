package serving

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The lifetimes of generated certificates. The CA is in kubeconfigs, so it is practically permanent.
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

// FromGenerated returns the generated certificate in the Secret with this name, ready to be served.
func FromGenerated(state *issuedcert.State, name types.NamespacedName) *Certificate {
	return &Certificate{
		Certificate: *state.Certificate,
		Source:      SourceGenerated,
		Secret:      name,
		Bundle:      state.CA.CertPEM(),
	}
}

// StillGenerated returns the certificate in secret if the generated CA in caSecret issued it, regardless of its names
// and dates; else nil. It stays in service while the external certificate that is to replace it is refused.
func StillGenerated(secret, caSecret *corev1.Secret) *Certificate {
	now := time.Time{} // nothing here depends on the time
	ca := issuedcert.Inspect(GeneratedCA(), caSecret, now).CA
	state := issuedcert.InspectUnder(ca, GeneratedServing(certs.SANs{}), secret, now)
	if !state.SignedByCA() {
		return nil
	}
	return FromGenerated(state, types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name})
}

// WouldGenerate returns a certificate like the one that the agent would issue for host, to compare with; it is never
// served. If the CA in caSecret is unusable, a temporary CA issues it, and its Bundle is empty.
func WouldGenerate(
	caSecret *corev1.Secret,
	host string,
	spec configv1alpha1.ImpersonationProxySpec,
	service *corev1.Service,
	now time.Time,
) (*Certificate, error) {
	certificate := &Certificate{Source: SourceGenerated}
	state := issuedcert.Inspect(GeneratedCA(), caSecret, now)
	ca, err := state.CA, error(nil)
	if state.Verdict() == nil {
		certificate.Bundle = ca.CertPEM()
	} else if ca, err = certs.NewCA(generatedCAName, now, GeneratedServingTTL); err != nil {
		return nil, fmt.Errorf("issuing a certificate to compare with: %w", err)
	}
	pair, err := ca.IssueServing(GeneratedNames(host, spec, service), now, GeneratedServingTTL)
	if err != nil {
		return nil, fmt.Errorf("issuing a certificate to compare with: %w", err)
	}
	certificate.Certificate, err = keyPair(pair.CertPEM, pair.KeyPEM)
	return certificate, err
}
