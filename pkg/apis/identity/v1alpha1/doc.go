// Package v1alpha1 is version v1alpha1 of the API group identity.concierge.pinniped.dev: which user the cluster
// authenticates. The agent serves it as an aggregated API; nothing is stored.
//
// +kubebuilder:object:generate=true
// +kubebuilder:skip
// +groupName=identity.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
