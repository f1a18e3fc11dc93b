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

// loadSigner adds the actions that load the CA of client certificates, and issue it if needed.
func (s *observed) loadSigner(d *decision) {
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

// inspected is a Secret of the agent and its state.
type inspected struct {
	secret *corev1.Secret
	state  *issuedcert.State
	err    error // why it could not be read
}

// faultIs reports whether reason is the most urgent reason to change the Secret.
func (i inspected) faultIs(reason issuedcert.Reason) bool {
	if i.state == nil {
		return false
	}
	verdict := i.state.Verdict()
	return verdict != nil && verdict.Reason == reason
}

func (s *observed) inspectCA() inspected {
	read := s.secrets[s.names.CASecret]
	if read.err != nil {
		return inspected{err: read.err}
	}
	return inspected{secret: read.secret, state: issuedcert.Inspect(serving.GeneratedCA(), read.secret, s.now)}
}

// maintain adds the actions that repair an issued Secret, and calls use with the state to be used and the step in which
// to use it. A state that is only due for renewal is used at once; its successor is written in the step renew, whose
// failure is harmless. It returns the CA of the state in use, or nil if there is none.
func (s *observed) maintain(d *decision, at, renew step, issued issuedSecret, has inspected,
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
		d.add(keepState{at: at, name: issued.name, state: has.state})
		use(has.state, at)
		return has.state.CA
	}
	old := verdict.Only(issuedcert.Expiring)
	if old {
		d.add(keepState{at: at, name: issued.name, state: has.state})
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

// relabel adds the action that corrects labels and owners of the agent's Secrets. It skips Secrets that other actions
// write or delete, and those of administrators.
func (s *observed) relabel(spec serving.Desired, d *decision) {
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

// ours reports whether a Secret with one of the agent's names has the agent's content.
func (s *observed) ours(spec serving.Desired, secret *corev1.Secret) bool {
	if s.isNamed(spec, secret.Name) {
		return false
	}
	switch secret.Name {
	case s.names.TLSSecret:
		return s.stillGenerated() != nil
	case s.names.LastKnownGoodSecret:
		return serving.IsLastKnownGood(secret)
	}
	return true
}

// keepCA adds the actions that preserve the generated CA while another certificate is served. It makes no new CA.
func (s *observed) keepCA(d *decision) {
	issued, has := s.names.generatedCA(), s.inspectCA()
	if has.err != nil {
		d.fail(stepTidy, has.err)
		return
	}
	verdict := has.state.Verdict()
	if verdict == nil {
		d.add(keepState{at: stepTidy, name: issued.name, state: has.state})
		return
	}
	if restored := has.state.Restore(verdict, s.known[issued.name]); restored != nil && s.leads {
		d.add(writeIssued{at: stepTidy, issued: issued, next: restored, read: has.secret, verdict: *verdict, restored: true})
	}
}

// keepGenerated maintains a generated certificate next to a delegated one. If the permission is withdrawn, all replicas
// must switch within seconds and cannot wait until the leader has issued one.
func (s *observed) keepGenerated(spec serving.Desired, d *decision) {
	ca := s.inspectCA()
	if !s.leads && ca.err == nil && ca.state.Verdict() != nil || d.addressErr != nil {
		s.keepCA(d)
		return // the watch triggers a reconcile
	}
	signing := s.maintain(d, stepTidy, stepTidy, s.names.generatedCA(), ca, nil)
	read := s.secrets[s.names.TLSSecret]
	if signing == nil || read.err != nil {
		return // it may exist anyway, and nothing else has changed
	}
	names := serving.GeneratedServing(serving.GeneratedNames(d.at.Host, spec.ImpersonationProxySpec, s.service))
	leaf := inspected{secret: read.secret, state: issuedcert.InspectUnder(signing, names, read.secret, s.now)}
	if s.leads || leaf.state.Verdict() == nil {
		s.maintain(d, stepTidy, stepTidy, s.names.generatedServing(), leaf, nil)
	}
}

// keepLastKnownGood makes the leader back up the external certificate in service, for replicas that start while its Secret
// is invalid. If anything else or nothing is in service, the backup is deleted.
func (s *observed) keepLastKnownGood(d *decision, inService *serving.Certificate) {
	name := s.local(s.names.LastKnownGoodSecret)
	if !s.leads || inService != nil && inService.Secret == name {
		return // an administrator may have named this Secret as the source
	}
	failed := func(err error) { d.fail(stepTidy, coded(configv1alpha1.CodeLastKnownGoodNotKept, err)) }
	kept := s.secrets[s.names.LastKnownGoodSecret]
	switch {
	case kept.err != nil:
		failed(kept.err)
		return
	case !serving.KeepsLastKnownGood(inService):
		if kept.secret != nil && serving.IsLastKnownGood(kept.secret) {
			d.add(removeSecret{kept.secret})
		}
		return
	}
	data, err := serving.LastKnownGoodData(inService)
	if err != nil {
		failed(err)
		return
	}
	if !serving.SameData(kept.secret, data) {
		d.add(writeCopy{name: name, data: data, read: kept.secret, sha256: inService.SHA256()})
	}
}

// removeGenerated makes the leader delete the generated serving certificate, which is not served any more. Its CA
// stays, because kubeconfigs have it and it may be used again. A Secret of that name with other content also stays.
func (s *observed) removeGenerated(d *decision) {
	external := s.evaluation.Certificate
	if !s.leads || external != nil && external.Secret == s.local(s.names.TLSSecret) {
		return // an administrator may have named this Secret as the source
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
