// Package v1alpha1 is version v1alpha1 of the API group identity.concierge.pinniped.dev, which returns the user that
// the cluster authenticates. The agent serves it as an aggregated API and stores nothing.
//
// +kubebuilder:object:generate=true
// +kubebuilder:skip
// +groupName=identity.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
