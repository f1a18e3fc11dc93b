package rotation

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Version is the version of the format of rotation.
const Version = 1

// Record is the record of a rotation, in an annotation of the CredentialIssuer. Each change of the configuration and
// the record of it are one request, so that a run after an interruption finds where the rotation is.
type Record struct {
	Version int   `json:"version"`
	Phase   Phase `json:"phase"`
	// Aborting is true on the way back.
	Aborting   bool      `json:"aborting,omitempty"`
	Started    time.Time `json:"started"`
	Advertised time.Time `json:"advertised,omitzero"`
	Switched   time.Time `json:"switched,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`

	// From is the tls block before, To the one in the end. Nil stands for the agent's generated certificate.
	From *configv1alpha1.ImpersonationProxyTLSSpec `json:"from"`
	To   *configv1alpha1.ImpersonationProxyTLSSpec `json:"to"`
	// OldSecret names the Secret with the old certificate. It is the Secret of From or, when From is nil, the Secret
	// of the generated certificate.
	OldSecret string `json:"oldSecret"`
	// OldCA and NewCA are what clients verify the old and the new certificate with, PEM.
	OldCA string `json:"oldCA"`
	NewCA string `json:"newCA"`
}

// Read returns nil when there is no record.
func Read(issuer *configv1alpha1.CredentialIssuer) (*Record, error) {
	text := issuer.Annotations[plan.RotationAnnotation]
	if text == "" {
		return nil, nil
	}
	var r Record
	err := plan.DecodeRecord(text, &r)
	switch {
	case err != nil:
	case r.Version != Version:
		err = fmt.Errorf("its version is %d, and this program knows version %d", r.Version, Version)
	case r.Phase != PhaseAdvertised && r.Phase != PhaseSwitched && r.Phase != PhaseDone && r.Phase != PhaseAborted:
		err = fmt.Errorf("it is in phase %.40q, which this program does not know", r.Phase)
	}
	if err != nil {
		return nil, fmt.Errorf("reading annotation %q of CredentialIssuer %q: %w", plan.RotationAnnotation,
			issuer.Name, err)
	}
	return &r, nil
}

// Active says whether the rotation is under way.
func (r *Record) Active() bool {
	return r != nil && (r.Phase == PhaseAdvertised || r.Phase == PhaseSwitched)
}

// Current is that of the record, phaseNone without one.
func (r *Record) Current() Phase {
	if r == nil {
		return PhaseNone
	}
	return r.Phase
}

// Union returns the CA bundle with the old and the new CA. It is advertised while either certificate may be served.
func (r *Record) Union() []byte { return certs.UnionBundle([]byte(r.OldCA), []byte(r.NewCA)) }

// Block returns the tls block of a phase.
func (r *Record) Block(p Phase) *configv1alpha1.ImpersonationProxyTLSSpec {
	switch p {
	case PhaseAdvertised:
		return r.withUnion(r.From, r.OldSecret)
	case PhaseSwitched:
		return r.withUnion(r.To, "")
	case PhaseDone:
		return r.To.DeepCopy()
	case PhaseAborted, PhaseNone:
	}
	return r.From.DeepCopy()
}

func (r *Record) withUnion(block *configv1alpha1.ImpersonationProxyTLSSpec,
	secret string,
) *configv1alpha1.ImpersonationProxyTLSSpec {
	both := &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret}
	if block != nil {
		both = block.DeepCopy()
	}
	both.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.Union())
	return both
}

// At returns the record as it is when p has been reached.
func (r *Record) At(p Phase, now time.Time) *Record {
	next := *r
	next.Phase = p
	now = now.UTC().Truncate(time.Second)
	switch p {
	case PhaseAdvertised:
		if next.Advertised.IsZero() {
			next.Advertised = now
		}
		next.Switched = time.Time{}
	case PhaseSwitched:
		next.Switched = now
	case PhaseDone:
		next.Ended = now
		if next.Switched.IsZero() { // towards the generated certificate these two are one
			next.Switched = now
		}
	case PhaseAborted:
		next.Ended, next.Aborting = now, false
	case PhaseNone:
	}
	return &next
}

// Edited names the fields of the tls block that were changed since the last step of the rotation. A missing
// verification is no change, because not every installed CredentialIssuer CRD has that field.
func (r *Record) Edited(spec *configv1alpha1.ImpersonationProxySpec) []string {
	left, now := plan.Target{TLS: r.Block(r.Phase)}, plan.Target{TLS: spec.TLS.DeepCopy()}
	if left.TLS != nil && now.TLS != nil && now.TLS.Verification == "" {
		left.TLS.Verification = ""
	}
	if reflect.DeepEqual(left.TLS, now.TLS) {
		return nil
	}
	return plan.TLSDifferences(left.Digested(), now.Digested())
}

// Next is the step that comes next; 0 when there is none. The wait is part of what comes before a switch.
func (r *Record) Next() int {
	switch r.Current() {
	case PhaseAdvertised:
		return StepSwitch
	case PhaseSwitched:
		return StepDrop
	case PhaseNone, PhaseAborted:
		return StepAdvertise
	case PhaseDone:
	}
	return 0
}

// PhaseAfter is the phase to which a step leads.
func (r *Record) PhaseAfter(step int) Phase {
	switch {
	case step == StepAdvertise:
		return PhaseAdvertised
	case step == StepSwitch && r.To != nil:
		return PhaseSwitched
	default:
		return PhaseDone
	}
}

// LastStep is the number of the last step that is done.
func (r *Record) LastStep() int {
	switch r.Phase {
	case PhaseSwitched:
		return StepSwitch
	case PhaseDone:
		return StepDrop
	case PhaseNone, PhaseAdvertised, PhaseAborted:
	}
	return StepAdvertise
}

// Destination names what is rotated to.
func (r *Record) Destination() string {
	if r.To == nil {
		return "the agent's generated certificate"
	}
	return fmt.Sprintf("Secret %q", r.To.SecretName)
}
