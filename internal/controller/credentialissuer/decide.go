package credentialissuer

import (
	"errors"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// decision is what decide returns.
type decision struct {
	actions []action       // in this order
	errs    map[step]error // errors found before any action
	phase   int32

	at         serving.Endpoint // where clients reach the proxy, unless addressErr is set
	addressErr error
	evaluation serving.Evaluation // of the certificate that the spec asks for
	// replaces is the delegated certificate that the actions take out of service, or nil.
	replaces *serving.Certificate
}

func (d *decision) add(actions ...action) { d.actions = append(d.actions, actions...) }

func (d *decision) fail(at step, err error) {
	if err != nil {
		d.errs[at] = errors.Join(d.errs[at], err)
	}
}

// writes returns the names of the Secrets that writeIssued actions write.
func (d *decision) writes() []string {
	var names []string
	for _, a := range d.actions {
		if write, ok := a.(writeIssued); ok {
			names = append(names, write.issued.name)
		}
	}
	return names
}

// decideOff returns the decision to stop the proxy. It keeps the CAs, the Secret that the spec names, and, while
// revisions have clients, everything else.
func decideOff(spec serving.Desired, s observed) decision {
	d := decision{errs: map[step]error{}, phase: phaseOff}
	d.add(stopProxy{})
	if h, known := s.revisions(); known && !h.InUse() { // otherwise its clients count when the proxy is turned on again
		if !s.isNamed(spec, s.names.TLSSecret) {
			s.removeGenerated(&d)
		}
		if !s.isNamed(spec, s.names.LastKnownGoodSecret) {
			s.keepLastKnownGood(&d, nil)
		}
	}
	s.relabel(spec, &d)
	return d
}

// isNamed reports whether the spec names this Secret of the agent.
func (s *observed) isNamed(spec serving.Desired, name string) bool {
	return spec.Secret == s.local(name)
}

// decide returns the decision to run the proxy as the spec asks for.
func decide(spec serving.Desired, s observed) decision {
	d := decision{errs: map[step]error{}, phase: phaseOn}
	if d.at, d.addressErr = spec.Endpoint(s.service); !errors.Is(d.addressErr, serving.ErrPending) {
		d.addressErr = coded(configv1alpha1.CodeServiceAddressInvalid, d.addressErr)
	}
	s.loadSigner(&d)
	s.evaluation = serving.Evaluate(s.evaluation, s.situation(spec, &d))
	inService := s.chooseCertificate(spec, &d)
	d.evaluation = s.evaluation
	if inService == nil && spec.TLS == nil && d.errs[stepLoad] == nil {
		d.phase = phaseIdle // no address yet to issue a certificate for
	}
	if inService == nil {
		s.relabel(spec, &d)
		return d
	}
	d.add(startProxy{})
	if d.errs[stepLoad] == nil {
		s.keepLastKnownGood(&d, inService)
		switch {
		case spec.TLS == nil || s.evaluation.Certificate == nil || d.errs[stepTidy] != nil ||
			inService.Source == serving.SourceGenerated:
		case inService.Delegated:
			s.keepGenerated(spec, &d)
		default:
			s.keepCA(&d)
			// The generated certificate is removed only once the external one is in service.
			s.removeGenerated(&d)
		}
	}
	s.relabel(spec, &d)
	return d
}

// decideWithoutSpec returns the decision while there is no CredentialIssuer: a replica keeps serving, or, if it has
// just started, serves what was served last.
func decideWithoutSpec(s observed) decision {
	d := decision{errs: map[step]error{}, phase: phaseOn}
	inService := s.serving
	if inService == nil {
		inService = s.serveLastKnownGood(&d)
	}
	if inService == nil {
		d.phase = phaseLost
		return d
	}
	s.loadSigner(&d)
	d.add(startProxy{})
	return d
}

// situation returns the input of serving.Evaluate.
func (s *observed) situation(spec serving.Desired, d *decision) serving.Situation {
	in := serving.Situation{
		InService: s.met(), Revisions: s.revisions, Retention: s.retention, TLS: spec.Transition, Now: s.now, Leads: s.leads,
	}
	if d.addressErr == nil {
		in.Endpoint = d.at.URL()
	}
	return in
}

// met returns the certificate that clients get, or nil: the one in service, unless its permission was withdrawn; on a
// replica that has just started, the one that the others serve.
func (s *observed) met() *serving.Certificate {
	switch {
	case s.serving != nil && s.withdrawn != nil:
		return nil
	case s.serving != nil:
		return s.serving
	}
	if kept := s.lastKnownGood(); kept != nil {
		return kept
	}
	return s.stillGenerated()
}

// lastKnownGood returns the last known good certificate from its backup, or nil.
func (s *observed) lastKnownGood() *serving.Certificate {
	kept := s.secrets[s.names.LastKnownGoodSecret]
	if kept.secret == nil {
		return nil
	}
	certificate, err := serving.LastKnownGood(kept.secret)
	if err != nil {
		return nil
	}
	return certificate
}

// stillGenerated returns the generated certificate, or nil.
func (s *observed) stillGenerated() *serving.Certificate {
	generated, ca := s.secrets[s.names.TLSSecret], s.secrets[s.names.CASecret]
	if generated.secret == nil || ca.secret == nil {
		return nil
	}
	return serving.StillGenerated(generated.secret, ca.secret)
}

// chooseCertificate adds the actions that put the right certificate into service. It returns the certificate that is in
// service after they succeed, or nil.
func (s *observed) chooseCertificate(
	spec serving.Desired,
	d *decision,
) *serving.Certificate {
	if spec.TLS == nil {
		if d.addressErr != nil {
			return s.serving
		}
		return s.serveGenerated(spec, d)
	}
	d.fail(stepLoad, s.evaluationErr)
	inService := s.serving
	switch {
	case s.evaluation.Certificate != nil:
		inService = s.evaluation.Certificate
		s.serve(d, stepLoad, serve{certificate: inService})
	case inService == nil:
		inService = s.serveLastKnownGood(d)
	}
	if d.addressErr == nil && s.needsFallback(d, inService) {
		inService = s.serveGenerated(spec, d)
	}
	return inService
}

// needsFallback reports whether to serve the generated certificate in place of a delegated one: if the permission of
// the one in service was withdrawn, or if the requested one is not permitted and no external certificate is in service.
func (s *observed) needsFallback(d *decision, inService *serving.Certificate) bool {
	if inService == nil || inService.Source == serving.SourceGenerated {
		refusal := s.evaluation.Refusal
		return refusal != nil && refusal.Finding.Code == certs.SecretNotPermitted
	}
	if inService != s.serving || !inService.Delegated {
		return false
	}
	d.fail(stepLoad, s.withdrawnErr)
	if s.withdrawn != nil {
		d.replaces = inService
	}
	return s.withdrawn != nil
}

// serveGenerated adds the actions that serve the generated certificate. It returns what is then in service.
func (s *observed) serveGenerated(spec serving.Desired, d *decision) *serving.Certificate {
	names := serving.GeneratedNames(d.at.Host, spec.ImpersonationProxySpec, s.service)
	ca := s.maintain(d, stepLoad, stepLoad, s.names.generatedCA(), s.inspectCA(), nil)
	if ca == nil {
		return s.serving
	}
	name := s.local(s.names.TLSSecret)
	put := func(state *issuedcert.State, at step) *serving.Certificate {
		certificate := serving.FromGenerated(state, name)
		if spec.TLS != nil {
			certificate.Fallback = d.replaces != nil || s.serving != nil && s.serving.Fallback
		} else {
			s.evaluation = serving.Evaluate(
				serving.Generated(certificate, d.at.Host, serving.ClientNames(spec.ImpersonationProxySpec, s.service)),
				s.situation(spec, d),
			)
			if certificate = s.evaluation.Certificate; certificate == nil {
				return s.serving
			}
		}
		s.serve(d, at, serve{certificate: certificate, instead: d.replaces, cause: s.withdrawn})
		return certificate
	}
	read := s.secrets[s.names.TLSSecret]
	state := inspected{err: read.err, secret: read.secret}
	if read.err == nil {
		state.state = issuedcert.InspectUnder(ca, serving.GeneratedServing(names), read.secret, s.now)
	}
	inService := s.serving
	if still := s.stillGenerated(); inService == nil && still != nil && s.lastKnownGood() == nil &&
		state.faultIs(issuedcert.SANMismatch) {
		// A replica that has just started serves what the others serve. The leader may run another version that accepts
		// these names.
		s.serve(d, stepLoad, serve{certificate: still})
		inService = still
	}
	s.maintain(
		d,
		stepLoad,
		stepRenewCertificate,
		s.names.generatedServing(),
		state,
		func(state *issuedcert.State, at step) {
			inService = put(state, at)
		},
	)
	return inService
}

// serveLastKnownGood adds the action of a replica that has just started while the external certificate is refused: it serves
// what the others serve, which is the last known good certificate, or else the generated one.
func (s *observed) serveLastKnownGood(d *decision) *serving.Certificate {
	kept := s.secrets[s.names.LastKnownGoodSecret]
	d.fail(stepLoad, kept.err)
	if kept.err != nil {
		return nil
	}
	if kept.secret != nil {
		certificate, err := serving.LastKnownGood(kept.secret)
		if err == nil {
			s.serve(d, stepLoad, serve{certificate: certificate, keptIn: s.names.LastKnownGoodSecret})
			return certificate
		}
		d.add(reportUnusableCopy{s.local(s.names.LastKnownGoodSecret), err})
	}
	generated, ca := s.secrets[s.names.TLSSecret], s.secrets[s.names.CASecret]
	if err := errors.Join(generated.err, ca.err); err != nil {
		d.fail(stepLoad, err)
		return nil
	}
	certificate := s.stillGenerated()
	if certificate != nil {
		s.serve(d, stepLoad, serve{certificate: certificate})
	}
	return certificate
}

// serve adds the action, unless the certificate is in service already.
func (s *observed) serve(d *decision, at step, action serve) {
	if at != stepLoad || !sameCertificate(s.serving, action.certificate) {
		action.at = at
		d.add(action)
	}
}
