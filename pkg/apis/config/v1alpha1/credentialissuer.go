package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StrategyType names one way in which the agent tries to give clients access to the cluster.
// +kubebuilder:validation:Enum=KubeClusterSigningCertificate;ImpersonationProxy;ServiceAccountToken
type StrategyType string

// The strategies. A CredentialIssuer always lists the first two, and all of them in this order.
const (
	// StrategyKubeClusterSigningCertificate issues certificates from the cluster's own signer.
	StrategyKubeClusterSigningCertificate StrategyType = "KubeClusterSigningCertificate"
	// StrategyImpersonationProxy serves the Kubernetes API through the agent's impersonation proxy.
	StrategyImpersonationProxy StrategyType = "ImpersonationProxy"
	// StrategyServiceAccountToken gives each user the token of a service account that may impersonate that user alone. It
	// is listed only while it is switched on.
	StrategyServiceAccountToken StrategyType = "ServiceAccountToken"
)

// FrontendType names how a client connects under a strategy.
// +kubebuilder:validation:Enum=TokenCredentialRequestAPI;ImpersonationProxy
type FrontendType string

// The frontends.
const (
	// FrontendTokenCredentialRequestAPI means: log in at the cluster's own API server.
	FrontendTokenCredentialRequestAPI FrontendType = "TokenCredentialRequestAPI"
	// FrontendImpersonationProxy means: log in at, and send every request to, the impersonation proxy.
	FrontendImpersonationProxy FrontendType = "ImpersonationProxy"
)

// StrategyStatus says whether a strategy works.
// +kubebuilder:validation:Enum=Success;Error
type StrategyStatus string

// The states of a strategy.
const (
	// StrategySuccess means that clients can use the strategy's frontend.
	StrategySuccess StrategyStatus = "Success"
	// StrategyError means that they cannot; the reason and the message say why.
	StrategyError StrategyStatus = "Error"
)

// StrategyReason says in one word why a strategy has its status.
// +kubebuilder:validation:Enum=Listening;Pending;Disabled;ErrorDuringSetup;CouldNotFetchKey;CouldNotGetClusterInfo;FetchedKey;IssuingTokens
type StrategyReason string

// The reasons.
const (
	ReasonListening              StrategyReason = "Listening"
	ReasonPending                StrategyReason = "Pending"
	ReasonDisabled               StrategyReason = "Disabled"
	ReasonErrorDuringSetup       StrategyReason = "ErrorDuringSetup"
	ReasonCouldNotFetchKey       StrategyReason = "CouldNotFetchKey"
	ReasonCouldNotGetClusterInfo StrategyReason = "CouldNotGetClusterInfo"
	ReasonFetchedKey             StrategyReason = "FetchedKey"
	ReasonIssuingTokens          StrategyReason = "IssuingTokens"
)

// ImpersonationProxyMode says when the impersonation proxy runs.
// +kubebuilder:validation:Enum=auto;enabled;disabled
type ImpersonationProxyMode string

// The modes.
const (
	// ImpersonationProxyModeAuto runs the proxy on clusters that show no control-plane nodes.
	ImpersonationProxyModeAuto ImpersonationProxyMode = "auto"
	// ImpersonationProxyModeEnabled always runs the proxy.
	ImpersonationProxyModeEnabled ImpersonationProxyMode = "enabled"
	// ImpersonationProxyModeDisabled never runs the proxy.
	ImpersonationProxyModeDisabled ImpersonationProxyMode = "disabled"
)

// ImpersonationProxyServiceType says which Service the agent makes in front of the proxy.
// +kubebuilder:validation:Enum=LoadBalancer;ClusterIP;None
type ImpersonationProxyServiceType string

// The Service types.
const (
	// ServiceTypeLoadBalancer makes a Service of type LoadBalancer.
	ServiceTypeLoadBalancer ImpersonationProxyServiceType = "LoadBalancer"
	// ServiceTypeClusterIP makes a Service of type ClusterIP, for example behind an ingress with TLS passthrough.
	ServiceTypeClusterIP ImpersonationProxyServiceType = "ClusterIP"
	// ServiceTypeNone makes no Service; spec.impersonationProxy.externalEndpoint is then required.
	ServiceTypeNone ImpersonationProxyServiceType = "None"
)

