package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AuthenticatorPhase summarizes an authenticator's conditions.
// +kubebuilder:validation:Enum=Pending;Ready;Error
type AuthenticatorPhase string

// The phases.
const (
	PhasePending AuthenticatorPhase = "Pending"
	PhaseReady   AuthenticatorPhase = "Ready"
	PhaseError   AuthenticatorPhase = "Error"
)

// WebhookAuthenticator lets users log in with tokens that a TokenReview webhook verifies.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=pinniped;pinniped-authenticator;pinniped-authenticators,scope=Cluster
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.endpoint`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:subresource:status
type WebhookAuthenticator struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the address of the webhook, and how to verify it.
	Spec WebhookAuthenticatorSpec `json:"spec"`

	// status is what the agent reports.
	// +optional
	Status WebhookAuthenticatorStatus `json:"status,omitempty"`
}

// WebhookAuthenticatorList is a list of WebhookAuthenticators.
//
// +kubebuilder:object:root=true
type WebhookAuthenticatorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WebhookAuthenticator `json:"items"`
}

// WebhookAuthenticatorSpec is the address of the webhook, and how to verify it.
type WebhookAuthenticatorSpec struct {
	// endpoint is the webhook's URL. The webhook receives TokenReviews of authentication.k8s.io/v1beta1.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^https://`
	Endpoint string `json:"endpoint"`

	// tls says how to verify the webhook's certificate.
	//
	// +optional
	TLS *TLSSpec `json:"tls,omitempty"`
}

// WebhookAuthenticatorStatus is what the agent reports about a webhook.
type WebhookAuthenticatorStatus struct {
	// conditions are the results of the checks.
	//
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// phase summarizes the conditions.
	//
	// +kubebuilder:default=Pending
	Phase AuthenticatorPhase `json:"phase,omitempty"`
}
