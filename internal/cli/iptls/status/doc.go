// Package status implements `pinniped ip-tls status`: gather.go and endpoint.go look, kubeconfigs.go evaluates
// kubeconfigs, text.go and watch.go print.
package status
