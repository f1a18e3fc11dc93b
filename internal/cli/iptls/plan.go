package iptls

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// caBundleKey is the key of a Secret under which cert-manager and others put the CA bundle.
const caBundleKey = "ca.crt"

// generatedCAName is the common name of the CA that agents make for themselves, ours and Pinniped's.
const generatedCAName = "Pinniped Impersonation Proxy Serving CA"

// Where the names come from, in the words of the objects.
const (
	fieldSecret         = "spec.impersonationProxy.tls.secretName"
	fieldBundle         = "spec.impersonationProxy.tls.certificateAuthorityData"
	fieldVerification   = "spec.impersonationProxy.tls.verification"
	fieldEndpoint       = "spec.impersonationProxy.externalEndpoint"
	fieldLoadBalancerIP = "spec.impersonationProxy.service.loadBalancerIP"
)

// request is what the flags ask for.
type request struct {
	namespace        string  // the agent's
	secret           string  // NAME, or NAMESPACE/NAME of another namespace, as the spec has it
	bundle           []byte  // of --ca-bundle
	bundleGiven      bool    // --ca-bundle
	bundleFromSecret bool    // --ca-from-secret
	systemRoots      bool    // --system-roots
	endpoint         *string // --external-endpoint
	loadBalancerIP   *string // --load-balancer-ip
	allow            []certs.Code
	// withoutVerification is set for a CredentialIssuer that has no such field, as Pinniped's.
	withoutVerification bool
}

// secretName returns the Secret that the request names, which locate has checked.
func (r request) secretName() types.NamespacedName {
	name, _ := delegation.SecretName(r.secret, r.namespace)
	return name
}

// plan is what is to be done about a request in a state.
type plan struct {
	req     request
	report  certs.Report
	wanted  configv1alpha1.ImpersonationProxySpec
	bundle  []byte // that will be advertised
	changes []Change
	// annotations are written together with the changes: a string, or nil to remove one.
	annotations map[string]any
	// action is what the result calls it; empty for what follows from the changes.
	action string
	// moved says what is no longer as a plan file has it.
	moved []string
	// putBack undoes what was changed besides the CredentialIssuer; nil when nothing was.
	putBack func(context.Context) error
	// generated is true when the agent is to serve its own certificate: which one is not known before, and where its CA is
	// not known either, bundle is empty until it is advertised.
	generated bool
}

// expected returns the bundle that must be advertised; empty for a generated CA that is not known yet.
func (p *plan) expected(issuer *configv1alpha1.CredentialIssuer) []byte {
	if p.generated && len(p.bundle) == 0 {
		if now := previous(issuer); generatedBundle(now.Bundle) {
			return now.Bundle
		}
	}
	return p.bundle
}

// Change is one field that changes. Values are for people: a CA bundle is described, not shown.
type Change struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// decide judges the certificate for the configuration that would result, and says what has to change.
func decide(req request, st *state) *plan {
	current := *st.issuer.Spec.ImpersonationProxy
	p := &plan{req: req, wanted: current}
	tls := configv1alpha1.ImpersonationProxyTLSSpec{}
	if current.TLS != nil {
		tls = *current.TLS
	}
	tls.SecretName = req.secret
	switch {
	case req.bundleGiven:
		if !sameBase64(tls.CertificateAuthorityData, req.bundle) {
			tls.CertificateAuthorityData = base64.StdEncoding.EncodeToString(req.bundle)
		}
	case req.bundleFromSecret, req.systemRoots:
		tls.CertificateAuthorityData = ""
	}
	if req.endpoint != nil {
		p.wanted.ExternalEndpoint = *req.endpoint
	}
	if req.loadBalancerIP != nil {
		p.wanted.Service.LoadBalancerIP = *req.loadBalancerIP
	}

	var undecodable error
	p.bundle, undecodable = advertised(tls, st.secret)
	p.report = judge(req, st, p, undecodable)
	switch {
	case req.withoutVerification:
	case letThrough(p.report, certs.NameNotCovered):
		// With Enforce, the agent would refuse what the administrator allowed.
		tls.Verification = configv1alpha1.VerificationWarn
	default:
		tls.Verification = configv1alpha1.VerificationEnforce
	}
	p.wanted.TLS = &tls
	p.changes = changesBetween(current, p.wanted)
	return p
}

