package iptls

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The steps of a rotation. Step 2 changes nothing: it is the time in which kubeconfigs are made anew.
const (
	stepAdvertise = 1
	stepWait      = 2
	stepSwitch    = 3
	stepDrop      = 4
)

// phase is where a rotation is, which is what its last change has left.
type phase string

const (
	phaseNone       phase = ""           // none was begun
	phaseAdvertised phase = "advertised" // old certificate, both CAs
	phaseSwitched   phase = "switched"   // new certificate, both CAs
	phaseDone       phase = "done"       // new certificate, new CA
	phaseAborted    phase = "aborted"    // as before
)

// rotationVersion is the version of the format of rotation.
const rotationVersion = 1

// rotation is the record of a rotation, in an annotation of the CredentialIssuer. Each change of the configuration and
// the record of it are one request, so that whoever is interrupted finds where things are.
type rotation struct {
	Version int   `json:"version"`
	Phase   phase `json:"phase"`
	// Aborting is true on the way back.
	Aborting   bool      `json:"aborting,omitempty"`
	Started    time.Time `json:"started"`
	Advertised time.Time `json:"advertised,omitzero"`
	Switched   time.Time `json:"switched,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`

	// From is the tls block before, To the one in the end. Nil stands for the agent's generated certificate.
	From *configv1alpha1.ImpersonationProxyTLSSpec `json:"from"`
	To   *configv1alpha1.ImpersonationProxyTLSSpec `json:"to"`
	// OldSecret holds the old certificate: From's Secret, or the one with the generated certificate.
	OldSecret string `json:"oldSecret"`
	// OldCA and NewCA are what clients verify the old and the new certificate with, PEM.
	OldCA string `json:"oldCA"`
	NewCA string `json:"newCA"`
}

// readRotation returns nil when there is no record.
func readRotation(issuer *configv1alpha1.CredentialIssuer) (*rotation, error) {
	text := issuer.Annotations[rotationAnnotation]
	if text == "" {
		return nil, nil
	}
	var r rotation
	err := decodeRecord(text, &r)
	switch {
	case err != nil:
	case r.Version != rotationVersion:
		err = fmt.Errorf("its version is %d, and this program knows version %d", r.Version, rotationVersion)
	case r.Phase != phaseAdvertised && r.Phase != phaseSwitched && r.Phase != phaseDone && r.Phase != phaseAborted:
		err = fmt.Errorf("it is in phase %.40q, which this program does not know", r.Phase)
	}
	if err != nil {
		return nil, fmt.Errorf("reading annotation %q of CredentialIssuer %q: %w", rotationAnnotation, issuer.Name, err)
	}
	return &r, nil
}

// active says whether the rotation is under way.
func (r *rotation) active() bool {
	return r != nil && (r.Phase == phaseAdvertised || r.Phase == phaseSwitched)
}

// phase is that of the record, phaseNone without one.
func (r *rotation) phase() phase {
	if r == nil {
		return phaseNone
	}
	return r.Phase
}

// union is what clients are given while both certificates may be served.
func (r *rotation) union() []byte { return certs.UnionBundle([]byte(r.OldCA), []byte(r.NewCA)) }

// block returns the tls block of a phase.
func (r *rotation) block(p phase) *configv1alpha1.ImpersonationProxyTLSSpec {
	switch p {
	case phaseAdvertised:
		return r.withUnion(r.From, r.OldSecret)
	case phaseSwitched:
		return r.withUnion(r.To, "")
	case phaseDone:
		return r.To.DeepCopy()
	case phaseAborted, phaseNone:
	}
	return r.From.DeepCopy()
}

func (r *rotation) withUnion(block *configv1alpha1.ImpersonationProxyTLSSpec, secret string) *configv1alpha1.ImpersonationProxyTLSSpec {
	both := &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret}
	if block != nil {
		both = block.DeepCopy()
	}
	both.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.union())
	return both
}

// at returns the record as it is when p has been reached.
func (r *rotation) at(p phase, now time.Time) *rotation {
	next := *r
	next.Phase = p
	now = now.UTC().Truncate(time.Second)
	switch p {
	case phaseAdvertised:
		if next.Advertised.IsZero() {
			next.Advertised = now
		}
		next.Switched = time.Time{}
	case phaseSwitched:
		next.Switched = now
	case phaseDone:
		next.Ended = now
		if next.Switched.IsZero() { // towards the generated certificate these two are one
			next.Switched = now
		}
	case phaseAborted:
		next.Ended, next.Aborting = now, false
	case phaseNone:
	}
	return &next
}

// edited names the fields of the tls block that are not as the rotation left them. The field verification may be missing:
// not every CredentialIssuer has it.
func (r *rotation) edited(spec *configv1alpha1.ImpersonationProxySpec) []string {
	left, now := target{TLS: r.block(r.Phase)}, target{TLS: spec.TLS.DeepCopy()}
	if left.TLS != nil && now.TLS != nil && now.TLS.Verification == "" {
		left.TLS.Verification = ""
	}
	if reflect.DeepEqual(left.TLS, now.TLS) {
		return nil
	}
	return tlsDifferences(left.digested(), now.digested())
}

// next is the step that comes next; 0 when there is none. The wait is part of what comes before a switch.
func (r *rotation) next() int {
	switch r.phase() {
	case phaseAdvertised:
		return stepSwitch
	case phaseSwitched:
		return stepDrop
	case phaseNone, phaseAborted:
		return stepAdvertise
	case phaseDone:
	}
	return 0
}

// phaseAfter is the phase to which a step leads.
func (r *rotation) phaseAfter(step int) phase {
	switch {
	case step == stepAdvertise:
		return phaseAdvertised
	case step == stepSwitch && r.To != nil:
		return phaseSwitched
	default:
		return phaseDone
	}
}

// trustOf returns what clients verify chain with: the CA bundle that they have, else the root among their system roots.
func trustOf(bundle, chain []byte, now time.Time) ([]byte, error) {
	if members, _ := certs.ParseBundle(bundle); len(members) > 0 {
		return certs.UnionBundle(bundle), nil
	}
	path, err := verifyChain(nil, chain, now)
	if err != nil {
		return nil, fmt.Errorf("verifying it with the system roots of this machine: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: path[len(path)-1].Raw}), nil
}

// verifies says whether clients with a CA bundle (PEM; empty: the system roots) trust a chain (PEM).
func verifies(bundle, chain []byte, now time.Time) bool {
	_, err := verifyChain(bundle, chain, now)
	return err == nil
}

func verifyChain(bundle, chain []byte, now time.Time) ([]*x509.Certificate, error) {
	certificates, _ := certs.ParseBundle(chain)
	if len(certificates) == 0 {
		return nil, errors.New("there is no certificate")
	}
	options := x509.VerifyOptions{
		Intermediates: pool(certificates[1:]), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(bundle) > 0 {
		members, _ := certs.ParseBundle(bundle)
		options.Roots = pool(members)
	}
	paths, err := certificates[0].Verify(options)
	if err != nil {
		return nil, err
	}
	return paths[0], nil
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, cert := range certificates {
		p.AddCert(cert)
	}
	return p
}
