package change

import (
	"context"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// modeOnly says whether the flags name a mode, and nothing that goes with a certificate: that stays what it is.
func (o *SetOptions) modeOnly() bool {
	others := []string{"ca-bundle", "ca-from-secret", "system-roots", "external-endpoint", "load-balancer-ip"}
	return o.Mode != "" && o.Certificate.Secret == "" && o.Cert == "" && o.Key == "" &&
		!slices.ContainsFunc(others, o.Certificate.Changed)
}

// evaluateMode evaluates the configuration as it is with another mode. To switch the proxy off, the certificate need not
// be good.
func (o *SetOptions) evaluateMode(ctx context.Context, first bool) (*Proposal, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	wanted := plan.TargetOf(issuer.Spec.ImpersonationProxy)
	wanted.Mode = configv1alpha1.ImpersonationProxyMode(o.Mode)
	st, err := o.Session.GatherTarget(ctx, issuer, o.request.Namespace, wanted)
	if err != nil {
		return nil, err
	}
	p := plan.EvaluateTarget(o.request, st, wanted.In(issuer.Spec.ImpersonationProxy))
	if wanted.Mode == configv1alpha1.ImpersonationProxyModeDisabled {
		p.Report.Findings = slices.DeleteFunc(p.Report.Findings, certs.Finding.Refuses)
	}
	if first {
		o.Session.Progress.Done("Read CredentialIssuer %q, with %s", issuer.Name, wanted.Describe())
	}
	Say(o.Session.Progress, st, p)
	return &Proposal{Snapshot: st, Plan: p, Outcome: result.OutcomeConfigured}, nil
}
