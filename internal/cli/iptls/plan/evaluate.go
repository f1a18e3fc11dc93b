// Package plan decides what a change of the impersonation proxy's certificate does. It is pure: it turns a Request and
// a Snapshot of the cluster into a Plan. Evaluate uses the agent's own code (serving.Resolve, serving.External and
// serving.Evaluate), so that its verdict is the agent's. The package also compares configurations, creates patches, and
// compares the agent's status with a Plan.
package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// CABundleKey is the key of a Secret with the CA bundle, as cert-manager uses it.
const CABundleKey = serving.CACertKey

// GeneratedCAName is the common name of the CA that agents generate, ours and Pinniped's.
const GeneratedCAName = "Pinniped Impersonation Proxy Serving CA"

// The fields that the commands change.
const (
	fieldTLS            = "spec.impersonationProxy.tls"
	FieldSecret         = "spec.impersonationProxy.tls.secretName"
	FieldBundle         = "spec.impersonationProxy.tls.certificateAuthorityData"
	FieldSource         = "spec.impersonationProxy.tls.certificateAuthorityDataSource"
	fieldVerification   = "spec.impersonationProxy.tls.verification"
	fieldTransition     = "spec.impersonationProxy.tls.caTransition"
	fieldActivateAfter  = "spec.impersonationProxy.tls.activateAfter"
	fieldMode           = "spec.impersonationProxy.mode"
	fieldEndpoint       = "spec.impersonationProxy.externalEndpoint"
	fieldServiceType    = "spec.impersonationProxy.service.type"
	fieldLoadBalancerIP = "spec.impersonationProxy.service.loadBalancerIP"
)

// Plan is the required changes for a request, and the findings of the checks and of the agent's code.
type Plan struct {
	Request Request
	Report  certs.Report
	Wanted  configv1alpha1.ImpersonationProxySpec
	Bundle  []byte // published in the end
	Changes []FieldChange
	// Generated: the agent is to serve its generated certificate. Bundle is empty until its CA is known.
	Generated bool
	Next      *serving.Certificate // the certificate that is served in the end; nil if it is refused or missing
	Lost      []string             // the IDs of the revisions whose clients do not verify Next
	// AtOnce means that caTransition is Immediate only for this change.
	AtOnce bool
	Checks certs.Input // the input of the checks of an external certificate
}

// Expected returns the bundle that the agent must publish; empty for a generated CA that is not known yet.
func (p *Plan) Expected(issuer *configv1alpha1.CredentialIssuer) []byte {
	if p.Generated && len(p.Bundle) == 0 {
		if now, _ := Published(issuer); IsGenerated(now) {
			return now
		}
	}
	return p.Bundle
}

// Evaluate evaluates the wanted configuration, and lists the required changes.
func Evaluate(req Request, st *Snapshot, wanted configv1alpha1.ImpersonationProxySpec) *Plan {
	current := *st.Issuer.Spec.ImpersonationProxy
	p := &Plan{Request: req, Wanted: *wanted.DeepCopy(), Generated: ServesGenerated(wanted.TLS)}
	p.Report.Findings = []certs.Finding{}
	switch {
	case !p.Generated:
		p.Request.Secret = wanted.TLS.SecretName
	case current.TLS != nil:
		p.Request.Secret = current.TLS.SecretName
	}
	if st.NotPermitted() {
		p.Report.Findings = st.Permission
	} else {
		p.judge(st)
	}
	p.Changes = ChangesBetween(current, p.Wanted)
	host, _, err := certs.ParseEndpoint(p.Wanted.ExternalEndpoint)
	if ip := p.Wanted.Service.LoadBalancerIP; err == nil && ip != "" {
		p.Report.Findings = append(p.Report.Findings, certs.CheckLoadBalancerIP(ip, host, st.Resolved)...)
	}
	return p
}

