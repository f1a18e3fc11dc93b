package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ImpersonationProxyMode says when the impersonation proxy runs.
// +kubebuilder:validation:Enum=auto;enabled;disabled
type ImpersonationProxyMode string

// The modes.
const (
	// ImpersonationProxyModeAuto runs the proxy on clusters without visible control-plane nodes.
	ImpersonationProxyModeAuto ImpersonationProxyMode = "auto"
	// ImpersonationProxyModeEnabled always runs the proxy.
	ImpersonationProxyModeEnabled ImpersonationProxyMode = "enabled"
	// ImpersonationProxyModeDisabled never runs the proxy.
	ImpersonationProxyModeDisabled ImpersonationProxyMode = "disabled"
)

// ImpersonationProxyServiceType says which Service the agent creates in front of the proxy.
// +kubebuilder:validation:Enum=LoadBalancer;ClusterIP;None
type ImpersonationProxyServiceType string

// The Service types.
const (
	// ServiceTypeLoadBalancer creates a Service of type LoadBalancer.
	ServiceTypeLoadBalancer ImpersonationProxyServiceType = "LoadBalancer"
	// ServiceTypeClusterIP creates a Service of type ClusterIP, for example behind an ingress with TLS passthrough.
	ServiceTypeClusterIP ImpersonationProxyServiceType = "ClusterIP"
	// ServiceTypeNone creates no Service; spec.impersonationProxy.externalEndpoint is then required.
	ServiceTypeNone ImpersonationProxyServiceType = "None"
)

// TLSVerification says what happens when a serving certificate does not cover a name that clients will use.
// +kubebuilder:validation:Enum=Enforce;Warn
type TLSVerification string

// The values of TLSVerification.
const (
	// VerificationEnforce refuses such a certificate: the last known good one stays in service.
	VerificationEnforce TLSVerification = "Enforce"
	// VerificationWarn serves it, with a warning in the strategy's message.
	VerificationWarn TLSVerification = "Warn"
)

// CATransition says how the serving certificate is replaced by one that existing clients do not verify.
// +kubebuilder:validation:Enum=DualTrust;Immediate
type CATransition string

// The values of CATransition.
const (
	// CATransitionDualTrust publishes both trust bundles, and serves the old certificate until clients trust the new CA.
	CATransitionDualTrust CATransition = "DualTrust"
	// CATransitionImmediate serves the new certificate at once.
	CATransitionImmediate CATransition = "Immediate"
)

// CredentialIssuer configures the agent, and reports how clients log in to this cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=pinniped,scope=Cluster
// +kubebuilder:printcolumn:name="ProxyMode",type=string,JSONPath=`.spec.impersonationProxy.mode`
// +kubebuilder:printcolumn:name="DefaultStrategy",type=string,JSONPath=`.status.strategies[?(@.status == "Success")].type`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.strategies[?(@.type == "ImpersonationProxy")].reason`
// +kubebuilder:printcolumn:name="Transition",type=string,JSONPath=`.status.transition.phase`
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

	// serviceAccountTokens lets users log in to the cluster's API server with service account tokens, without an
	// impersonation proxy or a signer. It is meant for clusters without a load balancer, and disabled if absent.
	//
	// +optional
	ServiceAccountTokens *ServiceAccountTokensSpec `json:"serviceAccountTokens,omitempty"`
}

// ServiceAccountTokensMode says whether users get tokens of service accounts.
// +kubebuilder:validation:Enum=enabled;disabled
type ServiceAccountTokensMode string

// The modes.
const (
	// ServiceAccountTokensModeEnabled issues service account tokens to users who request them, and to all users while no
	// other strategy works.
	ServiceAccountTokensModeEnabled ServiceAccountTokensMode = "enabled"
	// ServiceAccountTokensModeDisabled issues none, and deletes the existing service accounts of users.
	ServiceAccountTokensModeDisabled ServiceAccountTokensMode = "disabled"
)

// ServiceAccountTokensSpec configures the strategy ServiceAccountToken.
type ServiceAccountTokensSpec struct {
	// mode is "enabled" or "disabled". "enabled" requires the permissions in deploy/serviceaccounttokens.
	//
	// +kubebuilder:default=disabled
	// +optional
	Mode ServiceAccountTokensMode `json:"mode,omitempty"`

	// maxUsers limits the number of users' service accounts. A user has one for each authenticator and set of groups. An
	// account is deleted one to two hours after the last login with it. Each account needs a ClusterRoleBinding, which the
	// API server evaluates for every request.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=1000
	// +optional
	MaxUsers int32 `json:"maxUsers,omitempty"`
}

