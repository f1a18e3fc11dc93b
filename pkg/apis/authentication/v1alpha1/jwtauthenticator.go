package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// JWTAuthenticator lets users log in with an OpenID Connect issuer's JSON Web Tokens.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=pinniped;pinniped-authenticator;pinniped-authenticators,scope=Cluster
// +kubebuilder:printcolumn:name="Issuer",type=string,JSONPath=`.spec.issuer`
// +kubebuilder:printcolumn:name="Audience",type=string,JSONPath=`.spec.audience`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:subresource:status
type JWTAuthenticator struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the issuer, and the conditions under which its tokens are accepted.
	Spec JWTAuthenticatorSpec `json:"spec"`

	// status is what the agent reports.
	// +optional
	Status JWTAuthenticatorStatus `json:"status,omitempty"`
}

// JWTAuthenticatorList is a list of JWTAuthenticators.
//
// +kubebuilder:object:root=true
type JWTAuthenticatorList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []JWTAuthenticator `json:"items"`
}

// JWTAuthenticatorSpec is the issuer, and the conditions under which its tokens are accepted.
type JWTAuthenticatorSpec struct {
	// issuer is the OpenID Connect issuer's URL, as in the tokens' "iss" claim.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`^https://`
	Issuer string `json:"issuer"`

	// audience is required in the tokens' "aud" claim.
	//
	// +kubebuilder:validation:MinLength=1
	Audience string `json:"audience"`

	// claims selects the claims for the username, the groups and the extras.
	//
	// +optional
	Claims JWTTokenClaims `json:"claims,omitempty"`

	// claimValidationRules are conditions on the token's claims; all must be true.
	//
	// +optional
	ClaimValidationRules []ClaimValidationRule `json:"claimValidationRules,omitempty"`

	// userValidationRules are conditions on the resulting user; all must be true.
	//
	// +optional
	UserValidationRules []UserValidationRule `json:"userValidationRules,omitempty"`

	// tls says how to verify the issuer's certificate.
	//
	// +optional
	TLS *TLSSpec `json:"tls,omitempty"`
}

// JWTTokenClaims maps a token's claims to the username, the groups and the extra attributes of the user.
type JWTTokenClaims struct {
	// username is the claim with the username. If neither it nor usernameExpression is set, the claim is "username".
	//
	// +optional
	Username string `json:"username,omitempty"`

	// usernameExpression is a CEL expression over "claims" that returns the username. It cannot be combined with username.
	//
	// +optional
	UsernameExpression string `json:"usernameExpression,omitempty"`

	// groups is the claim with the groups. If neither it nor groupsExpression is set, the claim is "groups".
	//
	// +optional
	Groups string `json:"groups,omitempty"`

	// groupsExpression is a CEL expression over "claims" that returns the groups. It cannot be combined with groups.
	//
	// +optional
	GroupsExpression string `json:"groupsExpression,omitempty"`

	// extra maps claims to extra attributes of the user.
	//
	// +optional
	Extra []ExtraMapping `json:"extra,omitempty"`
}

// ExtraMapping defines one extra attribute of the user.
type ExtraMapping struct {
	// key of the attribute: a lower-case path with a domain prefix, such as "example.com/tenant".
	Key string `json:"key"`

	// valueExpression is a CEL expression over "claims" that returns a string or a list of strings.
	ValueExpression string `json:"valueExpression"`
}

// ClaimValidationRule is one condition on a token's claims.
type ClaimValidationRule struct {
	// claim is the claim that must equal requiredValue. It cannot be combined with expression.
	//
	// +optional
	Claim string `json:"claim,omitempty"`

	// requiredValue is the required value of claim.
	//
	// +optional
	RequiredValue string `json:"requiredValue,omitempty"`

	// expression is a CEL expression over "claims" that must return true.
	//
	// +optional
	Expression string `json:"expression,omitempty"`

	// message is the error if expression does not return true.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// UserValidationRule is one condition on the resulting user.
type UserValidationRule struct {
	// expression is a CEL expression over "user" that must return true.
	Expression string `json:"expression"`

	// message is the error if expression does not return true.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// JWTAuthenticatorStatus is what the agent reports about an issuer.
type JWTAuthenticatorStatus struct {
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
