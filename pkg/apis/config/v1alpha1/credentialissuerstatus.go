package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// StrategyType is a strategy by which clients log in to the cluster.
// +kubebuilder:validation:Enum=KubeClusterSigningCertificate;ImpersonationProxy;ServiceAccountToken
type StrategyType string

// The strategies. A CredentialIssuer always lists the first two, and all of them in this order.
const (
	// StrategyKubeClusterSigningCertificate issues certificates from the cluster's own signer.
	StrategyKubeClusterSigningCertificate StrategyType = "KubeClusterSigningCertificate"
	// StrategyImpersonationProxy serves the Kubernetes API through the agent's impersonation proxy.
	StrategyImpersonationProxy StrategyType = "ImpersonationProxy"
	// StrategyServiceAccountToken gives each user the token of a service account that can impersonate only that user. It
	// is listed only while it is enabled.
	StrategyServiceAccountToken StrategyType = "ServiceAccountToken"
)

// FrontendType is how clients connect under a strategy.
// +kubebuilder:validation:Enum=TokenCredentialRequestAPI;ImpersonationProxy
type FrontendType string

// The frontends.
const (
	// FrontendTokenCredentialRequestAPI: clients log in to the cluster's own API server.
	FrontendTokenCredentialRequestAPI FrontendType = "TokenCredentialRequestAPI"
	// FrontendImpersonationProxy: clients log in to the impersonation proxy, and send all requests to it.
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

// CredentialIssuerStatus is what the agent reports.
type CredentialIssuerStatus struct {
	// strategies lists, for each strategy, whether it works and how clients use it.
	//
	// +listType=map
	// +listMapKey=type
	Strategies []CredentialIssuerStrategy `json:"strategies"`

	// servingCertificate is the certificate that the impersonation proxy serves, and the number of replicas that serve it.
	// It is absent while the proxy is disabled or has no certificate. Upstream Pinniped's agent does not write it.
	//
	// +optional
	ServingCertificate *ServingCertificateStatus `json:"servingCertificate,omitempty"`

	// transition has the certificate that will replace the one in service, and the revisions that the transition waits
	// for. It is absent if there is no transition. Upstream Pinniped's agent does not write it.
	//
	// +optional
	Transition *TransitionStatus `json:"transition,omitempty"`

	// objects has the configured names of the objects that the agent creates and reads. Upstream Pinniped's agent does
	// not write it.
	//
	// +optional
	Objects *ObjectNames `json:"objects,omitempty"`

	// observedGeneration is the metadata.generation of the spec that the strategies describe. While it is lower than
	// metadata.generation, the agent has not processed the spec yet. Upstream Pinniped's agent does not write it.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// revisions summarizes the revision history, which is what was published to clients, oldest first. The ConfigMap
	// named in objects.revisionsConfigMap also has the trust bundles. Upstream Pinniped's agent does not write revisions.
	//
	// +listType=atomic
	// +optional
	Revisions []RevisionStatus `json:"revisions,omitempty"`
}

// TransitionPhase is the phase of the transition to another serving certificate.
// +kubebuilder:validation:Enum=Prepared
type TransitionPhase string

// TransitionPrepared means that the trust bundles of both certificates are published, and the old certificate is
// served.
const TransitionPrepared TransitionPhase = "Prepared"

// TransitionStatus is a transition to a serving certificate that clients in use do not verify yet. It ends when the new
// certificate is served; from then on, only the new trust bundle is published.
type TransitionStatus struct {
	// phase is "Prepared".
	Phase TransitionPhase `json:"phase"`

	// since is when the phase began.
	Since metav1.Time `json:"since"`

	// secretName names the Secret with the new certificate, in the form of servingCertificate.secretName. It is absent
	// for the certificate that the agent generates.
	//
	// +optional
	SecretName string `json:"secretName,omitempty"`

	// sha256 is the fingerprint of the new certificate (the leaf) in lower-case hex.
	//
	// +kubebuilder:validation:MinLength=1
	SHA256 string `json:"sha256"`

	// waitsFor are the IDs of the revisions in use whose clients do not verify the new certificate; at most 20 are
	// listed.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	// +optional
	WaitsFor []string `json:"waitsFor,omitempty"`

	// until is the deadline for serving the new certificate.
	//
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}

// RevisionStatus is what was published to clients for some time.
type RevisionStatus struct {
	// id identifies the revision.
	//
	// +kubebuilder:validation:MinLength=1
	ID string `json:"id"`

	// since is when the revision was first published.
	Since metav1.Time `json:"since"`

	// until is when the revision was last published. It is absent while the revision is still published.
	//
	// +optional
	Until *metav1.Time `json:"until,omitempty"`

	// lastUsed is when a client last used the proxy during this revision, to the hour. It is absent if the revision has
	// no clients.
	//
	// +optional
	LastUsed *metav1.Time `json:"lastUsed,omitempty"`

	// endpoint is the URL of the proxy.
	Endpoint string `json:"endpoint"`

	// caBundle has the SHA-256 fingerprints of the published CA certificates, in lower-case hex. It is absent if clients
	// use their system roots.
	//
	// +listType=atomic
	// +optional
	CABundle []string `json:"caBundle,omitempty"`

	// names are the DNS names and IP addresses that the certificate in service at that time covered.
	//
	// +listType=atomic
	// +optional
	Names []string `json:"names,omitempty"`
}

// ObjectNames has the names of the agent's objects. All are in one namespace, and exist only while they are needed.
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

	// lastKnownGoodCertificateSecret holds the agent's copy of the external certificate in service.
	//
	// +kubebuilder:validation:MinLength=1
	LastKnownGoodCertificateSecret string `json:"lastKnownGoodCertificateSecret"`

	// serviceAccount is the ServiceAccount the agent uses to read Secrets. It is absent if the agent uses another
	// identity.
	//
	// +optional
	ServiceAccount string `json:"serviceAccount,omitempty"`

	// revisionsConfigMap is the ConfigMap with the revision history: status.revisions plus the trust bundles.
	//
	// +optional
	RevisionsConfigMap string `json:"revisionsConfigMap,omitempty"`
}

