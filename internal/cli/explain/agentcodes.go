package explain

import (
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// agentCodes explains the codes of the status and of "ip-tls status", except those of certificate checks.
func agentCodes() []certs.Explanation {
	const status = "pinniped ip-tls status"
	return []certs.Explanation{
		agentCode(configv1alpha1.CodeTransitionPrepared, certs.SeverityWarning,
			"The new certificate is from another CA, or lacks a name, so clients in use would fail to verify it.",
			"Until the time in the status, the previous certificate stays in service and both CAs are published.",
			"refresh the kubeconfigs, have the same CA issue the certificate for the same names, or serve the new "+
				"certificate now, which breaks these clients",
			"pinniped ip-tls history\npinniped kubeconfig rotate ~/.kube/config"),
		agentCode(configv1alpha1.CodeLastKnownGoodCertificateServed, certs.SeverityWarning,
			"The configured certificate cannot be served. Another finding gives the reason.",
			"The last known good certificate stays in service. Nothing changes for clients until it expires.",
			"fix the cause that the other finding gives, or restore the previous configuration",
			status+"\npinniped ip-tls undo"),
		agentCode(configv1alpha1.CodeGeneratedCertificateServed, certs.SeverityWarning,
			"The configured certificate cannot be served, and there is no last known good one.",
			"The agent serves a certificate from its own CA. Kubeconfigs that do not trust this CA stop working.",
			"fix the cause that the other finding gives", status),
		agentCode("EndpointMoved", certs.SeverityError,
			"The endpoint changed, and the old endpoint in users' kubeconfigs no longer points to the proxy.",
			"Clients with the old endpoint cannot connect. Clients with the current endpoint work.",
			"issue new kubeconfigs. If service.type or service.loadBalancerIP of the CredentialIssuer was changed, run "+
				"\"pinniped ip-tls undo\" instead. To avoid this in the future, set externalEndpoint to a DNS name",
			"pinniped get kubeconfig"),
		agentCode("GeneratedServes", certs.SeverityError,
			"No certificate is configured anymore, so the agent serves the certificate that it generates.",
			"Kubeconfigs that trust only the previous CA stop working.",
			"restore the previous certificate, or issue new kubeconfigs", "pinniped ip-tls undo"),
		agentCode("AgentNotRunning", certs.SeverityError,
			"No agent replica has reported for over a minute.", "The proxy does not respond, and changes have no effect.",
			"find out why the agent's pods are not running", "kubectl get pods,events --namespace=pinniped-concierge"),
		agentCode("NoAnswer", certs.SeverityError,
			"The proxy presents a good certificate, but requests get no response.", "No user can work through the proxy.",
			"check the API server behind the proxy, and the agent's logs", "kubectl get --raw=/readyz"),
		agentCode(configv1alpha1.CodeRevisionsNotKept, certs.SeverityWarning, "The agent cannot write the revision history.",
			"The agent cannot tell which clients a change would break, so it refuses every change that could break clients.",
			"apply the manifests in deploy/ again, which permit the agent to write the ConfigMap with the history", status),
		agentCode(configv1alpha1.CodePermissionWithdrawn, certs.SeverityError,
			"The Secret is in another namespace, and the owner of that namespace no longer permits its use.",
			"The certificate is taken out of service.",
			"ask the owner of that namespace to permit the use again", "pinniped explain NAMESPACE/NAME"),
		agentCode(configv1alpha1.CodeServiceAddressPending, certs.SeverityWarning,
			"The Service of type LoadBalancer has no address.", "Clients have no endpoint to connect to.",
			"check the events of the Service, or choose another type",
			"kubectl describe service --namespace=pinniped-concierge\npinniped ip-tls set --service-type ClusterIP"),
		agentCode(configv1alpha1.CodeDisabledBySpec, certs.SeverityInfo,
			"spec.impersonationProxy.mode is disabled.", "No client can connect to the proxy.",
			"enable the proxy", "pinniped ip-tls set --mode enabled"),
		agentCode(configv1alpha1.CodeDisabledByNodes, certs.SeverityInfo,
			"The mode is auto and control-plane nodes are visible, so the proxy is not needed.",
			"No client can connect to the proxy.",
			"enable the proxy if you want it anyway", "pinniped ip-tls set --mode enabled"),
	}
}

func agentCode(code certs.Code, severity certs.Severity, cause, consequence, fix, example string) certs.Explanation {
	return certs.Explanation{
		Code: code, Severity: severity, Cause: cause, Consequence: consequence, Fix: fix, Example: example,
	}
}
