package rotate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// lookAhead checks the steps that come after this one, and adds what will refuse them. So a rotation that cannot be
// finished is not begun.
func (s *step) lookAhead(ctx context.Context, st *plan.Snapshot, p *plan.Plan) error {
	if keeps := s.keepsCertificate(st); keeps && p.Wanted.TLS != nil {
		// A fault of the certificate that stays in service must not keep its CA from being changed.
		before := p.Input(st)
		before.Bundle, before.Previous = plan.Previous(st.Issuer).Bundle, certs.Previous{}
		p.Report.Findings = downgraded(p.Report.Findings, certs.Check(before).Errors())
	}
	if s.to == rotation.PhaseAborted || s.aborting || s.from.To == nil {
		s.warnOldClients(p, nil)
		return nil
	}
	secret, err := s.options.Session.PermittedSecret(ctx, st.Issuer, s.options.request.Namespace, s.from.To.SecretName)
	if err != nil {
		return err
	}
	if s.to == rotation.PhaseAdvertised {
		s.preflight(st, p, secret, rotation.PhaseSwitched)
	}
	if s.to != rotation.PhaseDone {
		s.preflight(st, p, secret, rotation.PhaseDone)
	}
	if secret != nil {
		s.warnOldClients(p, secret.Data[corev1.TLSCertKey])
	}
	return nil
}

// keepsCertificate says whether the Secret in service stays the same.
func (s *step) keepsCertificate(st *plan.Snapshot) bool {
	return st.Secret != nil && (s.from.Phase == rotation.PhaseNone && s.to == rotation.PhaseAdvertised ||
		s.from.Phase == rotation.PhaseAdvertised && s.to == rotation.PhaseAborted)
}

// preflight evaluates the new certificate as a later phase will have it, and adds what refuses it then.
func (s *step) preflight(st *plan.Snapshot, p *plan.Plan, secret *corev1.Secret, in rotation.Phase) {
	later := *st
	later.Secret, later.Permission = secret, nil // it was read, so it is permitted
	later.Clients = &certs.Previous{Advertised: true, Bundle: s.from.Union()}
	wanted := p.Wanted
	wanted.TLS = s.from.Block(in)
	what := "with both CAs"
	if in == rotation.PhaseDone {
		what = "with its own CA"
	}
	q := plan.EvaluateTarget(s.options.request, &later, wanted)
	for _, f := range q.Report.Errors() {
		if !slices.ContainsFunc(p.Report.Findings,
			func(g certs.Finding) bool { return g.Code == f.Code && g.Refuses() }) {
			f.Message = fmt.Sprintf("Secret %q, %s: %s", q.Request.Secret, what, f.Message)
			p.Report.Findings = append(p.Report.Findings, f)
		}
	}
	if q.Report.OK() {
		s.options.Session.Progress.Done("Checked the new certificate in Secret %q %s", q.Request.Secret, what)
	}
}

// warnOldClients says which kubeconfigs stop working in step 3: in step 1 it informs, in step 3 it warns. chain is
// nil for a generated certificate.
func (s *step) warnOldClients(p *plan.Plan, chain []byte) {
	if s.to == rotation.PhaseAborted || s.aborting ||
		s.from.Accepts([]byte(s.from.OldCA), chain, s.options.Session.Now()) {
		return
	}
	who := plan.DescribePEM([]byte(s.from.OldCA))
	switch {
	case s.to == rotation.PhaseAdvertised:
		s.options.Session.Progress.Info("In step 3, kubeconfigs that trust only %s will stop working: have them "+
			"made anew before", who)
	case s.from.Phase == rotation.PhaseAdvertised:
		f := certs.NewFinding(certs.OldClientsBreak, fmt.Sprintf("kubeconfigs that trust only %s stop working now, "+
			"as a rotation means it", who))
		f.Severity, f.Hint = certs.SeverityWarning, "those that were made since step 1 go on working"
		p.Report.Findings = slices.DeleteFunc(p.Report.Findings,
			func(g certs.Finding) bool { return g.Code == certs.OldClientsBreak && !g.Refuses() })
		p.Report.Findings = append(p.Report.Findings, f)
	}
}

// downgraded returns the findings with errors turned into warnings. If known is not nil, only errors with a code
// among known are turned.
func downgraded(findings, known []certs.Finding) []certs.Finding {
	soft := slices.Clone(findings)
	for i := range soft {
		same := func(f certs.Finding) bool { return f.Code == soft[i].Code }
		if soft[i].Severity == certs.SeverityError && (known == nil || slices.ContainsFunc(known, same)) {
			soft[i].Severity = certs.SeverityWarning
		}
	}
	return soft
}
