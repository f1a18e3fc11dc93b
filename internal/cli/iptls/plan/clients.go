package plan

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// told returns what clients were told until now.
func (st *Snapshot) told() serving.History {
	if st.History != nil {
		return *st.History
	}
	return Remembered(serving.History{}, st.Issuer)
}

// Remembered returns history with what the status of issuer advertises: an agent without a memory is known to have told
// that at least.
func Remembered(history serving.History, issuer *configv1alpha1.CredentialIssuer) serving.History {
	info := ProxyInfo(issuer)
	bundle, found := Advertised(issuer)
	if !found {
		return history
	}
	now := serving.Revision{Endpoint: info.Endpoint, Bundle: bundle, Since: ProxyStrategy(issuer).LastUpdateTime.Time}
	now.Opened, now.Names = now.Since, []string{now.Host()}
	return history.With(now)
}

// InService returns what clients meet, as the agent remembers and reports it. remembers is false where it has no memory.
// secret may be the one in service; it may be nil.
func InService(issuer *configv1alpha1.CredentialIssuer, history serving.History, remembers bool,
	secret *corev1.Secret,
) serving.Served {
	strategy, inService := ProxyStrategy(issuer), issuer.Status.ServingCertificate
	_, advertised := Advertised(issuer)
	switch {
	case strategy != nil && strategy.Reason == configv1alpha1.ReasonDisabled, !advertised && !remembers:
		return serving.Served{Off: true}
	case remembers && len(history.Chain) == 0 && inService == nil:
		return serving.Served{Off: true}
	case len(history.Chain) > 0 &&
		(inService == nil || strings.EqualFold(certs.Fingerprint(history.Chain[0].Raw), inService.SHA256)):
		return serving.Served{Chain: history.Chain}
	}
	if secret != nil && inService != nil {
		chain, _ := certs.ParseBundle(secret.Data[corev1.TLSCertKey])
		if len(chain) > 0 && strings.EqualFold(certs.Fingerprint(chain[0].Raw), inService.SHA256) {
			return serving.Served{Chain: chain}
		}
	}
	return serving.Served{}
}

// Next returns what clients will meet when the plan has been carried out.
func (p *Plan) Next(st *Snapshot) serving.Served {
	switch {
	case p.Wanted.Mode == configv1alpha1.ImpersonationProxyModeDisabled:
		return serving.Served{Off: true}
	case p.Generated:
		return generated(p.Wanted, p.Bundle, st)
	case st.Secret == nil:
		return st.InService // it is refused, or not there yet
	}
	chain, _ := certs.ParseBundle(st.Secret.Data[corev1.TLSCertKey])
	return serving.Served{Chain: chain}
}

// generated is the certificate that the agent will issue by itself. ca is its CA; it is empty when it is not known, and
// then nobody trusts it.
func generated(wanted configv1alpha1.ImpersonationProxySpec, ca []byte, st *Snapshot) serving.Served {
	next := serving.Served{Issuer: &x509.Certificate{}}
	if members, _ := certs.ParseBundle(ca); len(members) > 0 {
		next.Issuer = members[0]
	}
	host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint)
	if info := ProxyInfo(st.Issuer); err != nil && info != nil {
		if at, err := ParseAdvertised(info.Endpoint); err == nil {
			host = at.Host
		}
	}
	names := serving.GeneratedNames(host, wanted, st.Service)
	next.Names = slices.Clone(names.DNSNames)
	for _, ip := range names.IPAddresses {
		next.Names = append(next.Names, ip.String())
	}
	return next
}

// Effect is what the plan does to everybody who was told something.
func (p *Plan) Effect(st *Snapshot) serving.Judgement {
	return serving.Judge(serving.Effect(st.told(), st.Evidence, st.InService, p.Next(st), st.Now))
}

