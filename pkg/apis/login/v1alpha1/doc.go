// Package v1alpha1 is version v1alpha1 of the API group login.concierge.pinniped.dev, which exchanges a token for a
// short-lived cluster credential. The agent serves it as an aggregated API and stores nothing.
//
// +kubebuilder:object:generate=true
// +kubebuilder:skip
// +groupName=login.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
