package credentialissuer

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// decision is what follows from a spec and what was seen.
type decision struct {
	actions []action       // in this order
	errs    map[step]error // what is known to be wrong before anything is done
	phase   int32

	at         serving.Endpoint // where clients reach the proxy, unless addressErr is set
	addressErr error
	evaluation serving.Evaluation // of the certificate that is to be served
	// replaces is the delegated certificate that the actions take out of service, or nil.
	replaces *serving.Certificate
}

func (d *decision) add(actions ...action) { d.actions = append(d.actions, actions...) }

func (d *decision) fail(at step, err error) {
	if err != nil {
		d.errs[at] = errors.Join(d.errs[at], err)
	}
}

// writes returns the names of the Secrets with issued content that would be written.
func (d *decision) writes() []string {
	var names []string
	for _, a := range d.actions {
		if write, ok := a.(writeIssued); ok {
			names = append(names, write.issued.name)
		}
	}
	return names
}

// decideOff says what is to be done so that the proxy runs no more. The two CAs stay in their Secrets, and so does the
// Secret that the spec names, whatever it holds.
func decideOff(spec serving.Desired, s seen) decision {
	d := decision{errs: map[step]error{}, phase: phaseOff}
	d.add(stopProxy{})
	if h, known := s.revisions(); known && !h.InUse() { // else its clients count when the proxy is switched on again
		if !s.isNamed(spec, s.names.TLSSecret) {
			s.removeGenerated(&d)
		}
		if !s.isNamed(spec, s.names.LastGoodSecret) {
			s.keepLastGood(&d, nil)
		}
	}
	s.relabel(spec, &d)
	return d
}

// isNamed reports whether the spec names one of the agent's own Secrets.
func (s *seen) isNamed(spec serving.Desired, name string) bool {
	return spec.Secret == s.local(name)
}

// decide says what is to be done so that the proxy runs as the spec asks for.
func decide(spec serving.Desired, s seen) decision {
	d := decision{errs: map[step]error{}, phase: phaseOn}
	if d.at, d.addressErr = spec.Endpoint(s.service); !errors.Is(d.addressErr, serving.ErrPending) {
		d.addressErr = coded(configv1alpha1.CodeServiceAddressInvalid, d.addressErr)
	}
	s.loadSigner(&d)
	s.evaluation = serving.Evaluate(s.evaluation, s.situation(spec, &d))
	inService := s.chooseCertificate(spec, &d)
	d.evaluation = s.evaluation
	if inService == nil && spec.TLS == nil && d.errs[stepLoad] == nil {
		d.phase = phaseIdle // there is no address yet that a certificate could be made for
	}
	if inService == nil {
		s.relabel(spec, &d)
		return d
	}
	d.add(startProxy{})
	if d.errs[stepLoad] == nil {
		s.keepLastGood(&d, inService)
		switch {
		case spec.TLS == nil || s.evaluation.Certificate == nil || d.errs[stepTidy] != nil ||
			inService.Source == serving.SourceGenerated:
		case inService.Delegated:
			s.keepGenerated(spec, &d)
		default:
			s.keepCA(&d)
			// Only now, with the external certificate in service, may the generated one go.
			s.removeGenerated(&d)
		}
	}
	s.relabel(spec, &d)
	return d
}

// decideWithoutSpec says what is to be done while nothing says what is wanted: a replica goes on, or, when it has just
// started, serves what was served last.
func decideWithoutSpec(s seen) decision {
	d := decision{errs: map[step]error{}, phase: phaseOn}
	inService := s.serving
	if inService == nil {
		inService = s.serveLastGood(&d)
	}
	if inService == nil {
		d.phase = phaseLost
		return d
	}
	s.loadSigner(&d)
	d.add(startProxy{})
	return d
}

// situation is that in which a certificate is to be put into service.
func (s *seen) situation(spec serving.Desired, d *decision) serving.Situation {
	in := serving.Situation{InService: s.met(), Revisions: s.revisions, TLS: spec.Transition, Now: s.now, Leads: s.leads}
	if d.addressErr == nil {
		in.Endpoint = d.at.URL()
	}
	return in
}

// met returns the certificate that clients get, or nil: what is in service and need not leave it, and on a replica that
// has just started what the others serve.
func (s *seen) met() *serving.Certificate {
	switch {
	case s.serving != nil && s.withdrawn != nil:
		return nil
	case s.serving != nil:
		return s.serving
	}
	if kept := s.lastGood(); kept != nil {
		return kept
	}
	return s.stillGenerated()
}

// lastGood returns the last good certificate, of which there is a copy, or nil.
func (s *seen) lastGood() *serving.Certificate {
	kept := s.secrets[s.names.LastGoodSecret]
	if kept.secret == nil {
		return nil
	}
	certificate, err := serving.LastGood(kept.secret)
	if err != nil {
		return nil
	}
	return certificate
}

// stillGenerated returns the generated certificate as it is, or nil.
func (s *seen) stillGenerated() *serving.Certificate {
	generated, ca := s.secrets[s.names.TLSSecret], s.secrets[s.names.CASecret]
	if generated.secret == nil || ca.secret == nil {
		return nil
	}
	return serving.StillGenerated(generated.secret, ca.secret)
}

