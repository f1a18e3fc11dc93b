package iptls

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// rotateStep is one change of a rotation, or, when it is confirming, the wait for the last one.
type rotateStep struct {
	*RotateOptions
	from       *rotation
	to         phase
	aborting   bool
	confirming bool

	next *rotation // the record that is written
}

func (s *rotateStep) command() string { return "rotate" }

// step does one step of the way there.
func (o *RotateOptions) step(ctx context.Context, r *rotation, number int) (*rotation, *Result, error) {
	o.progress.Info("Step %d: %s", number, stepNames[number])
	return o.change(ctx, &rotateStep{RotateOptions: o, from: r, to: r.phaseAfter(number)})
}

func (o *RotateOptions) change(ctx context.Context, s *rotateStep) (*rotation, *Result, error) {
	result, err := o.do(ctx, s)
	return s.next, result, err
}

// confirm waits until the last step is in effect, as it may have been interrupted there.
func (o *RotateOptions) confirm(ctx context.Context, r *rotation) error {
	defer func(wait bool) { o.Wait = wait }(o.Wait)
	o.Wait = true // what comes next relies on it
	_, _, err := o.change(ctx, &rotateStep{RotateOptions: o, from: r, to: r.Phase, confirming: true})
	return err
}

// errMeanwhile means that somebody else has gone on with the rotation.
var errMeanwhile = errors.New("somebody else has gone on with the rotation meanwhile")

// look judges the configuration that the step leads to.
func (s *rotateStep) look(ctx context.Context, _ bool) (*state, *plan, error) {
	issuer, err := readIssuer(ctx, s.cluster, s.CredentialIssuer)
	if err != nil {
		return nil, nil, err
	}
	if err := s.stillThere(issuer); err != nil {
		return nil, nil, err
	}
	to := targetOf(issuer.Spec.ImpersonationProxy)
	now := to.TLS
	to.TLS = s.from.block(s.to)
	if s.confirming && to.TLS != nil && now != nil && now.Verification == "" {
		to.TLS.Verification = "" // not every CredentialIssuer has the field
	}
	st, p, err := s.lookAt(ctx, s.request, issuer, to)
	if err != nil {
		return nil, nil, err
	}
	s.next = s.from.at(s.to, st.now)
	s.next.Aborting = s.aborting
	if s.confirming {
		p.report.Findings = softened(p.report.Findings, nil)
		return st, p, nil
	}
	if err := s.judge(ctx, st, p); err != nil {
		return nil, nil, err
	}
	text, fits, err := encodeRecord(s.next)
	if err != nil {
		return nil, nil, err
	}
	if !fits {
		return nil, nil, fmt.Errorf("keeping the record of the rotation: the CA bundles are too large for an annotation (more than %d KiB in all)", maxRecord>>10)
	}
	p.annotations = map[string]any{rotationAnnotation: text}
	s.say(st, p)
	return st, p, nil
}

// stillThere refuses when the rotation is no longer where it was when the step was chosen.
func (s *rotateStep) stillThere(issuer *configv1alpha1.CredentialIssuer) error {
	again := func(err error) error { return ui.WithHint(err, "run the command again to see where it is") }
	r, err := readRotation(issuer)
	if err != nil {
		return again(err)
	}
	if !s.from.active() {
		if r.active() {
			return again(errMeanwhile)
		}
		if !reflect.DeepEqual(issuer.Spec.ImpersonationProxy.TLS, s.from.From) {
			return again(fmt.Errorf("somebody else has changed CredentialIssuer %q meanwhile", issuer.Name))
		}
		return nil
	}
	if r.phase() != s.from.Phase || !r.Started.Equal(s.from.Started) || r.Aborting != s.from.Aborting {
		return again(errMeanwhile)
	}
	return s.untouched(r, issuer)
}

// judge adds to what is known about the step itself what will be true of the steps to come, so that nothing begins that
// cannot be finished.
func (s *rotateStep) judge(ctx context.Context, st *state, p *plan) error {
	if keeps := s.keepsCertificate(st); keeps && p.wanted.TLS != nil {
		// What is wrong with a certificate that stays in service is no reason to leave its CA as it is.
		before := inputOf(st, p)
		before.Bundle, before.Previous = previous(st.issuer).Bundle, certs.Previous{}
		p.report.Findings = softened(p.report.Findings, certs.Check(before).Errors())
	}
	if s.to == phaseAborted || s.aborting || s.from.To == nil {
		s.warnOldClients(p, nil)
		return nil
	}
	secret, err := permittedSecret(ctx, s.cluster, st.issuer, s.request.namespace, s.from.To.SecretName)
	if err != nil {
		return err
	}
	if s.to == phaseAdvertised {
		s.rehearse(st, p, secret, phaseSwitched)
	}
	if s.to != phaseDone {
		s.rehearse(st, p, secret, phaseDone)
	}
	if secret != nil {
		s.warnOldClients(p, secret.Data[corev1.TLSCertKey])
	}
	return nil
}

