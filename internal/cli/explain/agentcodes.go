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
			Code:        configv1alpha1.CodeTransitionPrepared,
			Severity:    certs.SeverityWarning,
			Cause:       "The new certificate is from another CA, or lacks a name, so clients in use would fail to verify it.",
			Consequence: "Until the time in the status, the previous certificate stays in service and both CAs are published.",
			Fix: "refresh the kubeconfigs, have the same CA issue the certificate for the same names, or serve the new " +
				"certificate now, which breaks these clients",
			Example: "pinniped ip-tls history\npinniped kubeconfig rotate ~/.kube/config",
		},
		{
			Code: configv1alpha1.CodeLastKnownGoodCertificateServed, Severity: certs.SeverityWarning,
			Cause:       "The configured certificate cannot be served. Another finding gives the reason.",
			Consequence: "The last known good certificate stays in service. Nothing changes for clients until it expires.",
			Fix:         "fix the cause that the other finding gives, or restore the previous configuration",
			Example:     status + "\npinniped ip-tls undo",
		},
		{
			Code: configv1alpha1.CodeGeneratedCertificateServed, Severity: certs.SeverityWarning,
			Cause:       "The configured certificate cannot be served, and there is no last known good one.",
			Consequence: "The agent serves a certificate from its own CA. Kubeconfigs that do not trust this CA stop working.",
			Fix:         "fix the cause that the other finding gives",
			Example:     status,
		},
		{
			Code:        "EndpointMoved",
			Severity:    certs.SeverityError,
			Cause:       "The endpoint changed, and the old endpoint in users' kubeconfigs no longer points to the proxy.",
			Consequence: "Clients with the old endpoint cannot connect. Clients with the current endpoint work.",
			Fix: "issue new kubeconfigs. If service.type or service.loadBalancerIP of the CredentialIssuer was changed, run " +
				"\"pinniped ip-tls undo\" instead. To avoid this in the future, set externalEndpoint to a DNS name",
			Example: "pinniped get kubeconfig",
		},
		{
			Code: "GeneratedServes", Severity: certs.SeverityError,
			Cause:       "No certificate is configured anymore, so the agent serves the certificate that it generates.",
			Consequence: "Kubeconfigs that trust only the previous CA stop working.",
			Fix:         "restore the previous certificate, or issue new kubeconfigs",
			Example:     "pinniped ip-tls undo",
		},
		{
			Code: "AgentNotRunning", Severity: certs.SeverityError,
			Cause:       "No agent replica has reported for over a minute.",
			Consequence: "The proxy does not respond, and changes have no effect.",
			Fix:         "find out why the agent's pods are not running",
			Example:     "kubectl get pods,events --namespace=pinniped-concierge",
		},
		{
			Code: "NoAnswer", Severity: certs.SeverityError,
			Cause:       "The proxy presents a good certificate, but requests get no response.",
			Consequence: "No user can work through the proxy.",
			Fix:         "check the API server behind the proxy, and the agent's logs",
			Example:     "kubectl get --raw=/readyz",
		},
		{
			Code: configv1alpha1.CodeRevisionsNotKept, Severity: certs.SeverityWarning,
			Cause: "The agent cannot write the revision history.",
			Consequence: "The agent cannot tell which clients a change would break, so it refuses every change that could " +
				"break clients.",
			Fix:     "apply the manifests in deploy/ again, which permit the agent to write the ConfigMap with the history",
			Example: status,
		},
		{
			Code: configv1alpha1.CodePermissionWithdrawn, Severity: certs.SeverityError,
			Cause:       "The Secret is in another namespace, and the owner of that namespace no longer permits its use.",
			Consequence: "The certificate is taken out of service.",
			Fix:         "ask the owner of that namespace to permit the use again",
			Example:     "pinniped explain NAMESPACE/NAME",
		},
		{
			Code: configv1alpha1.CodeServiceAddressPending, Severity: certs.SeverityWarning,
			Cause:       "The Service of type LoadBalancer has no address.",
			Consequence: "Clients have no endpoint to connect to.",
			Fix:         "check the events of the Service, or choose another type",
			Example: "kubectl describe service --namespace=pinniped-concierge\n" +
				"pinniped ip-tls set --service-type ClusterIP",
		},
		{
			Code: configv1alpha1.CodeDisabledBySpec, Severity: certs.SeverityInfo,
			Cause:       "spec.impersonationProxy.mode is disabled.",
			Consequence: "No client can connect to the proxy.",
			Fix:         "enable the proxy",
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
