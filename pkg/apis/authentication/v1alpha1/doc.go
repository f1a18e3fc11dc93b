// Package v1alpha1 is version v1alpha1 of the API group authentication.concierge.pinniped.dev: the authenticators that
// verify users' tokens.
//
// +kubebuilder:object:generate=true
// +groupName=authentication.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
