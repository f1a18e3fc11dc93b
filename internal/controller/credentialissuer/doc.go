// Package credentialissuer makes the impersonation proxy what a CredentialIssuer says, and reports in its status
// how clients get in.
//
// Every replica runs the reconciler. Each follows the configuration, loads the certificate and the signer, and
// starts or stops its own proxy. Only the leader writes to the cluster: Services, Secrets, the status.
//
// One pass looks, decides, applies and reports. look.go reads the cluster. decide.go returns the actions that
// follow, in order, without a cluster. actions.go carries them out. outcome.go says what the status tells about the
// result, again without a cluster. The Services in front of the proxy come first, in services.go.
package credentialissuer
