package v1alpha1

// The codes of findings that are not about a certificate. Those about certificates are in the catalogue that
// `pinniped explain` prints.
const (
	// CodeSpecInvalid: the spec contradicts itself, or has a value that makes no sense.
	CodeSpecInvalid = "SpecInvalid"
	// CodeNodesUnreadable: in mode auto the nodes decide whether the proxy runs, and they could not be read.
	CodeNodesUnreadable = "NodesUnreadable"
	// CodeDisabledBySpec: the proxy is off because the mode says so.
	CodeDisabledBySpec = "DisabledBySpec"
	// CodeDisabledByNodes: the proxy is off because the mode is auto and the cluster shows control-plane nodes.
	CodeDisabledByNodes = "DisabledByNodes"
	// CodeServiceNotApplied: the Service in front of the proxy could not be created or updated.
	CodeServiceNotApplied = "ServiceNotApplied"
	// CodeServiceClassDiffers: the Service has another loadBalancerClass than the spec asks for, and Kubernetes does not
	// let it change.
	CodeServiceClassDiffers = "ServiceClassDiffers"
	// CodeServiceAddressPending: the Service has no address yet.
	CodeServiceAddressPending = "ServiceAddressPending"
	// CodeServiceAddressInvalid: the Service has addresses, and none of them can be used.
	CodeServiceAddressInvalid = "ServiceAddressInvalid"
	// CodeSignerUnavailable: the CA that signs client certificates could not be loaded or created.
	CodeSignerUnavailable = "SignerUnavailable"
	// CodeSecretUnreadable: the Secret that the spec names could not be read.
	CodeSecretUnreadable = "SecretUnreadable"
	// CodePermissionUnknown: whether a Secret of another namespace may be used could not be found out.
	CodePermissionUnknown = "PermissionUnknown"
	// CodePermissionWithdrawn: a certificate of another namespace must leave service, and what is to replace it is not
	// there yet.
	CodePermissionWithdrawn = "PermissionWithdrawn"
	// CodeGeneratedCertificateUnavailable: the agent could not make its own certificate or CA.
	CodeGeneratedCertificateUnavailable = "GeneratedCertificateUnavailable"
	// CodeLastGoodNotKept: the copy of the certificate in service could not be read, written or removed.
	CodeLastGoodNotKept = "LastGoodNotKept"
	// CodeRevisionsNotKept: the published revisions could not be read or written.
	CodeRevisionsNotKept = "RevisionsNotKept"
	// CodeTransitionPrepared: a new certificate, of a renewal or of a changed spec, is not served yet, because clients
	// in use would stop verifying: see status.transition.
	CodeTransitionPrepared = "TransitionPrepared"
	// CodeCleanupFailed: an object that is not needed any more could not be removed.
	CodeCleanupFailed = "CleanupFailed"
	// CodeProxyNotStarted: the proxy cannot listen.
	CodeProxyNotStarted = "ProxyNotStarted"
	// CodeProxyNotStopped: the proxy did not shut down cleanly.
	CodeProxyNotStopped = "ProxyNotStopped"
	// CodeWaitingForLeader: another replica is about to write what this one needs.
	CodeWaitingForLeader = "WaitingForLeader"
	// CodeWriteConflict: another program changed an object at the same moment. The agent tries again at once.
	CodeWriteConflict = "WriteConflict"
	// CodeSetupFailed: something else went wrong; the message says what.
	CodeSetupFailed = "SetupFailed"
	// CodeUpstreamCredentialExcess: the proxy's own credential has more permissions than impersonation needs.
	CodeUpstreamCredentialExcess = "UpstreamCredentialExcess"
	// CodeKubernetesTooOld: the version of Kubernetes is not supported.
	CodeKubernetesTooOld = "KubernetesTooOld"
	// CodeAuthenticatorUnknown: spec.impersonationProxy.bearerTokens names authenticators that do not exist.
	CodeAuthenticatorUnknown = "AuthenticatorUnknown"
	// CodeLoginUnavailable: spec.impersonationProxy.kubeconfig has logins whose authenticator is missing or not ready.
	CodeLoginUnavailable = "LoginUnavailable"
	// CodeLastGoodCertificateServed: what the spec asks for does not take effect, and the last known good certificate
	// stays in service.
	CodeLastGoodCertificateServed = "LastGoodCertificateServed"
	// CodeGeneratedCertificateServed: the generated certificate is served instead of one that may not be used.
	CodeGeneratedCertificateServed = "GeneratedCertificateServed"
	// CodeClusterKeyUnavailable: the strategy that uses the cluster's own signing key is not available.
	CodeClusterKeyUnavailable = "ClusterKeyUnavailable"
	// CodeClusterSignerUsed: users get certificates from the cluster's own signer.
	CodeClusterSignerUsed = "ClusterSignerUsed"
	// CodeClusterSignerUnavailable: the agent is configured to use the cluster's own signer, which gives no certificates
	// that can be used.
	CodeClusterSignerUnavailable = "ClusterSignerUnavailable"
	// CodeClusterInfoUnavailable: the cluster's own signer can be used, but where clients reach the API server is not
	// known.
	CodeClusterInfoUnavailable = "ClusterInfoUnavailable"
	// CodeUserAccountsNotPermitted: the agent may not manage users' service accounts.
	CodeUserAccountsNotPermitted = "UserAccountsNotPermitted"
	// CodeUserAccountsUnguarded: no admission policy limits what the agent may write for users' service accounts.
	CodeUserAccountsUnguarded = "UserAccountsUnguarded"
	// CodeUserAccountsUnavailable: a token of a service account did not work in a test.
	CodeUserAccountsUnavailable = "UserAccountsUnavailable"
	// CodeUserAccountsUsed: users get tokens of service accounts.
	CodeUserAccountsUsed = "UserAccountsUsed"
	// CodeFindingsOmitted: there are more findings than the status lists.
	CodeFindingsOmitted = "FindingsOmitted"
)
