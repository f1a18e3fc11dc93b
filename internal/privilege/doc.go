// Package privilege asks the API server, with a credential itself, what that credential may do beyond impersonating others.
//
// The proxy's upstream credential is meant to be good for nothing else: then a request that lost its impersonation headers, whatever the
// mistake, can do nothing. Whoever grants it more, perhaps by a binding for all service accounts, takes that safety away without noticing.
package privilege