// chooseCertificate adds the actions that put the right certificate into service, and returns the certificate that
// is in service when they succeed, or nil.
func (s *seen) chooseCertificate(
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
		inService = s.serveLastGood(d)
	}
	if d.addressErr == nil && s.needsFallback(d, inService) {
		inService = s.serveGenerated(spec, d)
	}
	return inService
}

// needsFallback reports whether the generated certificate is to be served where a delegated one must not be: in
// place of one whose permission is gone, and for one that is not permitted while only a generated one or none is
// there to be served. Any other external certificate stays.
func (s *seen) needsFallback(d *decision, inService *serving.Certificate) bool {
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

// serveGenerated adds what puts the generated certificate into service. It returns what is then in service.
func (s *seen) serveGenerated(spec serving.Desired, d *decision) *serving.Certificate {
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
	if still := s.stillGenerated(); inService == nil && still != nil && s.lastGood() == nil &&
		state.faultIs(issuedcert.SANMismatch) {
		// A replica that has just started serves what the others still serve. The leader may be of another version, and
		// find nothing wrong with these names.
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

// serveLastGood adds what a replica does that has just started while the external certificate is refused: it serves
// what the other replicas still serve. That is the last good certificate, else the generated one that it is to
// replace.
func (s *seen) serveLastGood(d *decision) *serving.Certificate {
	kept := s.secrets[s.names.LastGoodSecret]
	d.fail(stepLoad, kept.err)
	if kept.err != nil {
		return nil
	}
	if kept.secret != nil {
		certificate, err := serving.LastGood(kept.secret)
		if err == nil {
			s.serve(d, stepLoad, serve{certificate: certificate, keptIn: s.names.LastGoodSecret})
			return certificate
		}
		d.add(tellUnusableCopy{s.local(s.names.LastGoodSecret), err})
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

// serve adds the action unless the certificate is in service already.
func (s *seen) serve(d *decision, at step, action serve) {
	if at != stepLoad || !sameCertificate(s.serving, action.certificate) {
		action.at = at
		d.add(action)
	}
}

// loadSigner adds what loads the CA that signs client certificates, and makes it where needed.
func (s *seen) loadSigner(d *decision) {
	read := s.secrets[s.names.SignerSecret]
	state := inspected{err: read.err, secret: read.secret}
	if read.err == nil {
		state.state = issuedcert.Inspect(signerPolicy(), read.secret, s.now)
	}
	s.maintain(d, stepSigner, stepRenewSigner, s.names.signer(), state, func(state *issuedcert.State, at step) {
		use, accepted := chooseSigner(state, s.signing, s.now)
		d.add(loadSigner{at: at, state: state, use: use, accepted: accepted})
	})
}

// inspected is one of the agent's own Secrets and what it holds.
type inspected struct {
	secret *corev1.Secret
	state  *issuedcert.State
	err    error // that kept it from being read
}

// faultIs reports whether reason is the most urgent one to change the Secret.
func (i inspected) faultIs(reason issuedcert.Reason) bool {
	if i.state == nil {
		return false
	}
	verdict := i.state.Verdict()
	return verdict != nil && verdict.Reason == reason
}

func (s *seen) inspectCA() inspected {
	read := s.secrets[s.names.CASecret]
	if read.err != nil {
		return inspected{err: read.err}
	}
	return inspected{secret: read.secret, state: issuedcert.Inspect(serving.GeneratedCA(), read.secret, s.now)}
}

// maintain adds what makes an issued Secret good, and then what uses it: use is called with the state to be used,
// and the step in which to use it. What is only old is used at once. Its successor is then written in the step
// renew, whose failure does no harm. It returns the CA of the state in use, or nil when there is none.
func (s *seen) maintain(d *decision, at, renew step, issued issuedSecret, has inspected,
	use func(*issuedcert.State, step),
) *certs.CA {
	if use == nil {
		use = func(*issuedcert.State, step) {}
	}
	if has.err != nil {
		d.fail(at, issued.failed(has.err))
		return nil
	}
	verdict := has.state.Verdict()
	if verdict == nil {
		d.add(remember{at: at, name: issued.name, state: has.state})
		use(has.state, at)
		return has.state.CA
	}
	old := verdict.Only(issuedcert.Expiring)
	if old {
		d.add(remember{at: at, name: issued.name, state: has.state})
		use(has.state, at)
		at = renew
	}
	var next *issuedcert.State
	err := errNotLeader
	if s.leads {
		next, err = has.state.Repair(verdict, s.known[issued.name])
	}
	switch {
	case err == nil:
	case old:
		return has.state.CA
	default:
		d.fail(at, issued.failed(err))
		return nil
	}
	d.add(writeIssued{
		at: at, issued: issued, next: next, read: has.secret, verdict: *verdict,
		restored: verdict.Part == issuedcert.PartCA && next.SameCA(s.known[issued.name]),
	})
	use(next, at)
	return next.CA
}

// relabel adds what gives the agent's own Secrets the labels that are configured, and takes them from a Deployment that
// owns them. A Secret that the other actions write
// or remove is left to them, and one that an admin brought to its owner.
func (s *seen) relabel(spec serving.Desired, d *decision) {
	if !s.leads {
		return
	}
	touched := map[string]bool{}
	for _, a := range d.actions {
		switch a := a.(type) {
		case writeIssued:
			touched[a.issued.name] = true
		case writeCopy:
			touched[a.name.Name] = true
		case removeSecret:
			touched[a.secret.Name] = true
		}
	}
	var wrong []*corev1.Secret
	for _, name := range slices.Sorted(maps.Keys(s.secrets)) {
		secret := s.secrets[name].secret
		if secret != nil && !touched[name] && s.ours(spec, secret) && !issuedcert.HasMetadata(secret, s.labels) &&
			!issuedcert.Foreign(secret, s.labels) {
			wrong = append(wrong, secret)
		}
	}
	if len(wrong) > 0 {
		d.add(relabel{wrong})
	}
}

// ours reports whether a Secret with one of our names holds what we put there.
func (s *seen) ours(spec serving.Desired, secret *corev1.Secret) bool {
	if s.isNamed(spec, secret.Name) {
		return false
	}
	switch secret.Name {
	case s.names.TLSSecret:
		return s.stillGenerated() != nil
	case s.names.LastGoodSecret:
		return serving.IsLastGood(secret)
	}
	return true
}

// keepCA adds what lets the generated CA survive a time in which another certificate is served. It makes none.
func (s *seen) keepCA(d *decision) {
	issued, has := s.names.generatedCA(), s.inspectCA()
	if has.err != nil {
		d.fail(stepTidy, has.err)
		return
	}
	verdict := has.state.Verdict()
	if verdict == nil {
		d.add(remember{at: stepTidy, name: issued.name, state: has.state})
		return
	}
	if restored := has.state.Restore(verdict, s.known[issued.name]); restored != nil && s.leads {
		d.add(writeIssued{at: stepTidy, issued: issued, next: restored, read: has.secret, verdict: *verdict, restored: true})
	}
}

// keepGenerated keeps a generated certificate beside a delegated one. When the permission is withdrawn, every replica has
// to stop serving the delegated one within seconds, and cannot wait for a leader to make another first.
func (s *seen) keepGenerated(spec serving.Desired, d *decision) {
	ca := s.inspectCA()
	if !s.leads && ca.err == nil && ca.state.Verdict() != nil || d.addressErr != nil {
		s.keepCA(d)
		return // what the leader makes wakes us
	}
	signing := s.maintain(d, stepTidy, stepTidy, s.names.generatedCA(), ca, nil)
	read := s.secrets[s.names.TLSSecret]
	if signing == nil || read.err != nil {
		return // it may be there all the same, and nothing else has changed
	}
	names := serving.GeneratedServing(serving.GeneratedNames(d.at.Host, spec.ImpersonationProxySpec, s.service))
	leaf := inspected{secret: read.secret, state: issuedcert.InspectUnder(signing, names, read.secret, s.now)}
	if s.leads || leaf.state.Verdict() == nil {
		s.maintain(d, stepTidy, stepTidy, s.names.generatedServing(), leaf, nil)
	}
}

// keepLastGood lets the leader keep a copy of the external certificate in service, for replicas that start while
// its Secret is bad. When something else is served, or nothing, the copy is removed.
func (s *seen) keepLastGood(d *decision, inService *serving.Certificate) {
	name := s.local(s.names.LastGoodSecret)
	if !s.leads || inService != nil && inService.Secret == name {
		return // also when an admin named that very Secret
	}
	failed := func(err error) { d.fail(stepTidy, coded(configv1alpha1.CodeLastGoodNotKept, err)) }
	kept := s.secrets[s.names.LastGoodSecret]
	switch {
	case kept.err != nil:
		failed(kept.err)
		return
	case !serving.KeepsLastGood(inService):
		if kept.secret != nil && serving.IsLastGood(kept.secret) {
			d.add(removeSecret{kept.secret})
		}
		return
	}
	data, err := serving.LastGoodData(inService)
	if err != nil {
		failed(err)
		return
	}
	if !serving.SameData(kept.secret, data) {
		d.add(writeCopy{name: name, data: data, read: kept.secret, sha256: inService.SHA256()})
	}
}

// removeGenerated lets the leader remove the generated serving certificate, which nothing serves any more. Its CA
// stays: it is in kubeconfigs, and comes back into use when the external certificate goes. A Secret of that name
// with other content stays as well.
func (s *seen) removeGenerated(d *decision) {
	external := s.evaluation.Certificate
	if !s.leads || external != nil && external.Secret == s.local(s.names.TLSSecret) {
		return // also when an admin named the generated Secret as the external one
	}
	generated, ca := s.secrets[s.names.TLSSecret], s.secrets[s.names.CASecret]
	if err := errors.Join(generated.err, ca.err); err != nil {
		d.fail(stepTidy, fmt.Errorf("removing the generated serving certificate: %w", err))
		return
	}
	if s.stillGenerated() != nil {
		d.add(removeSecret{generated.secret})
	}
}