// ServingCertificateSource is the origin of a serving certificate.
// +kubebuilder:validation:Enum=Generated;Secret
type ServingCertificateSource string

// The values of ServingCertificateSource.
const (
	// ServingCertificateGenerated is a certificate of the agent's own CA.
	ServingCertificateGenerated ServingCertificateSource = "Generated"
	// ServingCertificateSecret is an external certificate, from the Secret in spec.impersonationProxy.tls.secretName.
	ServingCertificateSecret ServingCertificateSource = "Secret"
)

// ServingCertificateStatus is the certificate that the leading replica serves, and the number of replicas that serve
// it. While the configured certificate is refused, it is the last known good one; the strategy's message has the
// reason.
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

	// replicas is the number of replicas of the agent that have reported within the last minute.
	Replicas int32 `json:"replicas"`

	// servingReplicas is the number of replicas that serve this certificate. It should equal replicas.
	ServingReplicas int32 `json:"servingReplicas"`

	// otherReplicas are the replicas that do not serve this certificate, each with the reason; at most 20 are listed.
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

	// message is the reason in a sentence. It begins with a code for `pinniped explain` if a certificate was refused.
	//
	// +kubebuilder:validation:MinLength=1
	Message string `json:"message"`
}

// CredentialIssuerStrategy says whether one strategy works, and how clients use it.
type CredentialIssuerStrategy struct {
	// type is the strategy.
	Type StrategyType `json:"type"`

	// status is "Success" or "Error".
	Status StrategyStatus `json:"status"`

	// reason is the reason for the status, in one word.
	Reason StrategyReason `json:"reason"`

	// message is the reason for the status, in a sentence.
	//
	// +kubebuilder:validation:MinLength=1
	Message string `json:"message"`

	// findings has the content of message in machine-readable form, the most severe finding first.
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

// FindingSeverity is the severity of a finding.
// +kubebuilder:validation:Enum=Error;Warning;Info
type FindingSeverity string

// The severities.
const (
	// FindingError means that the spec does not take effect.
	FindingError FindingSeverity = "Error"
	// FindingWarning means that the spec takes effect, and that some clients are affected, or will be.
	FindingWarning FindingSeverity = "Warning"
	// FindingInfo means that no action is needed.
	FindingInfo FindingSeverity = "Info"
)

// StrategyFinding is one problem with a strategy, or one fact worth knowing about it.
type StrategyFinding struct {
	// code is a stable CamelCase word. For certificates, `pinniped explain CODE` describes the cause, the consequence and
	// the fix.
	//
	// +kubebuilder:validation:MinLength=1
	Code string `json:"code"`

	// severity is "Error", "Warning" or "Info".
	Severity FindingSeverity `json:"severity"`

	// message is the finding in a sentence.
	//
	// +kubebuilder:validation:MinLength=1
	Message string `json:"message"`
}

// CredentialIssuerFrontend says how clients connect. Field type says which of the other fields is set.
//
// +union
type CredentialIssuerFrontend struct {
	// type says which of the other fields is set.
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

// TokenCredentialRequestAPIInfo is the address of the cluster's API server, and the CA bundle that verifies it.
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

// ImpersonationProxyInfo is the address of the impersonation proxy, and the CA bundle that verifies it.
type ImpersonationProxyInfo struct {
	// endpoint is the URL of the impersonation proxy.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^https://`
	Endpoint string `json:"endpoint"`

	// certificateAuthorityData is the CA bundle that verifies the impersonation proxy: base64-encoded PEM.
	// It is empty if clients verify the certificate with their system roots.
	CertificateAuthorityData string `json:"certificateAuthorityData"`
}
