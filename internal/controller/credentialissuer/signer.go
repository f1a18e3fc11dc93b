package credentialissuer

import (
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The signer CA: its lifetime, and the keys of its Secret. The first two keys are Pinniped's.
const (
	signerTTL = 365*24*time.Hour - certs.Backdate
	// signerOverlap is how long the previous CA goes on signing after a rotation.
	signerOverlap    = time.Minute
	signerCommonName = "Pinniped Impersonation Proxy Signer CA"

	signerCertKey = "caCertificate"
	signerKeyKey  = "caCertificatePrivateKey"
	// signerPreviousKey holds the previous CA. What it signed is accepted until it expires.
	signerPreviousKey = "previousCACertificate"
)

// signerPolicy is the policy of the Secret that holds the signer CA. An admin who deletes the Secret may want that
// nothing it signed is accepted any more, so a deleted CA does not come back.
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

// chooseSigner returns the CA with which this replica signs, and the PEM certificates of all other CAs whose
// signatures it accepts. signing is the CA that it signed with so far, or nil. That one goes on for signerOverlap
// next to its successor in state: until then, every replica has surely read of the successor, and accepts what it
// signs.
func chooseSigner(state *issuedcert.State, signing *certs.CA, now time.Time) (use *certs.CA, accepted []byte) {
	made := state.CA.Certificate().NotBefore.Add(certs.Backdate)
	if signing != nil && state.Follows(signing) &&
		now.Before(made.Add(signerOverlap)) && now.Add(signerOverlap).Before(signing.Certificate().NotAfter) {
		return signing, append(state.CA.CertPEM(), state.PreviousBundle()...)
	}
	return state.CA, state.PreviousBundle()
}
