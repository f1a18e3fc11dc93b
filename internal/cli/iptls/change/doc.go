// Package change implements the commands that change the CredentialIssuer: `pinniped ip-tls set`, `unset`, `undo` and
// `apply`.
//
// Do carries out a Change: the verb evaluates and applies it (set.go, unset.go, undo.go, apply.go), wait.go waits
// until the endpoint presents the certificate, and rollback.go puts the previous configuration back when it does not.
// A step of a rotation is a Change, too.
package change
