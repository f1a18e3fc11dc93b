package v1alpha1

// TLSSpec configures the CA bundle that verifies an authenticator's endpoint. If neither field is set, the agent uses
// the system roots of its image. The two fields are mutually exclusive.
type TLSSpec struct {
	// certificateAuthorityData is a CA bundle: PEM, encoded as base64.
	//
	// +optional
	CertificateAuthorityData string `json:"certificateAuthorityData,omitempty"`

	// certificateAuthorityDataSource is a Secret or ConfigMap in the agent's namespace with the CA bundle as PEM. The
	// agent watches it.
	//
	// +optional
	CertificateAuthorityDataSource *CertificateAuthorityDataSourceSpec `json:"certificateAuthorityDataSource,omitempty"`
}

// CertificateAuthorityDataSourceKind is the kind of object that holds a CA bundle.
// +kubebuilder:validation:Enum=Secret;ConfigMap
type CertificateAuthorityDataSourceKind string

// The kinds of object that may hold a CA bundle.
const (
	CertificateAuthorityDataSourceKindSecret    CertificateAuthorityDataSourceKind = "Secret"
	CertificateAuthorityDataSourceKindConfigMap CertificateAuthorityDataSourceKind = "ConfigMap"
)

// CertificateAuthorityDataSourceSpec names an object in the agent's namespace that holds a CA bundle.
type CertificateAuthorityDataSourceSpec struct {
	// kind is "Secret" (of type Opaque or kubernetes.io/tls) or "ConfigMap".
	Kind CertificateAuthorityDataSourceKind `json:"kind"`

	// name of the Secret or ConfigMap.
	//
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// key with the CA bundle.
	//
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}
