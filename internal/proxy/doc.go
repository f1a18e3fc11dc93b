// Package proxy serves the Kubernetes API behind the administrator's own serving certificate: it authenticates and
// authorizes requests as the API server does, and forwards them as the user by impersonation.
//
// # Trust
//
//   - The client is not trusted. All its claims about identity (Impersonate-*, X-Remote-*, X-Forwarded-* and similar
//     names) are verified by an authenticator, removed, or refused.
//   - The API server is trusted to decide TokenReviews and SubjectAccessReviews, and to publish the client CA and the
//     front proxy settings in the ConfigMap kube-system/extension-apiserver-authentication. It authorizes every request
//     again, as the impersonated user, and runs admission.
//   - The agent's own credential sends these reviews, reads that ConfigMap and requests the token of the upstream
//     credential. It is never part of a client's request.
//   - The upstream credential, a short-lived token of a separate service account, may only impersonate. So a request
//     that loses its impersonation headers can do nothing: impersonation fails closed.
//   - The proxy's own signer CA and the cluster's client CA are equivalent: both issue client certificates of users.
//
// # Order
//
// The front half is the API server's own code (k8s.io/apiserver), in the API server's order: request info,
// authentication, nested impersonation, authorization (package identity). The function handler in chain.go lists all
// filters. The back half (relay) is an httputil.ReverseProxy whose Rewrite only sets the address. A RoundTripper
// (asUser) sets the identity: it runs after hop-by-hop headers were removed, so a Connection header cannot remove the
// identity, and unlike Rewrite it can refuse. It refuses requests without a user.
//
// Package request has the shared state of a request. Package listener handles connections, and flowcontrol limits the
// memory and the work of clients. docs/overload.md has the order of all steps.
//
// # Nested impersonation
//
// A client may itself impersonate. The API server's own code authorizes that by the same rules, including constrained
// impersonation. The extra key original-user-info.impersonation-proxy.concierge.pinniped.dev records the original user,
// so that the API server's audit log names all three: the proxy's service account, the original user, and the
// impersonated user. Extra keys of this domain from clients are refused.
//
// # UIDs
//
// A user with a UID (every service account) is impersonated with Impersonate-Uid, which API servers support since 1.22.
// No client's token is forwarded.
//
// # Failures
//
// A failed step ends the request. If the API server cannot be reached, or there is no upstream token yet, the response
// is a metav1.Status with code 503 and Retry-After. An invalid client certificate results in 401; it does not fail the
// TLS handshake, because the client may also have a valid token.
package proxy
