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
	// VerificationEnforce refuses such a certificate: the last known good one stays in service.
	VerificationEnforce TLSVerification = "Enforce"
	// VerificationWarn serves it and says so in the strategy's message.
	VerificationWarn TLSVerification = "Warn"
)

// CATransition says how the serving certificate is replaced by one that existing clients do not verify.
// +kubebuilder:validation:Enum=DualTrust;Immediate
type CATransition string

// The ways to replace it.
const (
	// CATransitionDualTrust publishes both trust bundles, and serves the old certificate until clients trust the new CA.
	CATransitionDualTrust CATransition = "DualTrust"
	// CATransitionImmediate serves the new certificate at once.
	CATransitionImmediate CATransition = "Immediate"
)

// CredentialIssuer configures the agent and reports how clients can get access to this cluster.
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

	// maxUsers is how many service accounts of users there may be at a time; a user has one for each authenticator and
	// set of groups. It is deleted an hour or two after its last login. Each is a ClusterRoleBinding, which the API
	// server looks at for every request.
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
	// If it is empty, the address of the Service is published. It is required when service.type is "None".
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

	// kubeconfig lets people fetch their kubeconfig from the impersonation proxy, without a credential, and is what
	// `pinniped get kubeconfig` takes its defaults from. If it is absent, the proxy offers none.
	//
	// +optional
	Kubeconfig *KubeconfigSpec `json:"kubeconfig,omitempty"`
}

// BearerTokensSpec says which tokens clients may present to the impersonation proxy as bearer tokens, next to those of
// the cluster itself.
type BearerTokensSpec struct {
	// authenticators lists the authenticators. A token of a JWTAuthenticator's issuer and audience is verified by that
	// one alone. Any other is shown to the cluster, and if the cluster refuses it, to the WebhookAuthenticators, in this
	// order. JSON web tokens are shown to no webhook: see unknownIssuers.
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

	// unknownIssuers, of a WebhookAuthenticator, shows it JSON web tokens as well: those of issuers that no
	// JWTAuthenticator of the cluster has. The webhook could use elsewhere what it is shown.
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
// +kubebuilder:validation:XValidation:rule="(self.kind == 'ClusterTrustBundle') != has(self.key)",message="key is required with a ConfigMap or a Secret, and has no meaning with a ClusterTrustBundle"
type CertificateAuthorityDataSourceSpec struct {
	// kind is "ConfigMap" or "Secret", for one of the agent's namespace, or "ClusterTrustBundle", where the API server
	// serves certificates.k8s.io/v1 or v1beta1 with it.
	Kind CertificateAuthorityDataSourceKind `json:"kind"`

	// name of the object.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// key under which the ConfigMap or the Secret holds the CA bundle, as PEM.
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
// +kubebuilder:validation:XValidation:rule="!has(self.certificateAuthorityDataSource) || !has(self.certificateAuthorityData) || size(self.certificateAuthorityData) == 0",message="certificateAuthorityData and certificateAuthorityDataSource exclude each other"
type ImpersonationProxyTLSSpec struct {
	// certificateAuthorityData is the CA bundle to publish to clients: PEM, encoded as base64. The impersonation
	// proxy itself does not use it to serve. Several CA certificates help to change the CA without an outage.
	// If it is empty, the key "ca.crt" of the Secret named by secretName is published. If there is none either,
	// no CA bundle is published, and clients verify the certificate with their system roots.
	//
	// +optional
	CertificateAuthorityData string `json:"certificateAuthorityData,omitempty"`

	// certificateAuthorityDataSource names the object that holds the CA bundle to publish, in place of
	// certificateAuthorityData. The agent watches it: a change is a CA transition, as one of certificateAuthorityData is.
	// While the object holds no usable CA bundle, the certificate and the CA bundle in service stay.
	//
	// +optional
	CertificateAuthorityDataSource *CertificateAuthorityDataSourceSpec `json:"certificateAuthorityDataSource,omitempty"`

	// secretName names the Secret that holds the certificate chain (key "tls.crt"), its private key (key "tls.key") and
	// perhaps the CA bundle (key "ca.crt"), of type kubernetes.io/tls or Opaque: NAME in the agent's own namespace, or
	// NAMESPACE/NAME. One of another namespace is used only while a TLSCertificateDelegation (projectcontour.io/v1) of
	// that namespace names it and the agent's namespace, and RBAC lets the agent read it. When that is withdrawn, the
	// agent goes back to the certificate that it generates. If it is absent, and caTransition is "DualTrust", the agent
	// serves the certificate that it generates, after a transition from the one in service.
	//
	// +kubebuilder:validation:MinLength=1
	SecretName string `json:"secretName,omitempty"`

	// verification says what happens when the certificate does not cover a name that clients use: "Enforce" refuses it,
	// and the last known good certificate stays in service; "Warn" serves it and says so in the status. If it is absent, such
	// a certificate is refused while another is in service that is valid and covers all those names, and served with a
	// warning where there is no better one.
	//
	// +optional
	Verification TLSVerification `json:"verification,omitempty"`

	// caTransition says how the certificate in service is replaced by one that clients in use do not verify: because it
	// comes from a CA that they do not trust, or lacks a name that they use. "DualTrust" publishes the trust bundles of
	// both and serves the old certificate until no used revision lacks the new CA, for activateAfter, or until the old
	// certificate is about to end; then it serves the new one and publishes its trust bundle alone. "Immediate" serves
	// the new one at once. If it is absent, a certificate that is renewed in the same Secret is DualTrust, and a changed
	// spec takes effect at once.
	//
	// +optional
	CATransition CATransition `json:"caTransition,omitempty"`

	// activateAfter bounds the time in which both are published: the new certificate is served once no revision that it
	// breaks has been used or published for this long. If it is absent, such revisions are waited for until the old
	// certificate is about to end.
	//
	// +optional
	ActivateAfter *metav1.Duration `json:"activateAfter,omitempty"`
}
