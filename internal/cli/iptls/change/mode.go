package change

import (
	"context"
	"slices"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// withoutCertificate reports whether the flags change only the mode, the Service or its endpoint, and not the
// certificate.
func (o *SetOptions) withoutCertificate() bool {
	return (o.Mode != "" || o.ServiceType != "") && o.Certificate.Secret == "" && o.Cert == "" && o.Key == "" &&
		!o.changesCertificate()
}

// changesCertificate reports whether a flag changes a setting of the configured Secret.
func (o *SetOptions) changesCertificate() bool {
	flags := []string{"ca-bundle", "ca-bundle-from", "ca-from-secret", "system-roots", "activate-after"}
	if o.ServiceType == "" {
		flags = append(flags, "external-endpoint", "load-balancer-ip")
	}
	return slices.ContainsFunc(flags, o.Certificate.Changed)
}

// evaluateProxy evaluates a change of mode, Service or endpoint. To disable the proxy, the certificate need not be
// valid.
func (o *SetOptions) evaluateProxy(ctx context.Context, first bool) (*Proposal, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err != nil {
		return nil, err
	}
	if err := session.Fits(o.request, issuer); err != nil {
		return nil, err
	}
	wanted := o.request.On(issuer.Spec.ImpersonationProxy)
	st, err := o.Session.Gather(ctx, issuer, o.request.Namespace, wanted)
	if err != nil {
		return nil, err
	}
	p := plan.Evaluate(o.request, st, wanted)
	if o.Mode != "" && wanted.Mode == configv1alpha1.ImpersonationProxyModeDisabled {
		p.Report.Findings = slices.DeleteFunc(p.Report.Findings, certs.Finding.Refuses)
	}
	if first {
		o.Session.Progress.Done("Read CredentialIssuer %q, with %s", issuer.Name, plan.Describe(&wanted))
	}
	Say(o.Session.Progress, st, p)
	return &Proposal{Snapshot: st, Plan: p, Outcome: result.OutcomeConfigured}, nil
}
