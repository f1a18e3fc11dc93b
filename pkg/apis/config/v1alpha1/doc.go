// Package v1alpha1 is version v1alpha1 of the API group config.concierge.pinniped.dev: how the agent is configured
// and how it reports the ways in which clients can get access.
//
// +kubebuilder:object:generate=true
// +groupName=config.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