// Abandoned returns the IDs of the revisions none of whose clients verify the certificate after the plan, and some of
// whose clients did before. A revision with a name that goes on working is not among them.
func (p *Plan) Abandoned(st *Snapshot) []string {
	broken, works := map[string]bool{}, map[string]bool{}
	for _, o := range serving.Effect(st.told(), st.Evidence, st.InService, p.Next(st), st.Now) {
		if o.Revision == nil || o.File != "" {
			continue
		}
		works[o.Revision.ID] = works[o.Revision.ID] || o.After == ""
		broken[o.Revision.ID] = broken[o.Revision.ID] || o.Broken()
	}
	var ids []string
	for id := range broken {
		if broken[id] && !works[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// judgeClients adds what internal/trust says of the plan. What is wrong with the certificate for everybody is told
// already.
func (p *Plan) judgeClients(st *Snapshot) {
	if st.NotPermitted() {
		return
	}
	var told []certs.Code
	for _, f := range p.Report.Findings {
		if f.Severity == certs.SeverityError {
			told = append(told, f.Code)
		}
	}
	j := p.Effect(st).Without(told...)
	if len(j.Broken) == 0 ||
		slices.ContainsFunc(p.Report.Errors(), func(f certs.Finding) bool { return !f.CanBeAllowed() }) {
		return
	}
	f := certs.NewFinding(certs.OldClientsBreak, lostMessage(j))
	f.Hint = p.lostHint(st, j)
	switch {
	case slices.Contains(p.Request.Allow, f.Code):
		f.Allowed = true
		if tls := p.Wanted.TLS; tls != nil && tls.CATransition == configv1alpha1.CATransitionDualTrust {
			tls.CATransition = configv1alpha1.CATransitionImmediate
			p.Changes = ChangesBetween(*st.Issuer.Spec.ImpersonationProxy, p.Wanted)
		}
	case p.dualTrust(st, j):
		f = certs.NewFinding(
			certs.OldClientsBreak,
			"the old certificate is served, with the trust bundles of both, until no "+
				"client is left that would stop verifying: "+sentences(j),
		)
		f.Severity, f.Hint = certs.SeverityInfo, ""
	case j.NetImprovement && st.unasked():
		f.Severity, f.Hint = certs.SeverityWarning, "everybody else works afterwards, also those who are refused now"
	case !p.changes():
		// The agent is on its way already: nothing is changed now, so there is nothing to refuse.
		f.Severity, f.Hint = certs.SeverityWarning, "hand out new kubeconfigs afterwards: pinniped get kubeconfig"
	}
	p.Report.Findings = append(p.Report.Findings, f)
}

// DualTrust returns the tls block with which the agent replaces the certificate in service only when no client breaks,
// where the agent knows the field.
func (st *Snapshot) DualTrust(tls *configv1alpha1.ImpersonationProxyTLSSpec) *configv1alpha1.ImpersonationProxyTLSSpec {
	if tls != nil && !st.WithoutTransition {
		tls.CATransition = configv1alpha1.CATransitionDualTrust
	}
	return tls
}

// dualTrust says whether the agent goes on serving the certificate in service for the clients that would break: it is
// valid, both trust bundles can be published, and new clients verify it.
func (p *Plan) dualTrust(st *Snapshot, j serving.Judgement) bool {
	old, now := st.InService.Chain, st.Now
	published, _ := Advertised(st.Issuer)
	if p.Wanted.TLS == nil || p.Wanted.TLS.CATransition != configv1alpha1.CATransitionDualTrust || st.InService.Off ||
		len(old) == 0 || now.After(old[0].NotAfter) || len(published) == 0 {
		return false
	}
	if !p.Generated && (len(p.Bundle) == 0 || p.Report.Leaf == nil) {
		return false
	}
	byAnother := func(o serving.Outcome) bool { return o.After != certs.BundleDoesNotVerify }
	if len(p.lacks(st, j)) > 0 || slices.ContainsFunc(j.Broken, byAnother) {
		return false // a name that it lacks keeps breaking clients, whatever CA they trust
	}
	return !slices.ContainsFunc(Names(Request{Endpoint: &p.Wanted.ExternalEndpoint}, st), func(name certs.Name) bool {
		return old[0].VerifyHostname(name.Value) != nil && covers(p.Next(st), name.Value)
	})
}

// unasked says whether the agent serves its generated certificate although no command of ip-tls has led there: somebody
// has removed the tls block with another tool, or the permission for the Secret was withdrawn.
func (st *Snapshot) unasked() bool {
	inService := st.Issuer.Status.ServingCertificate
	if inService == nil || inService.Source != configv1alpha1.ServingCertificateGenerated {
		return false
	}
	revisions := st.told().Revisions
	if n := len(revisions); n > 0 && revisions[n-1].By == FieldManager {
		return false
	}
	return slices.ContainsFunc(
		revisions,
		func(r serving.Revision) bool { return r.Spec != nil && !ServesGenerated(r.Spec.TLS) },
	)
}

// changes says whether the plan changes anything that clients meet.
func (p *Plan) changes() bool {
	return p.Request.WritesSecret ||
		slices.ContainsFunc(p.Changes, func(c FieldChange) bool {
			return c.Field != fieldVerification && c.Field != fieldTransition && c.Field != fieldActivateAfter
		})
}

// Waits says whether the agent waits with a certificate until no client breaks.
func Waits(issuer *configv1alpha1.CredentialIssuer) bool {
	strategy := ProxyStrategy(issuer)
	return strategy != nil && slices.ContainsFunc(strategy.Findings,
		func(f configv1alpha1.StrategyFinding) bool { return f.Code == configv1alpha1.CodeRenewalWaits })
}

func lostMessage(j serving.Judgement) string {
	if j.Everybody {
		return "every kubeconfig handed out so far stops working: " + sentences(j)
	}
	return "these kubeconfigs stop working: " + sentences(j)
}

// sentences tells which clients break, as far as a line can hold.
func sentences(j serving.Judgement) string {
	const most = 5
	all := j.Sentences()
	text := strings.Join(all[:min(len(all), most)], "; ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// lostHint is what helps, by why clients break.
func (p *Plan) lostHint(st *Snapshot, j serving.Judgement) string {
	has := func(code certs.Code) bool {
		return slices.ContainsFunc(j.Broken, func(o serving.Outcome) bool { return o.After == code })
	}
	lacks := p.lacks(st, j)
	switch {
	case has(serving.SwitchedOff):
		return "leave the proxy on until nobody uses it any more"
	case len(lacks) > 0 && p.Generated:
		return fmt.Sprintf("the generated certificate does not cover %s: clients that use it need another name",
			strings.Join(lacks, ", "))
	case len(lacks) > 0:
		return fmt.Sprintf(`have it issued for %s as well ("pinniped ip-tls manifest" prints what to ask cert-manager for)`,
			strings.Join(lacks, ", "))
	case p.Generated && len(p.Bundle) == 0:
		return "the agent's CA is not known here: afterwards, these kubeconfigs need it: \"pinniped get kubeconfig\""
	}
	return `afterwards, these kubeconfigs need the new CA: "pinniped kubeconfig rotate", or "pinniped get kubeconfig"`
}

// lacks returns the names that clients use which break, and that the certificate does not cover.
func (p *Plan) lacks(st *Snapshot, j serving.Judgement) (names []string) {
	next := p.Next(st)
	for _, o := range j.Broken {
		if !next.Off && !covers(next, o.Name) && !slices.Contains(names, o.Name) {
			names = append(names, o.Name)
		}
	}
	return names
}

func covers(next serving.Served, name string) bool {
	if len(next.Chain) > 0 {
		return next.Chain[0].VerifyHostname(name) == nil
	}
	return slices.ContainsFunc(next.Names, func(n string) bool { return strings.EqualFold(n, name) })
}
