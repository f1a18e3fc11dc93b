package v1alpha1

// KubeconfigSpec describes how users log in, so that they can create their own kubeconfig.
type KubeconfigSpec struct {
	// clusterName is the name of the context and of the cluster in users' kubeconfigs.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName"`

	// logins are the ways to log in. If there are several, users choose one by name.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	Logins []KubeconfigLogin `json:"logins"`

	// installHint tells users how to install the pinniped CLI. The web page of the proxy shows it.
	//
	// +optional
	InstallHint *InstallHint `json:"installHint,omitempty"`
}

// KubeconfigLogin is a way to log in.
//
// +kubebuilder:validation:XValidation:rule="(self.authenticator.kind == 'JWTAuthenticator') == has(self.oidc)",message="oidc is required with a JWTAuthenticator, and cannot be combined with another authenticator"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['plugin', 'bearer'])",message="the names \"plugin\" and \"bearer\" are reserved by --login"
type KubeconfigLogin struct {
	// name of the login, for `pinniped get kubeconfig --login NAME`.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// authenticator verifies the logins.
	Authenticator KubeconfigAuthenticator `json:"authenticator"`

	// oidc is how users get a token from the JWTAuthenticator's issuer.
	//
	// +optional
	OIDC *KubeconfigOIDC `json:"oidc,omitempty"`

	// refreshTrustBundle makes logins refresh the trust bundle in the kubeconfig, as the flag --follow does.
	//
	// +optional
	RefreshTrustBundle bool `json:"refreshTrustBundle,omitempty"`
}

// KubeconfigAuthenticator names an authenticator.
type KubeconfigAuthenticator struct {
	// kind is "JWTAuthenticator" or "WebhookAuthenticator".
	Kind AuthenticatorKind `json:"kind"`

	// name of the authenticator.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// KubeconfigOIDC is how users get a token from an OpenID Connect issuer.
type KubeconfigOIDC struct {
	// clientID is the ID of a public client at the issuer.
	//
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][!-+\--~]*$`
	ClientID string `json:"clientID"`

	// scopes to request.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_][!-+\--~]*$`
	// +listType=atomic
	Scopes []string `json:"scopes"`

	// flow is how users log in: "browser_authcode" (the default), "cli_password" or "device_code".
	//
	// +kubebuilder:validation:Enum=browser_authcode;cli_password;device_code
	// +optional
	Flow string `json:"flow,omitempty"`

	// listenPort is the port on localhost that receives the browser's redirect. Set it for issuers that check the port
	// of the redirect URL. If it is absent, any free port is used.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	ListenPort int32 `json:"listenPort,omitempty"`
}

// InstallHint says how to install the pinniped CLI.
type InstallHint struct {
	// text is what users see.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1000
	Text string `json:"text"`

	// url is a link below the text.
	//
	// +kubebuilder:validation:MaxLength=1000
	// +kubebuilder:validation:Pattern=`^https://[^\s]+$`
	// +optional
	URL string `json:"url,omitempty"`
}
