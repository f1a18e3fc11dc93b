// Package delegation decides whether a Secret of one namespace may be used from another one.
//
// The owner of the Secret says so with a TLSCertificateDelegation (projectcontour.io/v1), a kind that ingress controllers know, too:
// it lies in the Secret's namespace, and lists names of Secrets, each with the namespaces that may refer to it. Decide is that
// decision, and Objects is everything that an owner makes to permit it. All of it is pure: whoever reads the cluster hands in what
// was found, the agent and `pinniped ip-tls explain` alike.
package delegation
