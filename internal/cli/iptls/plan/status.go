package plan

import (
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// AgentView is what the status says about the wanted configuration.
type AgentView struct {
	At       Endpoint
	Problem  string // why the configuration is not in effect; empty if it is
	Disabled bool   // the proxy is disabled
	// Findings are the agent's findings that do not prevent success.
	Findings []configv1alpha1.StrategyFinding
	// Refused is the finding with which the agent permanently refuses this configuration, so that waiting is useless;
	// else nil.
	Refused *configv1alpha1.StrategyFinding
	// Message is the message of an agent without findings, such as Pinniped's; empty for others.
	Message string
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
			Refused: finalVerdict(issuer, strategy),
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
	if problem := wrongEndpoint(at, wanted.ExternalEndpoint); problem != "" {
		view.Problem = problem
		return view
	}
	if !readable || !certs.SameBundle(published, bundle) {
		view.Problem = "the agent still publishes another CA bundle: " + OrNone(result.BundleOf(published).String())
	}
	return view
}

// finalVerdict returns the finding with which the agent permanently refuses the spec, or nil. It ignores a status for
// an earlier spec, and findings that others may fix in the meantime: an issuer that has yet to fill the Secret, or an
// owner who has yet to permit its use.
func finalVerdict(issuer *configv1alpha1.CredentialIssuer,
	strategy *configv1alpha1.CredentialIssuerStrategy,
) *configv1alpha1.StrategyFinding {
	if seen := issuer.Status.ObservedGeneration; seen == 0 || seen != issuer.Generation ||
		strategy.Reason != configv1alpha1.ReasonErrorDuringSetup {
		return nil
	}
	for i, finding := range strategy.Findings {
		if finding.Severity != configv1alpha1.FindingError {
			continue
		}
		_, ofCertificate := certs.Explain(certs.Code(finding.Code))
		switch certs.Code(finding.Code) { //nolint:exhaustive // all others are final
		case certs.SecretNotFound, certs.SecretNotPermitted, certs.SecretIncomplete:
			continue
		}
		if ofCertificate || finding.Code == configv1alpha1.CodeSpecInvalid {
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
	problem := fmt.Sprintf("%d of %d replicas of the agent serve the certificate", status.ServingReplicas,
		status.Replicas)
	if len(status.OtherReplicas) > 0 {
		problem += fmt.Sprintf("; %s does not: %s", status.OtherReplicas[0].Name, status.OtherReplicas[0].Message)
	}
	return problem
}