// TLSVerification says what happens when a serving certificate does not cover a name that clients will use.
// +kubebuilder:validation:Enum=Enforce;Warn
type TLSVerification string

// The kinds of verification.
const (
	// VerificationEnforce refuses such a certificate: the last good one stays in service.
	VerificationEnforce TLSVerification = "Enforce"
	// VerificationWarn serves it and says so in the strategy's message.
	VerificationWarn TLSVerification = "Warn"
)

// CredentialIssuer configures the agent and reports how clients can get access to this cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=pinniped,scope=Cluster
// +kubebuilder:printcolumn:name="ProxyMode",type=string,JSONPath=`.spec.impersonationProxy.mode`
// +kubebuilder:printcolumn:name="DefaultStrategy",type=string,JSONPath=`.status.strategies[?(@.status == "Success")].type`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.strategies[?(@.type == "ImpersonationProxy")].reason`
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.status.strategies[?(@.type == "ImpersonationProxy")].frontend.impersonationProxyInfo.endpoint`
// +kubebuilder:printcolumn:name="Expires",type=string,priority=1,JSONPath=`.status.servingCertificate.notAfter`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:subresource:status
type CredentialIssuer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the intended configuration of the agent.
	Spec CredentialIssuerSpec `json:"spec"`

	// status is what the agent reports.
	// +optional
	Status CredentialIssuerStatus `json:"status,omitempty"`
}

// CredentialIssuerList is a list of CredentialIssuers.
//
// +kubebuilder:object:root=true
type CredentialIssuerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CredentialIssuer `json:"items"`
}

// CredentialIssuerSpec is the intended configuration of the agent.
type CredentialIssuerSpec struct {
	// impersonationProxy configures the impersonation proxy.
	ImpersonationProxy *ImpersonationProxySpec `json:"impersonationProxy"`

	// serviceAccountTokens lets users in with tokens of service accounts, at the cluster's own API server, without an
	// impersonation proxy and without a signer. It is for clusters that have no load balancer. If it is absent, it is
	// off.
	//
	// +optional
	ServiceAccountTokens *ServiceAccountTokensSpec `json:"serviceAccountTokens,omitempty"`
}

// ServiceAccountTokensMode says whether users get tokens of service accounts.
// +kubebuilder:validation:Enum=enabled;disabled
type ServiceAccountTokensMode string

// The modes.
const (
	// ServiceAccountTokensModeEnabled gives tokens of service accounts to users who ask for them, and to all users while
	// no other strategy works.
	ServiceAccountTokensModeEnabled ServiceAccountTokensMode = "enabled"
	// ServiceAccountTokensModeDisabled gives none, and deletes the service accounts that were made.
	ServiceAccountTokensModeDisabled ServiceAccountTokensMode = "disabled"
)

// ServiceAccountTokensSpec configures the strategy ServiceAccountToken.
type ServiceAccountTokensSpec struct {
	// mode is "enabled" or "disabled". The agent needs the rights in deploy/serviceaccounttokens for it.
	//
	// +kubebuilder:default=disabled
	// +optional
	Mode ServiceAccountTokensMode `json:"mode,omitempty"`

	// maxUsers is how many users may have a service account at a time; a service account is deleted an hour or two after
	// its last login. Each is a ClusterRoleBinding, which the API server looks at for every request.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=1000
	// +optional
	MaxUsers int32 `json:"maxUsers,omitempty"`
}

// ImpersonationProxySpec configures the impersonation proxy.
type ImpersonationProxySpec struct {
	// mode says when the impersonation proxy runs: "auto" (on clusters without visible control-plane nodes, as
	// managed clusters are), "enabled" or "disabled".
	Mode ImpersonationProxyMode `json:"mode"`

	// service configures the Service that the agent makes in front of the impersonation proxy.
	//
	// +kubebuilder:default:={"type": "LoadBalancer"}
	Service ImpersonationProxyServiceSpec `json:"service"`

	// externalEndpoint is where clients reach the impersonation proxy, as HOST or HOST:PORT; it is not a URL.
	// If it is empty, the address of the Service is advertised. It is required when service.type is "None".
	//
	// +optional
	ExternalEndpoint string `json:"externalEndpoint,omitempty"`

	// tls makes the impersonation proxy serve a certificate that you bring. If it is absent, the agent generates a
	// CA and a serving certificate of its own.
	//
	// +optional
	TLS *ImpersonationProxyTLSSpec `json:"tls,omitempty"`

	// bearerTokens lets clients present tokens of authenticators straight to the impersonation proxy, as bearer tokens,
	// without a plugin that exchanges them for a certificate. If it is absent, only the cluster's own bearer tokens are
	// accepted.
	//
	// +optional
	BearerTokens *BearerTokensSpec `json:"bearerTokens,omitempty"`
}

// BearerTokensSpec says which tokens clients may present to the impersonation proxy as bearer tokens, beside those of
// the cluster itself.
type BearerTokensSpec struct {
	// authenticators names JWTAuthenticators and WebhookAuthenticators. A token of a JWTAuthenticator's issuer and
	// audience is verified by that one alone. Any other is shown to the cluster, and if the cluster refuses it, to the
	// webhooks, in this order.
	//
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Authenticators []string `json:"authenticators,omitempty"`
}

// ImpersonationProxyServiceSpec configures the Service in front of the impersonation proxy.
type ImpersonationProxyServiceSpec struct {
	// type is "LoadBalancer", "ClusterIP" or "None".
	//
	// +kubebuilder:default=LoadBalancer
	Type ImpersonationProxyServiceType `json:"type,omitempty"`

	// loadBalancerIP is the IP address that the Service of type LoadBalancer asks its cloud for. Not every cloud
	// supports it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +optional
	LoadBalancerIP string `json:"loadBalancerIP,omitempty"`

	// annotations are set on the Service.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// loadBalancerSourceRanges are the networks from which the Service of type LoadBalancer lets clients in, each as a
	// CIDR such as "192.0.2.0/24" or "2001:db8::/32". Empty means everywhere. Not every cloud supports it.
	//
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=atomic
	// +optional
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// loadBalancerClass says which load balancer implementation takes care of the Service of type LoadBalancer. Empty
	// means the cluster's default. Kubernetes does not let it change while the Service exists: a change here is
	// reported, and takes effect when the Service is deleted: the agent then creates it again.
	//
	// +kubebuilder:validation:MaxLength=317
	// +optional
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`

	// ipFamilyPolicy asks for IPv4 and IPv6 on the Service, of either type, as spec.ipFamilyPolicy of a Service does.
	// Empty leaves it to the cluster, and to other clients that set it on the Service.
	//
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	// +optional
	IPFamilyPolicy string `json:"ipFamilyPolicy,omitempty"`
}

