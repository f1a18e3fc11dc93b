package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WhoAmIRequest asks the cluster who the caller is.
//
// +kubebuilder:object:root=true
type WhoAmIRequest struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata. It is not used, because nothing is stored.
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is empty.
	Spec WhoAmIRequestSpec `json:"spec"`

	// status says who the caller is.
	// +optional
	Status WhoAmIRequestStatus `json:"status"`
}

// WhoAmIRequestList exists because every Kubernetes resource can be listed; it is always empty.
//
// +kubebuilder:object:root=true
type WhoAmIRequestList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard list metadata. It is always empty.
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WhoAmIRequest `json:"items"`
}

// WhoAmIRequestSpec is empty.
type WhoAmIRequestSpec struct{}

// WhoAmIRequestStatus says who the caller is.
type WhoAmIRequestStatus struct {
	// kubernetesUserInfo is the caller as the Kubernetes API server authenticated them.
	KubernetesUserInfo KubernetesUserInfo `json:"kubernetesUserInfo"`
}

// KubernetesUserInfo is a user as the Kubernetes API server authenticated them.
type KubernetesUserInfo struct {
	// user is the authenticated user.
	User UserInfo `json:"user"`

	// audiences are the token audiences that were accepted, if the credential was a token with audiences.
	// +optional
	Audiences []string `json:"audiences,omitempty"`
}

// UserInfo is the identity of a user.
type UserInfo struct {
	// username is the name that identifies the user.
	Username string `json:"username"`

	// uid is the unique ID of the user. A later user with the same name has another uid.
	// +optional
	UID string `json:"uid,omitempty"`

	// groups are the names of the groups that the user belongs to.
	// +optional
	Groups []string `json:"groups,omitempty"`

	// extra holds further information from the authenticator.
	// +optional
	Extra map[string]ExtraValue `json:"extra,omitempty"`
}

// ExtraValue is a list of strings.
type ExtraValue []string
