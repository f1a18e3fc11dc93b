// Package status implements `pinniped ip-tls status`: gather.go and endpoint.go look, kubeconfigs.go evaluates
// kubeconfigs, text.go prints.
package status
