package credentialissuer

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The lifetime of the signer CA, and the keys of its Secret. The first two keys are those of upstream Pinniped.
const (
	signerTTL = 365*24*time.Hour - certs.Backdate
	// signerOverlap is how long the previous CA keeps signing after a rotation.
	signerOverlap    = time.Minute
	signerCommonName = "Pinniped Impersonation Proxy Signer CA"

	signerCertKey = "caCertificate"
	signerKeyKey  = "caCertificatePrivateKey"
	// signerPreviousKey is the key of the previous CA, which is accepted until it expires.
	signerPreviousKey = "previousCACertificate"
)

// signerPolicy is the policy of the Secret with the signer CA. An administrator may delete the Secret to invalidate all
// client certificates, so a deleted CA is not restored.
func signerPolicy() issuedcert.Policy {
	return issuedcert.Policy{
		Name: "signer CA",
		CA: &issuedcert.CAPolicy{
			CommonName: signerCommonName, Life: signerTTL,
			Keys:       issuedcert.Keys{Certificate: signerCertKey, PrivateKey: signerKeyKey},
			Succession: &issuedcert.Succession{Previous: signerPreviousKey},
		},
	}
}

// chooseSigner returns the CA that signs, and the PEM certificates of all other accepted CAs. signing is the CA that
// this replica has signed with, or nil. It keeps signing for signerOverlap after a rotation, until every replica has
// loaded its successor and accepts what that signs.
func chooseSigner(state *issuedcert.State, signing *certs.CA, now time.Time) (use *certs.CA, accepted []byte) {
	made := state.CA.Certificate().NotBefore.Add(certs.Backdate)
	if signing != nil && state.Follows(signing) &&
		now.Before(made.Add(signerOverlap)) && now.Add(signerOverlap).Before(signing.Certificate().NotAfter) {
		return signing, append(state.CA.CertPEM(), state.PreviousBundle()...)
	}
	return state.CA, state.PreviousBundle()
}
