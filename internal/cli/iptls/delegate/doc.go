// Package delegate implements the commands about a Secret of another namespace: `pinniped ip-tls delegate` lets the
// agent use it, and `pinniped explain` says why the agent may or may not.
package delegate
