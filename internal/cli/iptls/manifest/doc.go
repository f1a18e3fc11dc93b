// Package manifest implements `pinniped ip-tls manifest`, which prints manifests that fit the CredentialIssuer: a
// Certificate for cert-manager, or a route that leads through an ingress to the impersonation proxy.
package manifest
