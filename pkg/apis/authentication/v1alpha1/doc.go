// Package v1alpha1 is version v1alpha1 of the API group authentication.concierge.pinniped.dev: the authenticators of
// users who log in through a TokenCredentialRequest.
//
// +kubebuilder:object:generate=true
// +groupName=authentication.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
