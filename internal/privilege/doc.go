// Package privilege asks the API server, with a credential itself, what that credential may do beyond impersonating
// others.
//
// The proxy's upstream credential must not be good for anything else. Then a request without impersonation headers, by
// some mistake, can do nothing. An admin who grants it more takes that safety away, perhaps without noticing: a binding
// for all service accounts is enough. What every authenticated user may do is not counted.
package privilege
