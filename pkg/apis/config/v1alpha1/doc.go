// Package v1alpha1 is version v1alpha1 of the API group config.concierge.pinniped.dev: the configuration of the agent,
// and the strategies by which clients log in.
//
// +kubebuilder:object:generate=true
// +groupName=config.concierge.pinniped.dev
// +k8s:openapi-gen=true
package v1alpha1
