package apiservice

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// caName is the common name of the CA, as it always was.
const caName = "Pinniped Aggregation CA"

// caLives is how many lives of a certificate a CA lives.
const caLives = 4

// plan is what follows from the Secret as it is.
type plan struct {
	verdict *Verdict // nil: nothing has to change
	bundle  []byte   // CA bundle for the APIServices
	// certPEM and keyPEM are what to serve. They are empty when what stands in the Secret cannot be served.
	certPEM, keyPEM []byte
	requeueAfter    time.Duration
}

// decide says what follows from the Secret's data.
func decide(s *state) plan {
	p := plan{bundle: s.bundle(), requeueAfter: maxRequeue}
	if s.pair != nil {
		p.certPEM, p.keyPEM = s.certPEM, s.keyPEM
	}
	for _, check := range checks() {
		if p.verdict = check(s); p.verdict != nil {
			return p
		}
	}
	due := []time.Time{renewAt(s.pair.Leaf), renewAt(s.ca.Certificate())}
	if s.next != nil {
		due[1] = announcedUntil(s.next)
	}
	for _, old := range s.oldCAs {
		due = append(due, old.NotAfter)
	}
	for _, at := range due {
		p.requeueAfter = min(p.requeueAfter, max(at.Sub(s.now), minRequeue))
	}
	return p
}

// carryOut returns the Secret's data after the step that the verdict asks for.
func carryOut(s *state, verdict *Verdict, life time.Duration) (map[string][]byte, error) {
	ca, next, old := s.ca, s.next, s.oldCAs
	var err error
	switch verdict.step {
	case newCA:
		old, next = retire(old, ca), nil
		if ca, err = certs.NewCA(caName, s.now, caLives*life); err != nil {
			return nil, err
		}
	case switchToCA:
		old = retire(old, ca)
		ca, next = next, nil
	case announceCA:
		if next, err = certs.NewCA(caName, s.now, caLives*life); err != nil {
			return nil, err
		}
	case newLeaf:
	}

	data := map[string][]byte{keyCertificate: s.certPEM, keyPrivateKey: s.keyPEM}
	if verdict.step != announceCA {
		pair, err := ca.IssueServing(certs.SANs{DNSNames: s.dnsNames}, s.now, life)
		if err != nil {
			return nil, err
		}
		data[keyCertificate], data[keyPrivateKey] = pair.CertPEM, pair.KeyPEM
	}
	if err := putCA(data, keyCACertificate, keyCAKey, ca); err != nil {
		return nil, err
	}
	if next != nil {
		if err := putCA(data, keyNextCACertificate, keyNextCAKey, next); err != nil {
			return nil, err
		}
	}
	if bundle := encode(old); len(bundle) > 0 {
		data[keyPreviousCAs] = bundle
	}
	return data, nil
}

// retire adds a CA to those that are only trusted any more, the newest first.
func retire(old []*x509.Certificate, ca *certs.CA) []*x509.Certificate {
	if ca == nil {
		return old
	}
	return append([]*x509.Certificate{ca.Certificate()}, old...)
}

func putCA(data map[string][]byte, certKey, keyKey string, ca *certs.CA) error {
	key, err := ca.KeyPEM()
	if err != nil {
		return fmt.Errorf("encoding the CA's key: %w", err)
	}
	data[certKey], data[keyKey] = ca.CertPEM(), key
	return nil
}
