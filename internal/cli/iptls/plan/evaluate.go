// Package plan decides what to do about the certificate in front of the impersonation proxy. It is pure: a Request
// and a Snapshot of the cluster go in, and a Plan comes out. Evaluate takes what flags ask for; EvaluateTarget takes
// a whole configuration. The package also compares configurations, makes the patch from one to the next, keeps the
// record for an undo, and compares the agent's status with a Plan.
package plan

import (
	"encoding/base64"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	fieldTransition     = "spec.impersonationProxy.tls.caTransition"
	fieldActivateAfter  = "spec.impersonationProxy.tls.activateAfter"
	fieldMode           = "spec.impersonationProxy.mode"
	fieldEndpoint       = "spec.impersonationProxy.externalEndpoint"
	fieldServiceType    = "spec.impersonationProxy.service.type"
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
		if now, _ := Advertised(issuer); IsGenerated(now) {
			return now
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
	if req.ServiceType != "" {
		p.Wanted.Service.Type = req.ServiceType
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
	if req.ActivateAfter != nil && !st.WithoutTransition {
		tls.ActivateAfter = &metav1.Duration{Duration: *req.ActivateAfter}
	}
	p.Wanted.TLS = st.DualTrust(&tls)
	p.Changes = ChangesBetween(current, p.Wanted)
	p.judgeClients(st)
	p.Report.Findings = append(p.Report.Findings, checkAddress(p.Wanted, st)...)
	return p
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
	wanted.TLS = wanted.TLS.DeepCopy()
	p := &Plan{Request: req, Wanted: wanted, Changes: ChangesBetween(current, wanted)}
	if !ServesGenerated(wanted.TLS) {
		p.Request.Secret = wanted.TLS.SecretName
		var undecodable error
		p.Bundle, undecodable = AdvertisedBundle(*wanted.TLS, st.Secret)
		p.Report = check(p.Request, st, p, undecodable)
	} else {
		p.Bundle, p.Generated, p.Report = st.GeneratedCA, true, certs.Report{Findings: []certs.Finding{}}
		if current.TLS != nil {
			p.Request.Secret = current.TLS.SecretName
		}
	}
	p.judgeClients(st)
	p.Report.Findings = append(p.Report.Findings, checkAddress(wanted, st)...)
	return p
}

// EvaluateGenerated checks a configuration with the certificate that the agent generates. The agent waits with it where
// clients would break.
func EvaluateGenerated(req Request, st *Snapshot, wanted configv1alpha1.ImpersonationProxySpec) *Plan {
	allowed, current := slices.Contains(req.Allow, certs.OldClientsBreak), st.Issuer.Spec.ImpersonationProxy.TLS
	if wanted.TLS = nil; !allowed && ServesGenerated(current) {
		wanted.TLS = current
	}
	p := EvaluateTarget(req, st, wanted)
	if st.WithoutTransition || p.Report.OK() || allowed {
		return p
	}
	wanted.TLS = st.DualTrust(&configv1alpha1.ImpersonationProxyTLSSpec{})
	if waiting := EvaluateTarget(req, st, wanted); waiting.Report.OK() {
		return waiting
	}
	return p
}

// ServesGenerated says whether the agent serves the certificate that it generates, perhaps after a transition.
func ServesGenerated(tls *configv1alpha1.ImpersonationProxyTLSSpec) bool {
	return tls == nil || tls.SecretName == ""
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
		Endpoint:   p.Wanted.ExternalEndpoint,
		Names:      clientNames(st, p.Wanted),
		Now:        st.Now,
		ServerTime: st.ServerTime,
		Sources:    p.Request.Sources,
		Allow:      p.Request.Allow,

		ExpiresWithin: p.Request.ExpiresWithin,
	}
}