// ImpersonationProxyTLSSpec says which certificate the impersonation proxy serves and which CA bundle is advertised.
type ImpersonationProxyTLSSpec struct {
	// certificateAuthorityData is the CA bundle to advertise to clients: PEM, encoded as base64. The impersonation
	// proxy itself does not use it to serve. Several CA certificates help to change the CA without an outage.
	// If it is empty, the key "ca.crt" of the Secret named by secretName is advertised. If there is none either,
	// no CA bundle is advertised, and clients verify the certificate with their system roots.
	//
	// +optional
	CertificateAuthorityData string `json:"certificateAuthorityData,omitempty"`

	// secretName names the Secret that holds the certificate chain (key "tls.crt"), its private key (key "tls.key") and
	// perhaps the CA bundle (key "ca.crt"), of type kubernetes.io/tls or Opaque: NAME in the agent's own namespace, or
	// NAMESPACE/NAME. One of another namespace is used only while a TLSCertificateDelegation (projectcontour.io/v1) of
	// that namespace names it and the agent's namespace, and RBAC lets the agent read it. When that is withdrawn, the
	// agent goes back to the certificate that it generates.
	//
	// +kubebuilder:validation:MinLength=1
	SecretName string `json:"secretName,omitempty"`

	// verification says what happens when the certificate does not cover a name that clients use: "Enforce" refuses it,
	// and the last good certificate stays in service; "Warn" serves it and says so in the status. If it is absent, such
	// a certificate is refused while another is in service that is valid and covers all those names, and served with a
	// warning where there is no better one.
	//
	// +optional
	Verification TLSVerification `json:"verification,omitempty"`
}