// decideTarget judges a configuration that is wanted as it is. ca is the agent's own, for when there is to be no tls
// block; nil when it is not known.
func decideTarget(req request, st *state, wanted configv1alpha1.ImpersonationProxySpec, ca []byte) *plan {
	current := *st.issuer.Spec.ImpersonationProxy
	p := &plan{req: req, wanted: wanted, changes: changesBetween(current, wanted)}
	if wanted.TLS != nil {
		var undecodable error
		p.bundle, undecodable = advertised(*wanted.TLS, st.secret)
		p.report = judge(req, st, p, undecodable)
		return p
	}
	p.bundle, p.generated, p.report = ca, true, certs.Report{Findings: []certs.Finding{}}
	if current.TLS == nil {
		return p
	}
	p.req.secret = current.TLS.SecretName
	if finding, breaks := oldClientsOfGenerated(previous(st.issuer), ca); breaks {
		p.report.Findings = append(p.report.Findings, finding)
	}
	return p
}

func letThrough(report certs.Report, code certs.Code) bool {
	return slices.ContainsFunc(report.Findings, func(f certs.Finding) bool { return f.Code == code && f.Allowed })
}

// advertised returns the bundle that the agent will advertise: the spec's, else the Secret's.
func advertised(tls configv1alpha1.ImpersonationProxyTLSSpec, secret *corev1.Secret) ([]byte, error) {
	if tls.CertificateAuthorityData == "" {
		if secret == nil {
			return nil, nil
		}
		return secret.Data[caBundleKey], nil
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(tls.CertificateAuthorityData))
	if err != nil {
		return nil, fmt.Errorf("%s is not base64", fieldBundle)
	}
	return bundle, nil
}