// judge evaluates the configuration with the agent's own code.
func (p *Plan) judge(st *Snapshot) {
	issuer, add := st.Issuer.DeepCopy(), func(f ...certs.Finding) { p.Report.Findings = append(p.Report.Findings, f...) }
	issuer.Spec.ImpersonationProxy = &p.Wanted
	desired, err := serving.Resolve(issuer, p.Request.Namespace)
	if err != nil {
		add(certs.Finding{Code: configv1alpha1.CodeSpecInvalid, Severity: certs.SeverityError, Message: err.Error()})
		return
	}
	service := st.serviceFor(&p.Wanted)
	var e serving.Evaluation
	if p.Generated {
		if e, err = st.generated(desired, service); err != nil {
			add(certs.Finding{Code: configv1alpha1.CodeSetupFailed, Severity: certs.SeverityError, Message: err.Error()})
			return
		}
	} else {
		in := serving.ExternalInput{
			Name: desired.Secret, Secret: st.Secret, Delegated: desired.Delegated, Spec: *p.Wanted.TLS, Source: st.Source,
			Endpoint: desired.ExternalEndpoint, Names: serving.ClientNames(desired.ImpersonationProxySpec, service), Now: st.Now,
			Allow: p.Request.Allow, Sources: p.Request.Sources, ServerTime: st.ServerTime,
			ExpiresWithin: p.Request.ExpiresWithin,
		}
		if st.Secret != nil {
			p.Checks, _ = in.Checks() // an error is also a finding
		}
		e = serving.External(in)
		p.Report, p.Bundle = e.Report, e.Bundle
		if f := p.Report.Findings; len(f) > 0 && f[0].Code == certs.SecretNotFound {
			name := desired.Secret
			f[0].Message = fmt.Sprintf("there is no Secret %q in namespace %q", name.Name, name.Namespace)
			f[0].Hint = "list the Secrets: kubectl get secrets --namespace=" + name.Namespace
		}
		add(st.Permission...)
		if slices.ContainsFunc(e.Report.Findings, func(f certs.Finding) bool {
			return f.Code == certs.NameNotCovered && f.Allowed
		}) && p.Wanted.TLS.Verification == configv1alpha1.VerificationEnforce {
			p.Wanted.TLS.Verification = configv1alpha1.VerificationWarn // as the agent would refuse an allowed finding
		}
	}
	if e.Certificate == nil {
		return
	}
	endpoint, _, _ := serving.Frontend(serving.Strategy(st.Issuer))
	situation := serving.Situation{
		InService: st.InService, Retention: serving.DefaultRetention, Endpoint: endpoint, TLS: desired.Transition,
		Now: st.Now, Leads: true, Revisions: func() (serving.History, bool) { return st.History, st.Known },
	}
	verdict := serving.Evaluate(e, situation)
	p.Next = e.Certificate
	switch {
	case verdict.Refusal != nil:
		add(verdict.Refusal.Finding)
		return
	case verdict.Waiting != nil:
		p.Next = verdict.Waiting.Certificate
		p.judgeClients(st, verdict.Waiting.Broken, true)
	case p.Wanted.Mode != configv1alpha1.ImpersonationProxyModeDisabled:
		p.Next = verdict.Certificate
		p.judgeClients(st, situation.Breaks(p.Next), false)
	}
	p.Bundle, p.Lost = p.Next.Bundle, st.History.Refused(serving.Served{Chain: p.Next.Chain()}, st.Now)
}

// serviceFor returns the Service in front of the proxy, or nil if the wanted configuration changes its addresses.
func (st *Snapshot) serviceFor(wanted *configv1alpha1.ImpersonationProxySpec) *corev1.Service {
	now := st.Issuer.Spec.ImpersonationProxy
	if ServiceType(wanted) != ServiceType(now) || ServiceType(wanted) == configv1alpha1.ServiceTypeLoadBalancer &&
		wanted.Service.LoadBalancerIP != now.Service.LoadBalancerIP {
		return nil
	}
	return st.Service
}

// generated evaluates the certificate that the agent would generate.
func (st *Snapshot) generated(desired serving.Desired, service *corev1.Service) (serving.Evaluation, error) {
	at, err := desired.Endpoint(service)
	if err != nil { // not assigned yet
		endpoint, _, _ := serving.Frontend(serving.Strategy(st.Issuer))
		published, _ := ParseEndpoint(endpoint)
		at.Host = published.Host
	}
	certificate, err := serving.WouldGenerate(st.CASecret, at.Host, desired.ImpersonationProxySpec, service, st.Now)
	if err != nil {
		return serving.Evaluation{}, err
	}
	return serving.Generated(certificate, at.Host, serving.ClientNames(desired.ImpersonationProxySpec, service)), nil
}

