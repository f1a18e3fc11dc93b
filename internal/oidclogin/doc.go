// Package oidclogin logs people in with an OpenID Connect issuer, from the command line, and keeps their sessions.
//
// A Login with its fields filled in gives tokens: Token from the session in the cache, by a refresh, or by a login in
// the browser, by a device code, or with name and password at a Supervisor; Renew when a cluster refused the token that
// Token gave. Logout ends sessions. The package knows no command line: what is printed and asked goes through Terminal.
//
// What it trusts: the issuer at its https address, verified with the CA bundle. What an issuer, a browser or a
// program on this computer sends is checked before it is used: state, nonce, PKCE, issuer, audience and signature.
// Requests that carry a secret follow no redirect. No token, code or password is in an error or on the screen.
package oidclogin
