package rotate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// lookAhead checks the steps that come after this one, and adds what will refuse them. So a rotation that cannot be
// finished is not begun.
func (s *step) lookAhead(ctx context.Context, st *plan.Snapshot, p *plan.Plan) error {
	if keeps := s.keepsCertificate(st); keeps && p.Wanted.TLS != nil {
		// A fault of the certificate that stays in service must not keep its CA from being changed.
		before := p.Input(st)
		before.Bundle, _ = plan.Advertised(st.Issuer)
		p.Report.Findings = downgraded(p.Report.Findings, certs.Check(before).Errors())
	}
	if s.to == rotation.PhaseAborted || s.aborting {
		return nil
	}
	later := *st
	later.Permission, later.Secret, later.GeneratedCA = nil, nil, []byte(s.from.NewCA)
	if s.from.To != nil {
		secret, err := s.options.Session.PermittedSecret(ctx, st.Issuer, s.options.request.Namespace, s.from.To.SecretName)
		if err != nil {
			return err
		}
		later.Secret = secret
		if s.to == rotation.PhaseAdvertised {
			s.preflight(later, p, rotation.PhaseSwitched)
		}
		if s.to != rotation.PhaseDone {
			s.preflight(later, p, rotation.PhaseDone)
		}
	}
	s.warnOldClients(st, &later, p)
	return nil
}

// keepsCertificate says whether the Secret in service stays the same.
func (s *step) keepsCertificate(st *plan.Snapshot) bool {
	return st.Secret != nil && (s.from.Phase == rotation.PhaseNone && s.to == rotation.PhaseAdvertised ||
		s.from.Phase == rotation.PhaseAdvertised && s.to == rotation.PhaseAborted)
}

// preflight evaluates the new certificate as a later phase will have it, for clients that have both CAs then, and adds
// what refuses it then.
func (s *step) preflight(later plan.Snapshot, p *plan.Plan, in rotation.Phase) {
	told := serving.History{}.With(bothCAs(s.from, &later)) // which then have clients
	later.History = &told
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

// warnOldClients says which kubeconfigs stop working in step 3: in step 1 it informs, in step 3 it warns. later is the
// cluster as it is in step 3.
func (s *step) warnOldClients(st, later *plan.Snapshot, p *plan.Plan) {
	if s.to != rotation.PhaseAdvertised && s.from.Phase != rotation.PhaseAdvertised {
		return
	}
	lost := s.options.lost(st, later, s.from)
	if len(lost.Broken) == 0 {
		return
	}
	who := strings.Join(lost.Sentences(), "; ")
	if s.to == rotation.PhaseAdvertised {
		s.options.Session.Progress.Info("In step 3, these kubeconfigs will stop working, so have them made anew before: %s",
			who)
		return
	}
	f := certs.NewFinding(certs.OldClientsBreak, "kubeconfigs stop working now, as a rotation means it: "+who)
	f.Severity, f.Hint = certs.SeverityWarning, "those that were made since step 1 go on working"
	p.Report.Findings = append(p.Report.Findings, f)
}

// lost says who works now and will not with the new certificate, whatever an administrator has shown. later is the
// cluster as it is in step 3.
func (o *Options) lost(st, later *plan.Snapshot, r *rotation.Record) serving.Judgement {
	wanted := plan.TargetOf(st.Issuer.Spec.ImpersonationProxy)
	wanted.TLS = r.Block(r.PhaseAfter(rotation.StepSwitch))
	q := plan.EvaluateTarget(o.request, later, wanted.In(st.Issuer.Spec.ImpersonationProxy))
	return serving.Judge(serving.Effect(toldBefore(st, r), serving.Evidence{}, st.InService, q.Next(later), st.Now))
}

// bothCAs is what clients are told between steps 1 and 3.
func bothCAs(r *rotation.Record, st *plan.Snapshot) serving.Revision {
	state := serving.Revision{Bundle: r.Union(), Since: st.Now, Opened: st.Now}
	if st.History != nil && st.History.Current() != nil {
		state.Names = st.History.Current().Names
	}
	if info := plan.ProxyInfo(st.Issuer); info != nil {
		state.Endpoint = info.Endpoint
	}
	return state
}

// toldBefore is what clients were told until now. What they were told before step 1 is in the record as well, for an
// agent without a memory.
func toldBefore(st *plan.Snapshot, r *rotation.Record) serving.History {
	history := serving.History{}
	if st.History != nil {
		history = *st.History
	}
	info := plan.ProxyInfo(st.Issuer)
	if info == nil || r.Advertised.IsZero() {
		return history
	}
	old := serving.Revision{Endpoint: info.Endpoint, Bundle: []byte(r.OldCA), Until: r.Advertised}
	old.Names = []string{old.Host()}
	return history.With(old)
}

// downgraded returns the findings with those errors turned into warnings that have a code among known.
func downgraded(findings, known []certs.Finding) []certs.Finding {
	soft := slices.Clone(findings)
	for i := range soft {
		same := func(f certs.Finding) bool { return f.Code == soft[i].Code }
		if soft[i].Severity == certs.SeverityError && slices.ContainsFunc(known, same) {
			soft[i].Severity = certs.SeverityWarning
		}
	}
	return soft
}
