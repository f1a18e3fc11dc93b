package credentialissuer

import (
	"bytes"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The signer CA: how long it lives, and the keys of its Secret. The first two keys are Pinniped's.
const (
	signerTTL = 365*24*time.Hour - certs.Backdate
	// signerOverlap is how long the CA before goes on signing after a rotation.
	signerOverlap    = time.Minute
	signerCommonName = "Pinniped Impersonation Proxy Signer CA"

	signerCertKey = "caCertificate"
	signerKeyKey  = "caCertificatePrivateKey"
	// reasonDamaged is the reason to write a signer anew that nobody can have meant. Whoever deletes the Secret, on the other
	// hand, may want that nothing it signed is accepted any more.
	reasonDamaged = "Damaged"

	signerPreviousKey = "previousCACertificate" // the signer before: what it signed is accepted until it expires
)

// signerState is the signer CA as the Secret holds it.
type signerState struct {
	ca       *certs.CA
	previous []byte // PEM, or nothing
}

// planSigner reads the signer from its Secret (nil when it does not exist), or says why a new one is to be made. A signer that is only
// old is returned as well, to go on with until its successor is there.
func planSigner(secret *corev1.Secret, now time.Time) (*signerState, servingcert.Plan) {
	if secret == nil {
		return nil, servingcert.Plan{Reason: "Missing", Message: "there is no signer CA yet"}
	}
	ca, err := certs.LoadCA(secret.Data[signerCertKey], secret.Data[signerKeyKey])
	if err != nil {
		return nil, servingcert.Plan{Reason: reasonDamaged, Message: err.Error()}
	}
	cert := ca.Certificate()
	if now.After(cert.NotAfter) {
		return nil, servingcert.Plan{Reason: "Expired", Message: fmt.Sprintf("the signer CA expired at %s", cert.NotAfter.Format(time.RFC3339))}
	}
	state := &signerState{ca: ca, previous: secret.Data[signerPreviousKey]}
	if now.After(servingcert.RenewAt(cert)) {
		return state, servingcert.Plan{Reason: "Expiring", Message: fmt.Sprintf("two thirds of the signer CA's life are over; it ends at %s",
			cert.NotAfter.Format(time.RFC3339))}
	}
	return state, servingcert.Plan{}
}

// overlaps says whether signing, the CA that this replica signs with so far, is to go on for a while beside its successor s: until every
// replica has surely read of s, and accepts what it signs.
func (s *signerState) overlaps(signing *certs.CA, now time.Time) bool {
	made := s.ca.Certificate().NotBefore.Add(certs.Backdate)
	return now.Before(made.Add(signerOverlap)) && now.Add(signerOverlap).Before(signing.Certificate().NotAfter) &&
		bytes.Contains(s.previous, signing.CertPEM())
}

// nextSigner returns the signer to be written and the data of its Secret: known, the one that this replica loaded last, if the Secret is
// damaged and known still good; else a new one.
func nextSigner(state, known *signerState, plan servingcert.Plan, now time.Time) (*signerState, map[string][]byte, error) {
	if plan.Reason == reasonDamaged && known != nil && now.Before(servingcert.RenewAt(known.ca.Certificate())) {
		data, err := known.data()
		return known, data, err
	}
	if state == nil && plan.Reason == reasonDamaged {
		state = known // what it signed goes on being accepted
	}
	return newSigner(state, now)
}

// newSigner makes a signer CA and the data of its Secret. The one before (nil when there was none) goes on being accepted.
func newSigner(before *signerState, now time.Time) (*signerState, map[string][]byte, error) {
	ca, err := certs.NewCA(signerCommonName, now, signerTTL)
	if err != nil {
		return nil, nil, err
	}
	state := &signerState{ca: ca}
	if before != nil {
		state.previous = before.ca.CertPEM()
	}
	data, err := state.data()
	return state, data, err
}

// data returns the content of the Secret.
func (s *signerState) data() (map[string][]byte, error) {
	key, err := s.ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{signerCertKey: s.ca.CertPEM(), signerKeyKey: key}
	if len(s.previous) > 0 {
		data[signerPreviousKey] = s.previous
	}
	return data, nil
}