// judgeClients adds a finding if clients break, unless a finding about the certificate itself already says so.
func (p *Plan) judgeClients(st *Snapshot, j serving.Judgement, waits bool) {
	var known []certs.Code
	for _, f := range p.Report.Findings {
		if f.Severity == certs.SeverityError {
			known = append(known, f.Code)
		}
	}
	if j = j.Without(known...); len(j.Broken) == 0 {
		return
	}
	who := "these kubeconfigs stop"
	if j.Everybody {
		who = "every kubeconfig in use stops"
	}
	f := certs.NewFinding(certs.OldClientsBreak, who+" working: "+serving.Summarize(j))
	f.Hint = p.brokenHint(j)
	forOtherReasons := func(o serving.Outcome) bool { // a transition does not help: the cause is not the CA
		return o.After != certs.BundleDoesNotVerify || p.lacks(o.Name)
	}
	switch {
	case slices.Contains(p.Request.Allow, f.Code):
		f.Allowed = true
		if p.Wanted.TLS != nil && p.Wanted.TLS.CATransition == configv1alpha1.CATransitionDualTrust {
			p.Wanted.TLS.CATransition, p.AtOnce = configv1alpha1.CATransitionImmediate, true
		}
	case waits && !slices.ContainsFunc(j.Broken, forOtherReasons):
		f.Message = "the old certificate is served and both trust bundles are published until no client would break; " +
			"clients that would break now: " + serving.Summarize(j)
		f.Severity, f.Hint = certs.SeverityInfo, ""
	case !p.Request.WritesSecret &&
		!slices.ContainsFunc(ChangesBetween(*st.Issuer.Spec.ImpersonationProxy, p.Wanted), clientsMeet):
		// The agent is already making this change: nothing is changed now, so there is nothing to refuse.
		f.Severity, f.Hint = certs.SeverityWarning, "issue new kubeconfigs afterwards: pinniped get kubeconfig"
	}
	p.Report.Findings = append(p.Report.Findings, f)
}

func (p *Plan) lacks(name string) bool { return p.Next.Certificate.Leaf.VerifyHostname(name) != nil }

// brokenHint returns a hint for the reasons why clients break.
func (p *Plan) brokenHint(j serving.Judgement) string {
	var lacks []string
	for _, o := range j.Broken {
		if p.lacks(o.Name) && !slices.Contains(lacks, o.Name) {
			lacks = append(lacks, o.Name)
		}
	}
	switch {
	case len(lacks) > 0 && p.Generated:
		return fmt.Sprintf("the generated certificate does not cover %s, so these clients need another name",
			strings.Join(lacks, ", "))
	case len(lacks) > 0:
		return fmt.Sprintf(`also have the certificate issued for %s ("pinniped ip-tls manifest" prints the Certificate to `+
			`request)`, strings.Join(lacks, ", "))
	case p.Generated && len(p.Next.Bundle) == 0:
		return "the agent's CA is not known yet; after the change, give it to these kubeconfigs: \"pinniped get kubeconfig\""
	}
	return `after the change, give these kubeconfigs the new CA with "pinniped kubeconfig rotate" or "pinniped get kubeconfig"`
}

// EvaluateGenerated evaluates the generated certificate, with dual trust if clients would break.
func EvaluateGenerated(req Request, st *Snapshot, wanted configv1alpha1.ImpersonationProxySpec) *Plan {
	allowed, current := slices.Contains(req.Allow, certs.OldClientsBreak), st.Issuer.Spec.ImpersonationProxy.TLS
	if wanted.TLS = nil; !allowed && ServesGenerated(current) {
		wanted.TLS = current
	}
	p := Evaluate(req, st, wanted)
	if st.WithoutTransition || p.Report.OK() || allowed {
		return p
	}
	wanted.TLS = st.DualTrust(&configv1alpha1.ImpersonationProxyTLSSpec{})
	if waiting := Evaluate(req, st, wanted); waiting.Report.OK() {
		return waiting
	}
	return p
}

// DualTrust sets caTransition to DualTrust, so that the agent replaces the certificate only when no client breaks. It
// does nothing for an agent without this field.
func (st *Snapshot) DualTrust(tls *configv1alpha1.ImpersonationProxyTLSSpec) *configv1alpha1.ImpersonationProxyTLSSpec {
	if tls != nil && !st.WithoutTransition {
		tls.CATransition = configv1alpha1.CATransitionDualTrust
	}
	return tls
}

// ForSet returns the tls block that "ip-tls set" writes.
func (st *Snapshot) ForSet(tls *configv1alpha1.ImpersonationProxyTLSSpec) *configv1alpha1.ImpersonationProxyTLSSpec {
	if !st.WithoutVerification {
		tls.Verification = configv1alpha1.VerificationEnforce
	}
	if st.WithoutTransition {
		tls.ActivateAfter = nil
	}
	return st.DualTrust(tls)
}

// ServesGenerated reports whether the agent serves its generated certificate, perhaps after a transition.
func ServesGenerated(tls *configv1alpha1.ImpersonationProxyTLSSpec) bool {
	return tls == nil || tls.SecretName == ""
}
