package rotate

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// step is one change of a rotation. With confirming, it changes nothing and waits until the last change is in effect.
type step struct {
	options    *Options
	from       *rotation.Record
	to         rotation.Phase
	aborting   bool
	confirming bool

	next *rotation.Record // the record that is written
}

// Name is what records call the command.
func (s *step) Name() string { return "rotate" }

// step does one step of the way there.
func (o *Options) step(ctx context.Context, r *rotation.Record, number int) (*rotation.Record, *change.Result, error) {
	o.Session.Progress.Info("Step %d: %s", number, stepNames[number])
	return o.do(ctx, &step{options: o, from: r, to: r.PhaseAfter(number)})
}

func (o *Options) do(ctx context.Context, s *step) (*rotation.Record, *change.Result, error) {
	result, err := change.Do(ctx, change.Change{Session: o.Session, Flags: o.Flags, Verb: s, OfRotation: true})
	return s.next, result, err
}

// confirm waits until the last step is in effect. An earlier run may have been interrupted before it was.
func (o *Options) confirm(ctx context.Context, r *rotation.Record) error {
	flags := o.Flags
	flags.Wait = true // the next step relies on it
	step := &step{options: o, from: r, to: r.Phase, confirming: true}
	_, err := change.Do(ctx, change.Change{Session: o.Session, Flags: flags, Verb: step, OfRotation: true})
	return err
}

// errMeanwhile means that somebody else has gone on with the rotation.
var errMeanwhile = errors.New("somebody else has gone on with the rotation meanwhile")

// Evaluate evaluates the configuration that the step leads to, and looks ahead at the later steps.
func (s *step) Evaluate(ctx context.Context, _ bool) (*change.Proposal, error) {
	issuer, err := s.options.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.stillThere(issuer); err != nil {
		return nil, err
	}
	to := plan.TargetOf(issuer.Spec.ImpersonationProxy)
	now := to.TLS
	to.TLS = s.from.Block(s.to)
	if s.confirming && to.TLS != nil && now != nil && now.Verification == "" {
		to.TLS.Verification = "" // not every CredentialIssuer has the field
	}
	st, err := s.options.Session.GatherTarget(ctx, issuer, s.options.request.Namespace, to)
	if err != nil {
		return nil, err
	}
	if s.from.Phase == rotation.PhaseAdvertised && !s.aborting && s.to != rotation.PhaseAborted {
		st.Evidence.Renewed = true // the preconditions of step 3 have said so
	}
	p := plan.EvaluateTarget(s.options.request, st, to.In(issuer.Spec.ImpersonationProxy))
	s.next = s.from.At(s.to, st.Now)
	s.next.Aborting = s.aborting
	if s.confirming {
		p.Report.Findings = downgraded(p.Report.Findings, p.Report.Findings)
		return &change.Proposal{Snapshot: st, Plan: p}, nil
	}
	if err := s.lookAhead(ctx, st, p); err != nil {
		return nil, err
	}
	text, fits, err := plan.EncodeRecord(s.next)
	if err != nil {
		return nil, err
	}
	if !fits {
		return nil, fmt.Errorf("keeping the record of the rotation: the CA bundles are too large for an annotation "+
			"(more than %d KiB in all)", plan.MaxRecord>>10)
	}
	change.Say(s.options.Session.Progress, st, p)
	return &change.Proposal{Snapshot: st, Plan: p, Annotations: map[string]any{plan.RotationAnnotation: text}}, nil
}

// stillThere refuses when the rotation has moved on since the step was chosen.
func (s *step) stillThere(issuer *configv1alpha1.CredentialIssuer) error {
	again := func(err error) error { return ui.WithHint(err, "run the command again to see where it is") }
	r, err := rotation.Read(issuer)
	if err != nil {
		return again(err)
	}
	if s.from.Phase == rotation.PhaseDone {
		if r.Current() != rotation.PhaseDone || !r.Started.Equal(s.from.Started) {
			return again(errMeanwhile)
		}
		return s.options.untouched(r, issuer)
	}
	if !s.from.Active() {
		if r.Active() {
			return again(errMeanwhile)
		}
		if !reflect.DeepEqual(issuer.Spec.ImpersonationProxy.TLS, s.from.From) {
			return again(fmt.Errorf("somebody else has changed CredentialIssuer %q meanwhile", issuer.Name))
		}
		return nil
	}
	if r.Current() != s.from.Phase || !r.Started.Equal(s.from.Started) || r.Aborting != s.from.Aborting {
		return again(errMeanwhile)
	}
	return s.options.untouched(r, issuer)
}

// Apply writes configuration and record together.
func (s *step) Apply(ctx context.Context, p *change.Proposal) (*configv1alpha1.CredentialIssuer, error) {
	applied, err := change.Merge(ctx, s.options.Session.Cluster, p, s.options.Flags.DryRun)
	if err != nil {
		return nil, err
	}
	if spec := applied.Spec.ImpersonationProxy; spec != nil && spec.TLS != nil && p.Plan.Wanted.TLS != nil &&
		spec.TLS.Verification == "" {
		p.Plan.Wanted.TLS = p.Plan.Wanted.TLS.DeepCopy()
		p.Plan.Wanted.TLS.Verification = "" // not every CredentialIssuer has the field
	}
	return applied, nil
}
