package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TokenCredentialRequest exchanges a token for a cluster credential.
//
// +kubebuilder:object:root=true
type TokenCredentialRequest struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata. It is not used, because nothing is stored.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the token and names its authenticator.
	Spec TokenCredentialRequestSpec `json:"spec"`

	// status holds the credential, or says why there is none.
	// +optional
	Status TokenCredentialRequestStatus `json:"status,omitempty"`
}

// TokenCredentialRequestList exists because every Kubernetes resource can be listed; it is always empty.
//
// +kubebuilder:object:root=true
type TokenCredentialRequestList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard list metadata. It is always empty.
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TokenCredentialRequest `json:"items"`
}

// TokenCredentialRequestSpec holds the token and names its authenticator.
type TokenCredentialRequestSpec struct {
	// token is the token to verify. Responses do not contain it.
	Token string `json:"token,omitempty"`

	// authenticator names the WebhookAuthenticator or JWTAuthenticator that verifies the token.
	Authenticator corev1.TypedLocalObjectReference `json:"authenticator"`

	// strategy is the type of the strategy to get a credential from. If it is absent, the first strategy that works is
	// used. To get a service account token while another strategy works, request ServiceAccountToken explicitly.
	// +optional
	Strategy string `json:"strategy,omitempty"`
}

// TokenCredentialRequestStatus holds the credential, or says why there is none.
type TokenCredentialRequestStatus struct {
	// credential is the cluster credential. It is absent when the login failed.
	// +optional
	Credential *ClusterCredential `json:"credential,omitempty"`

	// message says why the login failed.
	// +optional
	Message *string `json:"message,omitempty"`
}

// ClusterCredential is the user's credential for the cluster.
type ClusterCredential struct {
	// expirationTimestamp is when the credential stops working.
	ExpirationTimestamp metav1.Time `json:"expirationTimestamp,omitempty"`

	// token is a bearer token; it is empty if the credential is a client certificate.
	Token string `json:"token,omitempty"`

	// clientCertificateData is a client certificate: PEM.
	ClientCertificateData string `json:"clientCertificateData,omitempty"`

	// clientKeyData is the client certificate's private key: PEM.
	ClientKeyData string `json:"clientKeyData,omitempty"`

	// requestHeaders are headers that the client must send with every request, such as Impersonate-User. They are absent
	// if the credential itself identifies the user.
	// +optional
	RequestHeaders map[string][]string `json:"requestHeaders,omitempty"`
}
