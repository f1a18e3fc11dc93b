// Package credentialissuer makes the impersonation proxy what a CredentialIssuer says, and reports in its status how
// clients get in.
//
// Every replica runs the reconciler: each follows the configuration, loads the certificate and the signer, and starts
// or stops its own proxy. Only the leader writes to the cluster: Services, generated Secrets, the status.
// plan.go decides without a cluster; reconciler.go shows the order of things.
package credentialissuer