// ImpersonationProxySpec configures the impersonation proxy.
type ImpersonationProxySpec struct {
	// mode says when the impersonation proxy runs: "auto" (on clusters without visible control-plane nodes, such
	// as managed clusters), "enabled" or "disabled".
	Mode ImpersonationProxyMode `json:"mode"`

	// service configures the Service that the agent creates in front of the impersonation proxy.
	//
	// +kubebuilder:default:={"type": "LoadBalancer"}
	Service ImpersonationProxyServiceSpec `json:"service"`

	// externalEndpoint is where clients reach the impersonation proxy, as HOST or HOST:PORT; it is not a URL.
	// If it is empty, the address of the Service is published. It is required when service.type is "None".
	//
	// +optional
	ExternalEndpoint string `json:"externalEndpoint,omitempty"`

	// tls configures an external serving certificate for the impersonation proxy. If it is absent, the agent generates a
	// CA and a serving certificate.
	//
	// +optional
	TLS *ImpersonationProxyTLSSpec `json:"tls,omitempty"`

	// bearerTokens lets clients present authenticators' tokens directly to the impersonation proxy, without a plugin
	// that exchanges them for a certificate. If it is absent, only the cluster's own bearer tokens are accepted.
	//
	// +optional
	BearerTokens *BearerTokensSpec `json:"bearerTokens,omitempty"`

	// kubeconfig describes how users log in. `pinniped get kubeconfig` takes its defaults from it, and the impersonation
	// proxy publishes it to unauthenticated clients. If it is absent, the proxy publishes nothing.
	//
	// +optional
	Kubeconfig *KubeconfigSpec `json:"kubeconfig,omitempty"`
}

// BearerTokensSpec says which bearer tokens the impersonation proxy accepts in addition to those of the cluster.
type BearerTokensSpec struct {
	// authenticators lists the authenticators. A token with a JWTAuthenticator's issuer and audience is verified by that
	// authenticator only. Any other token is sent to the cluster, and if the cluster rejects it, to the
	// WebhookAuthenticators in the listed order. No webhook receives JSON Web Tokens by default: see unknownIssuers.
	//
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +optional
	Authenticators []BearerTokenAuthenticator `json:"authenticators,omitempty"`
}

// AuthenticatorKind is the kind of an authenticator.
// +kubebuilder:validation:Enum=JWTAuthenticator;WebhookAuthenticator
type AuthenticatorKind string

// The kinds of authenticators.
const (
	AuthenticatorKindJWT     AuthenticatorKind = "JWTAuthenticator"
	AuthenticatorKindWebhook AuthenticatorKind = "WebhookAuthenticator"
)

// BearerTokenAuthenticator is an authenticator whose tokens clients may present as bearer tokens.
//
// +kubebuilder:validation:XValidation:rule="self.kind == 'WebhookAuthenticator' || !has(self.unknownIssuers) || !self.unknownIssuers",message="only a WebhookAuthenticator can have unknownIssuers"
type BearerTokenAuthenticator struct {
	// kind is "JWTAuthenticator" or "WebhookAuthenticator".
	Kind AuthenticatorKind `json:"kind"`

	// name of the authenticator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// unknownIssuers also sends JSON Web Tokens to a WebhookAuthenticator if no JWTAuthenticator has their issuer. The
	// webhook could use these tokens elsewhere.
	//
	// +optional
	UnknownIssuers bool `json:"unknownIssuers,omitempty"`
}

