// Package change implements the commands that change the CredentialIssuer: `pinniped ip-tls set`, `unset` and
// `undo`.
//
// Do carries out a Change: the verb evaluates and applies it (set.go, unset.go, undo.go), wait.go waits
// until the endpoint presents the certificate, or the agent waits with it for clients of the old one (transition.go), and
// rollback.go puts the previous configuration back when it does not.
package change