func sameBase64(data string, bundle []byte) bool {
	if data == "" {
		return false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	return err == nil && certs.SameBundle(decoded, bundle)
}

// judge runs the catalogue of checks.
func judge(req request, st *state, p *plan, undecodable error) certs.Report {
	if st.notPermitted() {
		return certs.Report{Findings: st.permission}
	}
	if st.secret == nil {
		name := req.secretName()
		missing := certs.NewFinding(certs.SecretNotFound, fmt.Sprintf("there is no Secret %q in namespace %q", name.Name, name.Namespace))
		missing.Hint = fmt.Sprintf("correct its name, or make it: kubectl create secret tls %s --namespace=%s --cert=FILE --key=FILE", name.Name, name.Namespace)
		return certs.Report{Findings: []certs.Finding{missing}}
	}
	if undecodable != nil {
		return certs.Report{Findings: []certs.Finding{certs.NewFinding(certs.NotACertificate, undecodable.Error())}}
	}
	report := certs.Check(inputOf(st, p))
	report.Findings = append(report.Findings, st.permission...)
	return report
}

// inputOf puts together what the catalogue judges.
func inputOf(st *state, p *plan) certs.Input {
	return certs.Input{
		CertPEM:    st.secret.Data[corev1.TLSCertKey],
		KeyPEM:     st.secret.Data[corev1.TLSPrivateKeyKey],
		SecretType: string(st.secret.Type),
		Bundle:     p.bundle,
		Previous:   previous(st.issuer),
		Endpoint:   p.wanted.ExternalEndpoint,
		Names:      clientNames(st, p.wanted),
		Now:        st.now,
		ServerTime: st.serverTime,
		Allow:      p.req.allow,
	}
}

// proxyStrategy returns what the agent reports about the impersonation proxy; nil when it has not yet.
func proxyStrategy(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.CredentialIssuerStrategy {
	for i := range issuer.Status.Strategies {
		if issuer.Status.Strategies[i].Type == configv1alpha1.StrategyImpersonationProxy {
			return &issuer.Status.Strategies[i]
		}
	}
	return nil
}

// proxyInfo returns the endpoint and the bundle that are advertised; nil when none are.
func proxyInfo(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.ImpersonationProxyInfo {
	if strategy := proxyStrategy(issuer); strategy != nil && strategy.Frontend != nil {
		return strategy.Frontend.ImpersonationProxyInfo
	}
	return nil
}

// previous returns what clients verify with until now. Where the agent's generated certificate was served, a change of
// the CA is part of the change that is asked for.
func previous(issuer *configv1alpha1.CredentialIssuer) certs.Previous {
	info := proxyInfo(issuer)
	if info == nil {
		return certs.Previous{}
	}
	bundle, err := base64.StdEncoding.DecodeString(info.CertificateAuthorityData)
	if err != nil {
		return certs.Previous{}
	}
	// It is served also while an external certificate was asked for and refused.
	generated := issuer.Spec.ImpersonationProxy.TLS == nil || generatedBundle(bundle)
	return certs.Previous{Advertised: true, Bundle: bundle, Generated: generated}
}

func generatedBundle(bundle []byte) bool {
	members, _ := certs.ParseBundle(bundle)
	return len(members) == 1 && members[0].Subject.CommonName == generatedCAName
}

// clientNames returns every name that clients use besides the external endpoint, each with where it comes from.
func clientNames(st *state, wanted configv1alpha1.ImpersonationProxySpec) []certs.Name {
	service := st.service
	moving := wanted.Service.LoadBalancerIP != st.issuer.Spec.ImpersonationProxy.Service.LoadBalancerIP
	if moving && serviceType(&wanted) == configv1alpha1.ServiceTypeLoadBalancer {
		service = nil // its addresses go
	}
	return append(servingcert.ClientNames(wanted, service), advertisedName(st, wanted, moving)...)
}

// advertisedName returns the name in kubeconfigs handed out so far, as far as these can go on working.
func advertisedName(st *state, wanted configv1alpha1.ImpersonationProxySpec, moving bool) []certs.Name {
	info := proxyInfo(st.issuer)
	if info == nil {
		return nil
	}
	replaced := wanted.ExternalEndpoint != st.issuer.Spec.ImpersonationProxy.ExternalEndpoint || moving
	if replaced && previous(st.issuer).Generated {
		return nil // those kubeconfigs trust the generated CA, and must be made anew anyway
	}
	at, err := parseAdvertised(info.Endpoint)
	if err != nil {
		return nil
	}
	return []certs.Name{{Value: at.host, Source: "advertised in status.strategies"}}
}

// changesBetween lists the fields that differ.
func changesBetween(from, to configv1alpha1.ImpersonationProxySpec) []Change {
	var before, after configv1alpha1.ImpersonationProxyTLSSpec
	if from.TLS != nil {
		before = *from.TLS
	}
	if to.TLS != nil {
		after = *to.TLS
	}
	var changes []Change
	add := func(field, old, changed string) {
		if old != changed {
			changes = append(changes, Change{Field: field, From: old, To: changed})
		}
	}
	add(fieldSecret, before.SecretName, after.SecretName)
	if before.CertificateAuthorityData != after.CertificateAuthorityData { // their descriptions may be the same
		changes = append(changes, Change{
			Field: fieldBundle, From: describeBundle(before.CertificateAuthorityData), To: describeBundle(after.CertificateAuthorityData),
		})
	}
	add(fieldVerification, string(before.Verification), string(after.Verification))
	add(fieldEndpoint, from.ExternalEndpoint, to.ExternalEndpoint)
	add(fieldLoadBalancerIP, from.Service.LoadBalancerIP, to.Service.LoadBalancerIP)
	return changes
}

// describeBundle says in one line what is in a CA bundle.
func describeBundle(data string) string {
	if data == "" {
		return ""
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	if err != nil {
		return "(not base64)"
	}
	return describePEM(bundle)
}

func describePEM(bundle []byte) string {
	members, _ := certs.ParseBundle(bundle)
	if len(members) == 0 {
		return "(no certificate)"
	}
	const most = 3
	var parts []string
	for _, member := range members[:min(len(members), most)] {
		name := member.Subject.CommonName
		if name == "" {
			name = member.Subject.String()
		}
		parts = append(parts, fmt.Sprintf("%.60q (SHA-256 %s)", name, certs.Fingerprint(member.Raw)[:16]))
	}
	if more := len(members) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}