// keepsCertificate says whether the Secret in service stays the same.
func (s *rotateStep) keepsCertificate(st *state) bool {
	return st.secret != nil && (s.from.Phase == phaseNone && s.to == phaseAdvertised || s.from.Phase == phaseAdvertised && s.to == phaseAborted)
}

// rehearse adds what will refuse the new certificate in a later phase.
func (s *rotateStep) rehearse(st *state, p *plan, secret *corev1.Secret, in phase) {
	later := *st
	later.secret = secret
	wanted := p.wanted
	wanted.TLS = s.from.block(in)
	what := "with both CAs"
	if in == phaseDone {
		what = "with its own CA"
	}
	q := &plan{req: s.request, wanted: wanted}
	q.req.secret = wanted.TLS.SecretName
	var undecodable error
	q.bundle, undecodable = advertised(*wanted.TLS, secret)
	var report certs.Report
	if secret == nil || undecodable != nil {
		report = judge(q.req, &later, q, undecodable)
	} else {
		input := inputOf(&later, q)
		input.Previous = certs.Previous{Advertised: true, Bundle: s.from.union()}
		report = certs.Check(input)
	}
	for _, f := range report.Errors() {
		if !slices.ContainsFunc(p.report.Findings, func(g certs.Finding) bool { return g.Code == f.Code && g.Refuses() }) {
			f.Message = fmt.Sprintf("Secret %q, %s: %s", q.req.secret, what, f.Message)
			p.report.Findings = append(p.report.Findings, f)
		}
	}
	if report.OK() {
		s.progress.Done("Checked the new certificate in Secret %q %s", q.req.secret, what)
	}
}

// warnOldClients says who stops working in step 3, before it and in it. chain is nil where the agent makes the certificate.
func (s *rotateStep) warnOldClients(p *plan, chain []byte) {
	if s.to == phaseAborted || s.aborting || s.from.accepts([]byte(s.from.OldCA), chain, s.Now()) {
		return
	}
	who := describePEM([]byte(s.from.OldCA))
	switch {
	case s.to == phaseAdvertised:
		s.progress.Info("In step 3, kubeconfigs that trust only %s will stop working: have them made anew before", who)
	case s.from.Phase == phaseAdvertised:
		f := certs.NewFinding(certs.OldClientsBreak, fmt.Sprintf("kubeconfigs that trust only %s stop working now, as a rotation means it", who))
		f.Severity, f.Hint = certs.SeverityWarning, "those that were made since step 1 go on working"
		p.report.Findings = slices.DeleteFunc(p.report.Findings, func(g certs.Finding) bool { return g.Code == certs.OldClientsBreak && !g.Refuses() })
		p.report.Findings = append(p.report.Findings, f)
	}
}

// softened makes warnings of errors: of all, or of those whose code is among known.
func softened(findings, known []certs.Finding) []certs.Finding {
	soft := slices.Clone(findings)
	for i := range soft {
		same := func(f certs.Finding) bool { return f.Code == soft[i].Code }
		if soft[i].Severity == certs.SeverityError && (known == nil || slices.ContainsFunc(known, same)) {
			soft[i].Severity = certs.SeverityWarning
		}
	}
	return soft
}

// apply writes configuration and record together.
func (s *rotateStep) apply(ctx context.Context, st *state, p *plan) (*configv1alpha1.CredentialIssuer, error) {
	applied, err := s.merge(ctx, st, p)
	if err != nil {
		return nil, err
	}
	if spec := applied.Spec.ImpersonationProxy; spec != nil && spec.TLS != nil && p.wanted.TLS != nil && spec.TLS.Verification == "" {
		p.wanted.TLS = p.wanted.TLS.DeepCopy()
		p.wanted.TLS.Verification = "" // not every CredentialIssuer has the field
	}
	return applied, nil
}

// begin returns the rotation that is under way or done, or a new one. begun is true for a new one.
func (o *RotateOptions) begin(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation) (made *rotation, begun bool, err error) {
	spec := issuer.Spec.ImpersonationProxy
	switch {
	case r.active():
		return r, false, nil
	case o.Secret == "" && !o.ToGenerated:
		if r.phase() == phaseDone {
			return r, false, nil
		}
		return nil, false, ui.WithHint(ui.Usage(errors.New("--secret is missing, and no rotation is under way")), "name the Secret with the new certificate: --secret proxy-tls-new")
	case r.phase() == phaseDone && len(r.edited(spec)) == 0 && o.leadsTo(r):
		return r, false, nil
	}
	r = &rotation{Version: rotationVersion, Started: o.Now().UTC().Truncate(time.Second), From: spec.TLS.DeepCopy()}
	if err := o.old(ctx, issuer, r); err != nil {
		return nil, false, err
	}
	if o.ToGenerated {
		err = o.towardsGenerated(ctx, issuer, r)
	} else {
		err = o.towardsSecret(ctx, issuer, r)
	}
	return r, true, err
}

