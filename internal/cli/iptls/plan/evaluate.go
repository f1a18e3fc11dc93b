package plan

import (
	"encoding/base64"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// CABundleKey is the key of a Secret under which cert-manager and others put the CA bundle.
const CABundleKey = "ca.crt"

// GeneratedCAName is the common name of the CA that agents make for themselves, ours and Pinniped's.
const GeneratedCAName = "Pinniped Impersonation Proxy Serving CA"

// The fields that the commands change.
const (
	FieldSecret         = "spec.impersonationProxy.tls.secretName"
	FieldBundle         = "spec.impersonationProxy.tls.certificateAuthorityData"
	fieldVerification   = "spec.impersonationProxy.tls.verification"
	fieldMode           = "spec.impersonationProxy.mode"
	fieldEndpoint       = "spec.impersonationProxy.externalEndpoint"
	fieldLoadBalancerIP = "spec.impersonationProxy.service.loadBalancerIP"
)

// Plan is what has to change for a request, and what the checks say about it.
type Plan struct {
	Request Request
	Report  certs.Report
	Wanted  configv1alpha1.ImpersonationProxySpec
	Bundle  []byte // that will be advertised
	Changes []FieldChange
	// Generated is true when the agent is to serve a certificate that it generates. If its CA is not known yet,
	// Bundle is empty until the agent advertises it.
	Generated bool
}

// Expected returns the bundle that must be advertised; empty for a generated CA that is not known yet.
func (p *Plan) Expected(issuer *configv1alpha1.CredentialIssuer) []byte {
	if p.Generated && len(p.Bundle) == 0 {
		if now := Previous(issuer); IsGenerated(now.Bundle) {
			return now.Bundle
		}
	}
	return p.Bundle
}

// Evaluate puts together the configuration that a request leads to, checks the certificate for it, and lists what has
// to change.
func Evaluate(req Request, st *Snapshot) *Plan {
	current := *st.Issuer.Spec.ImpersonationProxy
	p := &Plan{Request: req, Wanted: current}
	tls := configv1alpha1.ImpersonationProxyTLSSpec{}
	if current.TLS != nil {
		tls = *current.TLS
	}
	tls.SecretName = req.Secret
	switch {
	case req.BundleGiven:
		if !SameBase64(tls.CertificateAuthorityData, req.Bundle) {
			tls.CertificateAuthorityData = base64.StdEncoding.EncodeToString(req.Bundle)
		}
	case req.BundleFromSecret, req.SystemRoots:
		tls.CertificateAuthorityData = ""
	}
	if req.Endpoint != nil {
		p.Wanted.ExternalEndpoint = *req.Endpoint
	}
	if req.Mode != "" {
		p.Wanted.Mode = req.Mode
	}
	if req.LoadBalancerIP != nil {
		p.Wanted.Service.LoadBalancerIP = *req.LoadBalancerIP
	}

	var undecodable error
	p.Bundle, undecodable = AdvertisedBundle(tls, st.Secret)
	p.Report = check(req, st, p, undecodable)
	switch {
	case st.WithoutVerification:
	case letThrough(p.Report, certs.NameNotCovered):
		// With Enforce, the agent would refuse what the administrator allowed.
		tls.Verification = configv1alpha1.VerificationWarn
	default:
		tls.Verification = configv1alpha1.VerificationEnforce
	}
	p.Wanted.TLS = &tls
	p.Changes = ChangesBetween(current, p.Wanted)
	p.downgradeDone(st)
	p.Report.Findings = append(p.Report.Findings, checkAddress(p.Wanted, st)...)
	return p
}

// downgradeDone turns OldClientsBreak into a warning where the agent is on its way from its generated certificate to the
// one that is configured already: nothing is changed now, so there is nothing to refuse.
func (p *Plan) downgradeDone(st *Snapshot) {
	changes := p.Request.WritesSecret || slices.ContainsFunc(p.Changes, func(c FieldChange) bool {
		return c.Field == FieldSecret || c.Field == FieldBundle
	})
	if changes || !st.clients().Generated {
		return
	}
	for i := range p.Report.Findings {
		if f := &p.Report.Findings[i]; f.Code == certs.OldClientsBreak {
			f.Severity, f.Hint = certs.SeverityWarning, "hand out new kubeconfigs afterwards: pinniped get kubeconfig"
		}
	}
}

// checkAddress says whether the external endpoint leads to the load balancer's address.
func checkAddress(wanted configv1alpha1.ImpersonationProxySpec, st *Snapshot) []certs.Finding {
	host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint)
	if err != nil || wanted.Service.LoadBalancerIP == "" {
		return nil
	}
	return certs.CheckLoadBalancerIP(wanted.Service.LoadBalancerIP, host, st.Resolved)
}

