package plan

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// AgentView is what the status says about the wanted configuration.
type AgentView struct {
	At       Endpoint
	Problem  string                           // why the configuration is not in effect; empty if it is
	Disabled bool                             // the proxy is disabled
	Findings []configv1alpha1.StrategyFinding // the agent's findings that do not prevent success
	// Refused is the finding with which the agent permanently refuses this configuration, so that waiting is useless.
	Refused *configv1alpha1.StrategyFinding
	Message string // the message of an agent without findings, such as Pinniped's; empty for others
}

// ReadStatus compares the agent's status with the wanted configuration.
func ReadStatus(issuer *configv1alpha1.CredentialIssuer, wanted configv1alpha1.ImpersonationProxySpec,
	bundle []byte,
) AgentView {
	strategy := serving.Strategy(issuer)
	switch {
	case strategy == nil:
		return AgentView{Problem: "the agent has not reported anything about the impersonation proxy yet"}
	case strategy.Reason == configv1alpha1.ReasonDisabled:
		return AgentView{Disabled: true, Problem: strategy.Message}
	case strategy.Status != configv1alpha1.StrategySuccess:
		return AgentView{
			Problem: fmt.Sprintf("the agent reports %s: %s", strategy.Reason, strategy.Message),
			Refused: finalVerdict(issuer),
		}
	}
	endpoint, published, readable := serving.Frontend(strategy)
	if endpoint == "" {
		return AgentView{Problem: "the agent reports success, but no endpoint"}
	}
	at, err := ParseEndpoint(endpoint)
	if err != nil {
		return AgentView{Problem: err.Error()}
	}
	view := AgentView{At: at, Findings: strategy.Findings}
	// An agent that publishes neither has no findings.
	if len(view.Findings) == 0 && issuer.Status.Objects == nil {
		view.Message = strategy.Message
	}
	if host, port, err := certs.ParseEndpoint(wanted.ExternalEndpoint); err == nil &&
		(!sameHost(host, at.Host) || cmp.Or(port, "443") != at.Port) {
		view.Problem = "the agent still publishes the endpoint " + at.URL
	} else if !readable || !certs.SameBundle(published, bundle) {
		view.Problem = "the agent still publishes another CA bundle: " + OrNone(result.BundleOf(published).String())
	}
	return view
}

// finalVerdict returns the finding with which the agent permanently refuses the spec, or nil. It ignores a status for
// an earlier spec, and what others may fix: an issuer that has to fill the Secret, an owner who has to permit its use.
func finalVerdict(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.StrategyFinding {
	strategy := serving.Strategy(issuer)
	if seen := issuer.Status.ObservedGeneration; seen == 0 || seen != issuer.Generation ||
		strategy.Reason != configv1alpha1.ReasonErrorDuringSetup {
		return nil
	}
	fixedByOthers := []certs.Code{certs.SecretNotFound, certs.SecretNotPermitted, certs.SecretIncomplete}
	for i, finding := range strategy.Findings {
		code := certs.Code(finding.Code)
		_, ofCertificate := certs.Explain(code)
		if finding.Severity == configv1alpha1.FindingError && !slices.Contains(fixedByOthers, code) &&
			(ofCertificate || finding.Code == configv1alpha1.CodeSpecInvalid) {
			return &strategy.Findings[i]
		}
	}
	return nil
}

// ReplicaProblem returns which replicas do not serve the certificate according to the agent, or "". If sha256 is empty,
// any certificate is fine as long as all replicas serve the same.
func ReplicaProblem(status *configv1alpha1.ServingCertificateStatus, sha256 string) string {
	switch {
	case sha256 != "" && status.SHA256 != sha256:
		return fmt.Sprintf("the agent reports that it serves another certificate, SHA-256 %.16s", status.SHA256)
	case status.ServingReplicas >= status.Replicas:
		return ""
	}
	problem := fmt.Sprintf("%d of %d replicas of the agent serve the certificate", status.ServingReplicas, status.Replicas)
	if len(status.OtherReplicas) > 0 {
		problem += fmt.Sprintf("; %s does not: %s", status.OtherReplicas[0].Name, status.OtherReplicas[0].Message)
	}
	return problem
}

// SameBase64 reports whether data is the base64 of a bundle with the same certificates.
func SameBase64(data string, bundle []byte) bool {
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	return data != "" && err == nil && certs.SameBundle(decoded, bundle)
}

// Published returns the published trust bundle; empty means the system roots. found is false if it cannot be read.
func Published(issuer *configv1alpha1.CredentialIssuer) (bundle []byte, found bool) {
	_, bundle, found = serving.Frontend(serving.Strategy(issuer))
	return bundle, found
}

// IsGenerated reports whether a CA bundle is the CA that an agent generates.
func IsGenerated(bundle []byte) bool {
	members, _ := certs.ParseBundle(bundle)
	return len(members) == 1 && members[0].Subject.CommonName == GeneratedCAName
}

// Names returns the names by which clients will reach the proxy after the request, the external endpoint first.
func Names(req Request, st *Snapshot) []certs.Name {
	wanted := req.On(st.Issuer.Spec.ImpersonationProxy)
	var names []certs.Name
	if host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint); err == nil {
		names = append(names, certs.Name{Value: host, Source: "spec.impersonationProxy.externalEndpoint"})
	}
	return append(names, serving.ClientNames(wanted, st.serviceFor(&wanted))...)
}

// Endpoint is the endpoint for clients.
type Endpoint struct {
	URL  string
	Host string // without brackets
	Port string
}

// ParseEndpoint parses an endpoint as in the status: https://host[:port].
func ParseEndpoint(text string) (Endpoint, error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "https" || parsed.Hostname() == "" {
		return Endpoint{}, fmt.Errorf("the published endpoint %.100q is not an https URL", text)
	}
	return Endpoint{URL: text, Host: parsed.Hostname(), Port: cmp.Or(parsed.Port(), "443")}, nil
}

// sameHost reports whether two hosts are the same DNS name or IP address.
func sameHost(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX == nil && errY == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(a, b)
}

func (e Endpoint) String() string { return net.JoinHostPort(e.Host, e.Port) }
