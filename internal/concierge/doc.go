// Package concierge serves the aggregated APIs: TokenCredentialRequest, which gives a short-lived client certificate
// for a token, and WhoAmIRequest, which returns the caller's identity.
//
// Nothing is stored. The Kubernetes API server forwards requests here and vouches for the caller with its front-proxy
// client certificate; callers that connect directly are authenticated by a TokenReview or by the cluster's client CA.
// Every request is authorized by a SubjectAccessReview. Every client may create a TokenCredentialRequest, because it
// has no identity yet. The token in it is given to the authenticator that the request names and to nothing else, and
// appears in no log.
package concierge
