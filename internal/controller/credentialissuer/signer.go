package credentialissuer

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The signer CA: how long it lives, and the keys of its Secret. The first two keys are Pinniped's.
const (
	signerTTL        = 365*24*time.Hour - certs.Backdate
	signerCommonName = "Pinniped Impersonation Proxy Signer CA"

	signerCertKey     = "caCertificate"
	signerKeyKey      = "caCertificatePrivateKey"
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
		return nil, servingcert.Plan{Reason: "Damaged", Message: err.Error()}
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

// newSigner makes a signer CA and the data of its Secret. The one before (nil when there was none) goes on being accepted.
func newSigner(before *signerState, now time.Time) (*signerState, map[string][]byte, error) {
	ca, err := certs.NewCA(signerCommonName, now, signerTTL)
	if err != nil {
		return nil, nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, nil, err
	}
	state := &signerState{ca: ca}
	data := map[string][]byte{signerCertKey: ca.CertPEM(), signerKeyKey: key}
	if before != nil {
		state.previous = before.ca.CertPEM()
		data[signerPreviousKey] = state.previous
	}
	return state, data, nil
}