// leadsTo says whether a rotation leads to where the flags want to go.
func (o *RotateOptions) leadsTo(r *rotation) bool {
	if o.ToGenerated {
		return r.To == nil
	}
	return r.To != nil && r.To.SecretName == o.request.secret &&
		(!o.request.bundleGiven || sameBase64(r.To.CertificateAuthorityData, o.request.bundle))
}

// old fills in what is in service now.
func (o *RotateOptions) old(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation) error {
	now := previous(issuer)
	if !now.Advertised {
		return ui.WithHint(fmt.Errorf("CredentialIssuer %q does not advertise the impersonation proxy, so that there is nothing to rotate", issuer.Name),
			`see why: kubectl get credentialissuer %s -o yaml; a first certificate is put in front with "pinniped ip-tls set"`, issuer.Name)
	}
	r.OldSecret = appName(issuer) + "-impersonation-proxy-tls-serving-certificate"
	if r.From != nil {
		r.OldSecret = r.From.SecretName
	}
	secret, err := permittedSecret(ctx, o.cluster, issuer, o.request.namespace, r.OldSecret)
	if err != nil {
		return err
	}
	if secret == nil {
		return o.refuse("the Secret in service must be there until step 3", "%s: there is no Secret %q in namespace %q, which holds the old certificate",
			certs.SecretNotFound, r.OldSecret, o.request.namespace)
	}
	if r.From != nil {
		if bundle, err := advertised(*r.From, secret); err != nil || !sameTrust(bundle, now.Bundle) {
			return o.refuse(`wait until the agent has taken it over, or mend what its status says`, "the agent does not advertise the CA bundle that is configured (yet)")
		}
	}
	trust, err := trustOf(now.Bundle, secret.Data[corev1.TLSCertKey], o.Now())
	if err != nil {
		return o.refuse("without it, there is nothing that could be advertised beside the new CA", "finding the CA of the old certificate in Secret %q: %w", r.OldSecret, err)
	}
	r.OldCA = string(trust)
	return nil
}

func sameTrust(a, b []byte) bool {
	return len(a) == 0 && len(b) == 0 || len(a) > 0 && len(b) > 0 && certs.SameBundle(a, b)
}

func (o *RotateOptions) refuse(hint, format string, args ...any) error {
	return ui.WithExitCode(ui.WithHint(fmt.Errorf(format, args...), "%s%s", nothingChanged, hint), ui.ExitRefused)
}

// towardsSecret fills in where a rotation to a Secret leads.
func (o *RotateOptions) towardsSecret(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation) error {
	name := o.request.secret
	if name == r.OldSecret {
		return ui.WithHint(ui.Usage(fmt.Errorf("Secret %q is in service now, so there is nothing to rotate to", name)),
			"put the new certificate into a Secret of its own, so that both exist during the rotation")
	}
	secret, err := permittedSecret(ctx, o.cluster, issuer, o.request.namespace, name)
	if err != nil {
		return err
	}
	if secret == nil {
		missing := o.request.secretName()
		return o.refuse("make the Secret first", "%s: there is no Secret %q in namespace %q", certs.SecretNotFound, missing.Name, missing.Namespace)
	}
	r.To = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: name, Verification: configv1alpha1.VerificationEnforce}
	if slices.Contains(o.request.allow, certs.NameNotCovered) {
		r.To.Verification = configv1alpha1.VerificationWarn // else the agent would refuse what the administrator allows
	}
	inSecret := secret.Data[caBundleKey]
	bundle := inSecret
	switch {
	case o.request.bundleGiven:
		bundle = o.request.bundle
		r.To.CertificateAuthorityData = base64.StdEncoding.EncodeToString(bundle)
	case o.SystemRoots && len(inSecret) > 0:
		return ui.WithHint(ui.Usage(fmt.Errorf("--system-roots: Secret %q has ca.crt, which the agent would advertise", name)), "leave out --system-roots, or remove ca.crt from the Secret")
	case !o.SystemRoots && len(inSecret) == 0:
		return ui.WithHint(ui.Usage(fmt.Errorf("the CA of the new certificate is missing: Secret %q has no ca.crt", name)),
			"give it with --ca-bundle FILE; for a certificate of a public CA say --system-roots")
	}
	trust, err := trustOf(bundle, secret.Data[corev1.TLSCertKey], o.Now())
	if err != nil {
		return o.refuse("give it with --ca-bundle FILE", "finding the CA of the new certificate in Secret %q: %w", name, err)
	}
	r.NewCA = string(trust)
	return nil
}

