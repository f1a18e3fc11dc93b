// Package delegation decides whether a Secret of one namespace may be used from another one.
//
// The owner of the Secret permits it with a TLSCertificateDelegation (projectcontour.io/v1), a kind that ingress
// controllers know as well. It lies in the Secret's namespace. It lists names of Secrets, each with the namespaces
// that may use it.
//
// Decide makes the decision, and Grant.Objects returns everything that an owner has to create. Both are pure: the
// agent and `pinniped explain` read the cluster themselves, and pass in what they found. Poller asks the API
// server for the agent, every second.
package delegation
