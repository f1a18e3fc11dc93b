// Package proxy puts the Kubernetes API behind a serving certificate of our own: it authenticates a client the
// way the API server would, authorizes the request, and sends it on as that user by impersonation.
//
// # Who is trusted with what
//
//   - The client is trusted with nothing. All that it says about identity (Impersonate-*, X-Remote-*, X-Forwarded-* and
//     similar names) is consumed by an authenticator that has proof, removed, or refused.
//   - The API server is trusted to result TokenReviews and SubjectAccessReviews, and to publish the client CA and the
//     front proxy settings in the ConfigMap kube-system/extension-apiserver-authentication. It checks every request
//     again, as the impersonated user, and does admission.
//   - The agent's own credential asks for these reviews, reads that ConfigMap and requests the token of the upstream
//     credential. It never travels with a client's request.
//   - The upstream credential, a short-lived token of a service account of its own, may impersonate and nothing else.
//     So a request that loses its impersonation headers can do nothing: impersonation fails closed.
//   - The proxy's own signer CA and the cluster's client CA are equal: both vouch for users by client certificate.
//
// # Order
//
// The front half is the API server's own code (k8s.io/apiserver), in the API server's order: request info,
// authentication, nested impersonation, authorization (identity). The function handler in chain.go shows all of it, one
// filter a line. The back half (relay) is one httputil.ReverseProxy whose Rewrite sets the address only. Identity is
// set by a RoundTripper (asUser): it runs after hop-by-hop headers were removed, so that a Connection header cannot
// name ours, and it can refuse, which Rewrite cannot. No user in the context means no request.
//
// Package request has what they share about a request. Package listener handles connections before all of them, and
// flowcontrol bounds the memory and the work of clients. docs/overload.md has the order of all steps.
//
// # Nested impersonation
//
// A client may itself ask to impersonate. That is authorized by the same rules and the same code as in the API server,
// constrained impersonation included. The user who asked is kept in the extra key
// original-user-info.impersonation-proxy.concierge.pinniped.dev, so that the API server's audit log names all three:
// the proxy's service account, the original user, and the user acted as. Extra keys under this domain that come from
// outside are refused.
//
// # UIDs
//
// A user with a UID (every service account) is impersonated with Impersonate-Uid, which API servers know since 1.22. No
// client's token is sent on.
//
// # When something is missing
//
// A failed step ends the request; nothing is only logged. If the API server cannot be reached, or there is no upstream
// token yet, the response is a metav1.Status with code 503 and Retry-After. A client certificate that does not verify
// results in 401 of the chain; it does not break the TLS handshake, as the client may have a valid token too.
package proxy