// CredentialIssuerStatus is what the agent reports.
type CredentialIssuerStatus struct {
	// strategies says of each strategy whether it works, and how clients use it.
	//
	// +listType=map
	// +listMapKey=type
	Strategies []CredentialIssuerStrategy `json:"strategies"`

	// servingCertificate says which certificate the impersonation proxy serves, and which replicas of the agent do. It
	// is absent while the proxy is off or has no certificate, and in a CredentialIssuer that another program than this
	// agent reports to.
	//
	// +optional
	ServingCertificate *ServingCertificateStatus `json:"servingCertificate,omitempty"`

	// objects names the objects that the agent makes and reads, as its configuration names them, so that clients need
	// not guess. It is absent in a CredentialIssuer that another program than this agent reports to.
	//
	// +optional
	Objects *ObjectNames `json:"objects,omitempty"`

	// observedGeneration is the metadata.generation of the spec that strategies tell about. While it is smaller than
	// the current one, the agent has not looked at the spec yet. It is absent in a CredentialIssuer that another program
	// than this agent reports to.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// ObjectNames names the agent's objects. All of them are in one namespace, and each may be missing while it is not
// needed.
type ObjectNames struct {
	// namespace is the namespace of the agent and of its objects.
	//
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`

	// loadBalancerService is the Service of type LoadBalancer in front of the impersonation proxy.
	//
	// +kubebuilder:validation:MinLength=1
	LoadBalancerService string `json:"loadBalancerService"`

	// clusterIPService is the Service of type ClusterIP in front of the impersonation proxy.
	//
	// +kubebuilder:validation:MinLength=1
	ClusterIPService string `json:"clusterIPService"`

	// generatedCertificateSecret holds the serving certificate that the agent generates.
	//
	// +kubebuilder:validation:MinLength=1
	GeneratedCertificateSecret string `json:"generatedCertificateSecret"`

	// generatedCASecret holds the CA of the serving certificate that the agent generates.
	//
	// +kubebuilder:validation:MinLength=1
	GeneratedCASecret string `json:"generatedCASecret"`

	// lastGoodCertificateSecret holds the agent's copy of the external certificate in service.
	//
	// +kubebuilder:validation:MinLength=1
	LastGoodCertificateSecret string `json:"lastGoodCertificateSecret"`

	// serviceAccount is as which ServiceAccount of that namespace the agent reads Secrets. It is absent when the agent
	// runs as somebody else.
	//
	// +optional
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// ServingCertificateSource names where a serving certificate comes from.
// +kubebuilder:validation:Enum=Generated;Secret
type ServingCertificateSource string

// The sources of serving certificates.
const (
	// ServingCertificateGenerated is the agent's own certificate, of its own CA.
	ServingCertificateGenerated ServingCertificateSource = "Generated"
	// ServingCertificateSecret is a certificate that an admin brought, in the Secret that
	// spec.impersonationProxy.tls.secretName named.
	ServingCertificateSecret ServingCertificateSource = "Secret"
)

// ServingCertificateStatus says which certificate the leading replica serves, and which replicas serve the same one.
// While what the spec asks for is refused, this is the last good certificate, which stays in service; the strategy's
// message says what is wrong.
type ServingCertificateStatus struct {
	// source is "Generated" or "Secret".
	Source ServingCertificateSource `json:"source"`

	// secretName names the Secret that the certificate came from: NAME in the agent's own namespace, NAMESPACE/NAME in
	// another one.
	//
	// +kubebuilder:validation:MinLength=1
	SecretName string `json:"secretName"`

	// sha256 is the fingerprint of the certificate (the leaf) in lower-case hex, as `pinniped ip-tls` prints it.
	//
	// +kubebuilder:validation:MinLength=1
	SHA256 string `json:"sha256"`

	// notBefore is when the certificate became valid.
	NotBefore metav1.Time `json:"notBefore"`

	// notAfter is when the certificate expires.
	NotAfter metav1.Time `json:"notAfter"`

	// dnsNames are the DNS names that the certificate covers.
	//
	// +listType=atomic
	// +optional
	DNSNames []string `json:"dnsNames,omitempty"`

	// ipAddresses are the IP addresses that the certificate covers.
	//
	// +listType=atomic
	// +optional
	IPAddresses []string `json:"ipAddresses,omitempty"`

	// servedSince is when the leading replica put the certificate into service.
	ServedSince metav1.Time `json:"servedSince"`

	// replicas is how many replicas of the agent run, as far as they have reported within the last minute.
	Replicas int32 `json:"replicas"`

	// servingReplicas is how many of them serve exactly this certificate. All is well when it equals replicas.
	ServingReplicas int32 `json:"servingReplicas"`

	// otherReplicas are those that do not, each with the reason; at most 20 are listed.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	// +optional
	OtherReplicas []OtherReplica `json:"otherReplicas,omitempty"`
}

// OtherReplica is a replica of the agent that does not serve the certificate that the leading one serves.
type OtherReplica struct {
	// name is the name of the replica's pod.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// sha256 is the fingerprint of the certificate that the replica serves instead; absent when it serves none.
	//
	// +optional
	SHA256 string `json:"sha256,omitempty"`

	// message says why, for people. It begins with a code that `pinniped explain` knows when a certificate was refused.
	//
	// +kubebuilder:validation:MinLength=1
	Message string `json:"message"`
}

// CredentialIssuerStrategy says whether one strategy works, and how clients use it.
type CredentialIssuerStrategy struct {
	// type is the strategy that was tried.
	Type StrategyType `json:"type"`

	// status is "Success" or "Error".
	Status StrategyStatus `json:"status"`

	// reason says in one word why.
	Reason StrategyReason `json:"reason"`

	// message says why in a sentence, for people.
	//
	// +kubebuilder:validation:MinLength=1
	Message string `json:"message"`

	// findings are what is wrong or worth knowing, the most severe first. message tells people the same; programs read
	// the codes here.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +optional
	Findings []StrategyFinding `json:"findings,omitempty"`

	// lastUpdateTime is when this entry last changed.
	LastUpdateTime metav1.Time `json:"lastUpdateTime"`

	// frontend says how clients connect under this strategy.
	//
	// +optional
	Frontend *CredentialIssuerFrontend `json:"frontend,omitempty"`
}

// FindingSeverity says how bad a finding is.
// +kubebuilder:validation:Enum=Error;Warning;Info
type FindingSeverity string

// The severities.
const (
	// FindingError means that what the spec asks for does not take effect.
	FindingError FindingSeverity = "Error"
	// FindingWarning means that it does, and that some clients are hurt, or will be.
	FindingWarning FindingSeverity = "Warning"
	// FindingInfo means that the finding asks for no action.
	FindingInfo FindingSeverity = "Info"
)

// StrategyFinding is one thing that is wrong with a strategy, or worth knowing about it.
type StrategyFinding struct {
	// code is a stable CamelCase word. `pinniped explain CODE` tells cause, consequence and mending of those about
	// certificates.
	//
	// +kubebuilder:validation:MinLength=1
	Code string `json:"code"`

	// severity is "Error", "Warning" or "Info".
	Severity FindingSeverity `json:"severity"`

	// message says it in a sentence, for people.
	//
	// +kubebuilder:validation:MinLength=1
	Message string `json:"message"`
}

// CredentialIssuerFrontend says how clients connect: type tells which of the other fields is set.
//
// +union
type CredentialIssuerFrontend struct {
	// type tells which of the other fields is set.
	//
	// +unionDiscriminator
	Type FrontendType `json:"type"`

	// tokenCredentialRequestInfo is set when type is TokenCredentialRequestAPI.
	//
	// +optional
	TokenCredentialRequestAPIInfo *TokenCredentialRequestAPIInfo `json:"tokenCredentialRequestInfo,omitempty"`

	// impersonationProxyInfo is set when type is ImpersonationProxy.
	//
	// +optional
	ImpersonationProxyInfo *ImpersonationProxyInfo `json:"impersonationProxyInfo,omitempty"`
}

// TokenCredentialRequestAPIInfo says where the cluster's own API server is.
type TokenCredentialRequestAPIInfo struct {
	// server is the URL of the Kubernetes API server.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^https://|^http://`
	Server string `json:"server"`

	// certificateAuthorityData is the API server's CA bundle: PEM, encoded as base64.
	//
	// +kubebuilder:validation:MinLength=1
	CertificateAuthorityData string `json:"certificateAuthorityData"`
}

// ImpersonationProxyInfo says where the impersonation proxy is and how to verify it.
type ImpersonationProxyInfo struct {
	// endpoint is the URL of the impersonation proxy.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^https://`
	Endpoint string `json:"endpoint"`

	// certificateAuthorityData is the CA bundle to verify the impersonation proxy with: PEM, encoded as base64.
	// It is empty when the certificate is to be verified with the client's system roots.
	CertificateAuthorityData string `json:"certificateAuthorityData"`
}