// EvaluateTarget checks a configuration that is given as a whole, and lists what has to change.
func EvaluateTarget(req Request, st *Snapshot, wanted configv1alpha1.ImpersonationProxySpec) *Plan {
	current := *st.Issuer.Spec.ImpersonationProxy
	p := &Plan{Request: req, Wanted: wanted, Changes: ChangesBetween(current, wanted)}
	if wanted.TLS != nil {
		p.Request.Secret = wanted.TLS.SecretName
		var undecodable error
		p.Bundle, undecodable = AdvertisedBundle(*wanted.TLS, st.Secret)
		p.Report = check(p.Request, st, p, undecodable)
		p.downgradeDone(st)
	} else {
		p.Bundle, p.Generated, p.Report = st.GeneratedCA, true, certs.Report{Findings: []certs.Finding{}}
		if current.TLS != nil {
			p.Request.Secret = current.TLS.SecretName
			if finding, breaks := oldClientsOfGenerated(st.clients(), p.Bundle); breaks {
				finding.Allowed = finding.CanBeAllowed() && slices.Contains(req.Allow, finding.Code)
				p.Report.Findings = append(p.Report.Findings, finding)
			}
		}
	}
	p.Report.Findings = append(p.Report.Findings, checkAddress(wanted, st)...)
	return p
}

func letThrough(report certs.Report, code certs.Code) bool {
	return slices.ContainsFunc(report.Findings, func(f certs.Finding) bool { return f.Code == code && f.Allowed })
}

// check runs the catalogue of checks.
func check(req Request, st *Snapshot, p *Plan, undecodable error) certs.Report {
	if st.NotPermitted() {
		return certs.Report{Findings: st.Permission}
	}
	if st.Secret == nil {
		name := req.SecretName()
		missing := certs.NewFinding(certs.SecretNotFound,
			fmt.Sprintf("there is no Secret %q in namespace %q", name.Name, name.Namespace))
		missing.Hint = fmt.Sprintf("correct its name, or make it: kubectl create secret tls %s --namespace=%s "+
			"--cert=FILE --key=FILE", name.Name, name.Namespace)
		return certs.Report{Findings: []certs.Finding{missing}}
	}
	if undecodable != nil {
		return certs.Report{Findings: []certs.Finding{certs.NewFinding(certs.NotACertificate, undecodable.Error())}}
	}
	report := certs.Check(p.Input(st))
	report.Findings = append(report.Findings, st.Permission...)
	return report
}

// Input is the input of the catalogue of checks.
func (p *Plan) Input(st *Snapshot) certs.Input {
	return certs.Input{
		CertPEM:    st.Secret.Data[corev1.TLSCertKey],
		KeyPEM:     st.Secret.Data[corev1.TLSPrivateKeyKey],
		SecretType: string(st.Secret.Type),
		Bundle:     p.Bundle,
		Previous:   st.clients(),
		Endpoint:   p.Wanted.ExternalEndpoint,
		Names:      clientNames(st, p.Wanted),
		Now:        st.Now,
		ServerTime: st.ServerTime,
		Sources:    p.Request.Sources,
		Allow:      p.Request.Allow,

		ExpiresWithin: p.Request.ExpiresWithin,
	}
}

// oldClientsOfGenerated refuses when kubeconfigs with the bundle that is advertised now will stop working because the
// agent goes back to its generated certificate. ca is the agent's CA; it is empty when it is not known.
func oldClientsOfGenerated(old certs.Previous, ca []byte) (certs.Finding, bool) {
	if !old.Advertised {
		return certs.Finding{}, false
	}
	generated, _ := certs.ParseBundle(ca)
	members, _ := certs.ParseBundle(old.Bundle)
	if len(generated) > 0 && slices.ContainsFunc(members, generated[0].Equal) {
		return certs.Finding{}, false
	}
	who := "kubeconfigs without a CA bundle, which use their system roots,"
	if len(old.Bundle) > 0 {
		who = "kubeconfigs that trust " + DescribePEM(old.Bundle)
	}
	instead := "a CA that the agent makes itself"
	hint := "the agent's CA is not known here, so it cannot be advertised beforehand: these kubeconfigs must be made " +
		"anew afterwards, with \"pinniped get kubeconfig\""
	if len(generated) > 0 {
		instead = "the agent's own CA, " + DescribePEM(ca)
		hint = `go there in steps with "pinniped ip-tls rotate --to-generated": it advertises the old and the new CA ` +
			`together, waits until kubeconfigs are made anew, and only then changes the certificate`
	}
	f := certs.NewFinding(certs.OldClientsBreak,
		fmt.Sprintf("%s stop working: the certificate will be of %s", who, instead))
	f.Hint = hint
	return f, true
}
