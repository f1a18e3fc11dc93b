package explain

import (
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// agentCodes explains the codes of the CredentialIssuer's status and of "ip-tls status", except those of certificate
// checks.
func agentCodes() []certs.Explanation {
	const status = "pinniped ip-tls status"
	return []certs.Explanation{
		{
			Code:     configv1alpha1.CodeTransitionPrepared,
			Severity: certs.SeverityWarning,
			Cause:    "The new certificate is from another CA or lacks a name, so clients in use would not verify it.",
			Consequence: "The previous certificate stays in service, and both CAs are published, until the time in the " +
				"status.",
			Fix: "refresh kubeconfigs; or have the certificate issued by the same CA for the same names; or serve it " +
				"now, which breaks these clients",
			Example: "pinniped ip-tls history\npinniped kubeconfig rotate ~/.kube/config",
		},
		{
			Code: configv1alpha1.CodeLastKnownGoodCertificateServed, Severity: certs.SeverityWarning,
			Cause:       "The configured certificate cannot be served: another finding has the reason.",
			Consequence: "The last known good certificate stays in service. Nothing changes for clients until it expires.",
			Fix:         "fix the cause in the other finding, or restore the previous configuration",
			Example:     status + "\npinniped ip-tls undo",
		},
		{
			Code: configv1alpha1.CodeGeneratedCertificateServed, Severity: certs.SeverityWarning,
			Cause:       "The configured certificate cannot be served, and there is no last known good one.",
			Consequence: "The agent serves a certificate of its own CA. Kubeconfigs with another CA stop working.",
			Fix:         "fix the cause in the other finding",
			Example:     status,
		},
		{
			Code:        "EndpointMoved",
			Severity:    certs.SeverityError,
			Cause:       "The endpoint changed, and the one in users' kubeconfigs no longer points to the proxy.",
			Consequence: "Users with the old endpoint cannot connect. Clients of the current endpoint work.",
			Fix: "issue new kubeconfigs. If service.type or service.loadBalancerIP of the CredentialIssuer was changed, run " +
				"\"pinniped ip-tls undo\" instead. A DNS name in externalEndpoint avoids this",
			Example: "pinniped get kubeconfig",
		},
		{
			Code: "GeneratedServes", Severity: certs.SeverityError,
			Cause:       "No certificate is configured now, so the agent serves its generated one.",
			Consequence: "Kubeconfigs with only the previous CA stop working.",
			Fix:         "restore the previous certificate, or issue new kubeconfigs",
			Example:     "pinniped ip-tls undo",
		},
		{
			Code: "AgentNotRunning", Severity: certs.SeverityError,
			Cause:       "No agent replica has reported for over a minute.",
			Consequence: "The proxy does not respond, and changes have no effect.",
			Fix:         "see why its pods are not running",
			Example:     "kubectl get pods,events --namespace=pinniped-concierge",
		},
		{
			Code: "NoAnswer", Severity: certs.SeverityError,
			Cause:       "The proxy presents a good certificate, but requests get no response.",
			Consequence: "No user can work.",
			Fix:         "check the API server behind the proxy, and the agent's logs",
			Example:     "kubectl get --raw=/readyz",
		},
		{
			Code: configv1alpha1.CodeRevisionsNotKept, Severity: certs.SeverityWarning,
			Cause: "The agent cannot write the revision history.",
			Consequence: "The agent cannot tell which clients a change would break, and refuses changes that could " +
				"break some.",
			Fix:     "let the agent write its ConfigMap: apply the manifests in deploy/ again",
			Example: status,
		},
		{
			Code: configv1alpha1.CodePermissionWithdrawn, Severity: certs.SeverityError,
			Cause:       "The owner of another namespace no longer permits the use of the Secret.",
			Consequence: "The certificate is taken out of service.",
			Fix:         "ask that namespace's owner to permit it again",
			Example:     "pinniped explain NAMESPACE/NAME",
		},
		{
			Code: configv1alpha1.CodeServiceAddressPending, Severity: certs.SeverityWarning,
			Cause:       "The Service of type LoadBalancer has no address.",
			Consequence: "There is no endpoint that clients could use.",
			Fix:         "check the events of the Service, or choose another type",
			Example: "kubectl describe service --namespace=pinniped-concierge\n" +
				"pinniped ip-tls set --service-type ClusterIP",
		},
		{
			Code: configv1alpha1.CodeDisabledBySpec, Severity: certs.SeverityInfo,
			Cause:       "spec.impersonationProxy.mode is disabled.",
			Consequence: "No client can connect to the proxy.",
			Fix:         "enable it",
			Example:     "pinniped ip-tls set --mode enabled",
		},
		{
			Code: configv1alpha1.CodeDisabledByNodes, Severity: certs.SeverityInfo,
			Cause:       "The mode is auto and control-plane nodes are visible, so the proxy is not needed.",
			Consequence: "No client can connect to the proxy.",
			Fix:         "enable the proxy if you want it anyway",
			Example:     "pinniped ip-tls set --mode enabled",
		},
	}
}

// lookUp returns the explanation of a code of either kind.
func lookUp(code string) (certs.Explanation, bool) {
	for _, e := range agentCodes() {
		if string(e.Code) == code {
			return e, true
		}
	}
	return certs.Explain(certs.Code(code))
}