// towardsGenerated fills in where a rotation to the agent's own certificate leads.
func (o *RotateOptions) towardsGenerated(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation) error {
	if r.From == nil {
		return ui.Usage(errors.New("the agent's generated certificate is in service now, so there is nothing to rotate to"))
	}
	ca, err := o.generatedCA(ctx, o.request.namespace, &state{issuer: issuer, now: o.Now()})
	if err != nil {
		return err
	}
	if ca == nil {
		return o.refuse(`"pinniped ip-tls unset" goes back at once, with an outage for kubeconfigs made so far`,
			"the CA of the agent is not known, so that it cannot be advertised beforehand")
	}
	r.NewCA = string(ca)
	return nil
}

// abort goes back to where the rotation began.
func (o *RotateOptions) abort(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation, result *RotateResult) error {
	switch r.phase() {
	case phaseNone:
		return ui.WithHint(errors.New("there is no rotation to abort"), `take back another change with "pinniped ip-tls undo"`)
	case phaseAborted:
		result.Action = actionUnchanged
		o.progress.Done("The rotation to %s is aborted already", r.destination())
		return nil
	case phaseDone:
		return o.refuse(fmt.Sprintf("rotate in the other direction: pinniped ip-tls rotate --secret %s", r.OldSecret),
			"the rotation to %s is done: there may be kubeconfigs with the new CA alone, which going back would break", r.destination())
	case phaseAdvertised, phaseSwitched:
	}
	if err := o.untouched(r, issuer); err != nil {
		return err
	}
	for r.active() {
		s := &rotateStep{RotateOptions: o, from: r, to: phaseAborted}
		what := "Going back to the old CA"
		switch {
		case r.Phase == phaseSwitched && r.From != nil:
			s.to, s.aborting = phaseAdvertised, true
			what = "Going back to the old certificate, with both CAs"
		case r.Phase == phaseSwitched:
			what = "Going back to the agent's own certificate, which it makes anew of its old CA"
		}
		o.progress.Info("%s", what)
		next, one, err := o.change(ctx, s)
		if one != nil {
			result.Changes = append(result.Changes, one)
		}
		if err != nil {
			result.fail(err, one)
			return err
		}
		if o.DryRun == dryRunNone {
			result.show(next)
		}
		result.Action = actionAborted
		if o.DryRun != dryRunNone {
			return nil
		}
		r = next
	}
	return nil
}

// forget drops the record, whatever is in it.
func (o *RotateOptions) forget(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, result *RotateResult) error {
	if issuer.Annotations[rotationAnnotation] == "" {
		result.Action = actionUnchanged
		o.progress.Done("There is no rotation to give up")
		return nil
	}
	for attempt := 1; ; attempt++ {
		patch, err := mergePatch(issuer, targetOf(issuer.Spec.ImpersonationProxy), map[string]any{rotationAnnotation: nil})
		if err != nil {
			return err
		}
		if o.DryRun != dryRunClient {
			_, err = o.cluster.MergeCredentialIssuer(ctx, issuer.Name, patch, discovery.ApplyOptions{FieldManager: fieldManager, DryRun: o.DryRun == dryRunServer})
		}
		switch {
		case err == nil:
			result.Action = actionForgotten
			return nil
		case !errors.Is(err, discovery.ErrConflict) || attempt == attempts:
			return withCodes(fmt.Errorf("giving up the rotation: %w", err))
		}
		if issuer, err = readIssuer(ctx, o.cluster, issuer.Name); err != nil {
			return err
		}
	}
}

// guardRotation refuses changes by other commands while a rotation is under way.
func guardRotation(command string, issuer *configv1alpha1.CredentialIssuer) error {
	if command == "rotate" {
		return nil
	}
	r, err := readRotation(issuer)
	if err == nil && !r.active() {
		return nil
	}
	const ways = `finish it ("pinniped ip-tls rotate --status" says where it is), take it back with "rotate --abort", or give it up with "rotate --forget"`
	if err == nil {
		err = fmt.Errorf("a rotation to %s is under way: \"ip-tls %s\" would spoil it", r.destination(), strings.TrimSpace(command))
	}
	return ui.WithExitCode(ui.WithHint(err, "%s%s", nothingChanged, ways), ui.ExitRefused)
}
