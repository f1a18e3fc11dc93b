package v1alpha1

// The codes of findings that are not about a certificate. See `pinniped explain` for those about certificates.
const (
	// CodeSpecInvalid: the spec is inconsistent, or has an invalid value.
	CodeSpecInvalid = "SpecInvalid"
	// CodeNodesUnreadable: the mode is auto, and the nodes could not be listed.
	CodeNodesUnreadable = "NodesUnreadable"
	// CodeDisabledBySpec: the proxy is off because of the mode.
	CodeDisabledBySpec = "DisabledBySpec"
	// CodeDisabledByNodes: the proxy is off because the mode is auto and the cluster has visible control-plane nodes.
	CodeDisabledByNodes = "DisabledByNodes"
	// CodeServiceNotApplied: the Service in front of the proxy could not be created or updated.
	CodeServiceNotApplied = "ServiceNotApplied"
	// CodeServiceClassDiffers: the loadBalancerClass of the Service differs from the spec, and is immutable.
	CodeServiceClassDiffers = "ServiceClassDiffers"
	// CodeServiceAddressPending: the Service has no address yet.
	CodeServiceAddressPending = "ServiceAddressPending"
	// CodeServiceAddressInvalid: the Service has addresses, but none is usable.
	CodeServiceAddressInvalid = "ServiceAddressInvalid"
	// CodeSignerUnavailable: the CA that signs client certificates could not be loaded or created.
	CodeSignerUnavailable = "SignerUnavailable"
	// CodeSecretUnreadable: the Secret that the spec names could not be read.
	CodeSecretUnreadable = "SecretUnreadable"
	// CodePermissionUnknown: it is unknown whether a Secret of another namespace may be used.
	CodePermissionUnknown = "PermissionUnknown"
	// CodePermissionWithdrawn: a certificate of another namespace must be taken out of service, and its replacement is
	// not available yet.
	CodePermissionWithdrawn = "PermissionWithdrawn"
	// CodeGeneratedCertificateUnavailable: the agent could not issue its own certificate or CA.
	CodeGeneratedCertificateUnavailable = "GeneratedCertificateUnavailable"
	// CodeLastKnownGoodNotKept: the backup of the certificate in service could not be read, written or deleted.
	CodeLastKnownGoodNotKept = "LastKnownGoodNotKept"
	// CodeRevisionsNotKept: the published revisions could not be read or written.
	CodeRevisionsNotKept = "RevisionsNotKept"
	// CodeTransitionPrepared: a new certificate, from a renewal or a changed spec, is not served yet, because clients
	// in use would stop verifying: see status.transition.
	CodeTransitionPrepared = "TransitionPrepared"
	// CodeCleanupFailed: an obsolete object could not be deleted.
	CodeCleanupFailed = "CleanupFailed"
	// CodeProxyNotStarted: the proxy cannot listen.
	CodeProxyNotStarted = "ProxyNotStarted"
	// CodeProxyNotStopped: the proxy did not shut down cleanly.
	CodeProxyNotStopped = "ProxyNotStopped"
	// CodeWaitingForLeader: the leader has to write something before this replica can continue.
	CodeWaitingForLeader = "WaitingForLeader"
	// CodeWriteConflict: another program changed an object concurrently. The agent retries.
	CodeWriteConflict = "WriteConflict"
	// CodeSetupFailed: any other error; see the message.
	CodeSetupFailed = "SetupFailed"
	// CodeUpstreamCredentialExcess: the proxy's own credential has more permissions than impersonation needs.
	CodeUpstreamCredentialExcess = "UpstreamCredentialExcess"
	// CodeKubernetesTooOld: the version of Kubernetes is unsupported.
	CodeKubernetesTooOld = "KubernetesTooOld"
	// CodeAuthenticatorUnknown: spec.impersonationProxy.bearerTokens names authenticators that do not exist.
	CodeAuthenticatorUnknown = "AuthenticatorUnknown"
	// CodeLoginUnavailable: spec.impersonationProxy.kubeconfig has logins whose authenticator is missing or not ready.
	CodeLoginUnavailable = "LoginUnavailable"
	// CodeLastKnownGoodCertificateServed: the spec does not take effect, and the last known good certificate stays in
	// service.
	CodeLastKnownGoodCertificateServed = "LastKnownGoodCertificateServed"
	// CodeGeneratedCertificateServed: the generated certificate is served instead of one that may not be used.
	CodeGeneratedCertificateServed = "GeneratedCertificateServed"
	// CodeClusterKeyUnavailable: the strategy that uses the cluster's own signing key is not available.
	CodeClusterKeyUnavailable = "ClusterKeyUnavailable"
	// CodeClusterSignerUsed: users get certificates from the cluster's own signer.
	CodeClusterSignerUsed = "ClusterSignerUsed"
	// CodeClusterSignerUnavailable: the agent is configured to use the cluster's own signer, which issues no usable
	// certificates.
	CodeClusterSignerUnavailable = "ClusterSignerUnavailable"
	// CodeClusterInfoUnavailable: it is unknown how clients reach the API server.
	CodeClusterInfoUnavailable = "ClusterInfoUnavailable"
	// CodeUserAccountsNotPermitted: the agent may not manage users' service accounts.
	CodeUserAccountsNotPermitted = "UserAccountsNotPermitted"
	// CodeUserAccountsUnguarded: no admission policy limits what the agent can write for users' service accounts.
	CodeUserAccountsUnguarded = "UserAccountsUnguarded"
	// CodeUserAccountsUnavailable: a token of a service account did not work in a test.
	CodeUserAccountsUnavailable = "UserAccountsUnavailable"
	// CodeUserAccountsUsed: users get tokens of service accounts.
	CodeUserAccountsUsed = "UserAccountsUsed"
	// CodeFindingsOmitted: there are more findings than the status lists.
	CodeFindingsOmitted = "FindingsOmitted"
)
