// Package discovery reads from a cluster what clients need to get in: the CredentialIssuer and the authenticators.
//
// Connect gives a Client for one API group suffix. Its methods return typed objects and errors that say what is wrong
// in terms of the product: the agent is not installed, the request is not permitted, the cluster cannot be reached.
// ChooseStrategy picks, without a cluster, the way a client should take.
package discovery
