package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TokenCredentialRequest asks for a cluster credential in exchange for a token.
//
// +kubebuilder:object:root=true
type TokenCredentialRequest struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the usual metadata of an object. Nothing is stored, so it is not used.
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

	// metadata is the usual metadata of a list, which is always empty.
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TokenCredentialRequest `json:"items"`
}

// TokenCredentialRequestSpec holds the token and names its authenticator.
type TokenCredentialRequestSpec struct {
	// token is what the authenticator understands. No response contains it.
	Token string `json:"token,omitempty"`

	// authenticator names the WebhookAuthenticator or JWTAuthenticator that vouches for the token.
	Authenticator corev1.TypedLocalObjectReference `json:"authenticator"`

	// strategy names the strategy of the CredentialIssuer whose kind of credential is wanted. ServiceAccountToken is one
	// that has to be asked for while another strategy works. Absent means: of the first strategy that works.
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

// ClusterCredential is a credential with which the user can call the cluster.
type ClusterCredential struct {
	// expirationTimestamp is when the credential stops working.
	ExpirationTimestamp metav1.Time `json:"expirationTimestamp,omitempty"`

	// token is a bearer token; it is empty for credentials that are a client certificate.
	Token string `json:"token,omitempty"`

	// clientCertificateData is a client certificate: PEM.
	ClientCertificateData string `json:"clientCertificateData,omitempty"`

	// clientKeyData is the client certificate's private key: PEM.
	ClientKeyData string `json:"clientKeyData,omitempty"`

	// requestHeaders are headers that a client sends with every request next to the credential, such as
	// Impersonate-User. They are absent for credentials that say themselves who the user is.
	// +optional
	RequestHeaders map[string][]string `json:"requestHeaders,omitempty"`
}