// ImpersonationProxyServiceSpec configures the Service in front of the impersonation proxy.
type ImpersonationProxyServiceSpec struct {
	// type is "LoadBalancer", "ClusterIP" or "None".
	//
	// +kubebuilder:default=LoadBalancer
	Type ImpersonationProxyServiceType `json:"type,omitempty"`

	// loadBalancerIP is the IP address that the Service of type LoadBalancer requests. Not every cloud supports it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +optional
	LoadBalancerIP string `json:"loadBalancerIP,omitempty"`

	// annotations are set on the Service.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// loadBalancerSourceRanges are the networks from which the Service of type LoadBalancer accepts clients, each as a
	// CIDR such as "192.0.2.0/24" or "2001:db8::/32". Empty means everywhere. Not every cloud supports it.
	//
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=atomic
	// +optional
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// loadBalancerClass selects the load balancer implementation for the Service of type LoadBalancer. Empty means the
	// cluster's default. The class of an existing Service is immutable: the agent reports a change, which takes effect
	// when you delete the Service and the agent recreates it.
	//
	// +kubebuilder:validation:MaxLength=317
	// +optional
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`

	// ipFamilyPolicy is spec.ipFamilyPolicy of the Service. If it is empty, the agent does not set it.
	//
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	// +optional
	IPFamilyPolicy string `json:"ipFamilyPolicy,omitempty"`
}

// CertificateAuthorityDataSourceKind is the kind of object that holds a CA bundle.
//
// +kubebuilder:validation:Enum=ConfigMap;Secret;ClusterTrustBundle
type CertificateAuthorityDataSourceKind string

// The kinds of object that may hold a CA bundle.
const (
	SourceConfigMap          CertificateAuthorityDataSourceKind = "ConfigMap"
	SourceSecret             CertificateAuthorityDataSourceKind = "Secret"
	SourceClusterTrustBundle CertificateAuthorityDataSourceKind = "ClusterTrustBundle"
)

// CertificateAuthorityDataSourceSpec names the object that holds a CA bundle.
//
// +kubebuilder:validation:XValidation:rule="(self.kind == 'ClusterTrustBundle') != has(self.key)",message="key is required with a ConfigMap or a Secret, and cannot be combined with a ClusterTrustBundle"
type CertificateAuthorityDataSourceSpec struct {
	// kind is "ConfigMap" or "Secret" (an object in the agent's namespace), or "ClusterTrustBundle" (if the API server
	// serves certificates.k8s.io/v1 or v1beta1).
	Kind CertificateAuthorityDataSourceKind `json:"kind"`

	// name of the object.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// key in the ConfigMap or Secret that holds the CA bundle, as PEM.
	//
	// +kubebuilder:validation:MinLength=1
	// +optional
	Key string `json:"key,omitempty"`
}

// String returns the kind and name, and the key, if there is one.
func (s CertificateAuthorityDataSourceSpec) String() string {
	text := fmt.Sprintf("%s %q", s.Kind, s.Name)
	if s.Key != "" {
		text += fmt.Sprintf(", key %q", s.Key)
	}
	return text
}

// ImpersonationProxyTLSSpec says which certificate the impersonation proxy serves and which CA bundle is published.
//
// +kubebuilder:validation:XValidation:rule="!has(self.certificateAuthorityDataSource) || !has(self.certificateAuthorityData) || size(self.certificateAuthorityData) == 0",message="certificateAuthorityData and certificateAuthorityDataSource cannot both be set"
type ImpersonationProxyTLSSpec struct {
	// certificateAuthorityData is the CA bundle to publish to clients: PEM, encoded as base64. It may contain several CA
	// certificates. If it is empty, the key "ca.crt" of the Secret in secretName is published. If that is missing too, no
	// CA bundle is published, and clients verify the certificate with their system roots.
	//
	// +optional
	CertificateAuthorityData string `json:"certificateAuthorityData,omitempty"`

	// certificateAuthorityDataSource names an object with the CA bundle to publish, instead of certificateAuthorityData.
	// The agent watches the object; a change of its CA bundle is a CA transition. While the object has no usable CA
	// bundle, the current certificate and CA bundle stay in service.
	//
	// +optional
	CertificateAuthorityDataSource *CertificateAuthorityDataSourceSpec `json:"certificateAuthorityDataSource,omitempty"`

	// secretName is the Secret with the certificate chain (key "tls.crt"), its private key (key "tls.key") and,
	// optionally, the CA bundle (key "ca.crt"): NAME in the agent's namespace, or NAMESPACE/NAME. Its type is
	// kubernetes.io/tls or Opaque. A Secret in another namespace is used only while a TLSCertificateDelegation
	// (projectcontour.io/v1) in that namespace names it and the agent's namespace, and RBAC lets the agent read it. When
	// that permission is withdrawn, the agent returns to its generated certificate. If secretName is absent and
	// caTransition is "DualTrust", a transition replaces the certificate in service with the generated one.
	//
	// +kubebuilder:validation:MinLength=1
	SecretName string `json:"secretName,omitempty"`

	// verification says what happens if the certificate does not cover a name that clients use. "Enforce" refuses it, and
	// the last known good certificate stays in service. "Warn" serves it, with a warning in the status. If verification is
	// absent, the certificate is served with a warning, unless the one in service is valid and covers all these names:
	// then the new one is refused.
	//
	// +optional
	Verification TLSVerification `json:"verification,omitempty"`

	// caTransition says how the certificate in service is replaced by one that clients in use do not verify, because they
	// do not trust its CA or because it lacks a name that they use. "DualTrust" publishes both trust bundles and serves
	// the old certificate until every revision in use has the new CA, until activateAfter ends the wait, or until shortly
	// before the old certificate expires; then it serves the new certificate and publishes only its trust bundle.
	// "Immediate" serves the new certificate at once. If caTransition is absent, a renewal in the same Secret uses dual
	// trust, and a changed spec takes effect at once.
	//
	// +optional
	CATransition CATransition `json:"caTransition,omitempty"`

	// activateAfter limits dual trust: the new certificate is served when no revision that it breaks has been
	// used or published for this long. If it is absent, the agent waits until shortly before the old certificate expires.
	//
	// +optional
	ActivateAfter *metav1.Duration `json:"activateAfter,omitempty"`
}
