// Package authenticators is what the controllers of WebhookAuthenticators and of JWTAuthenticators have in common:
// reading the CA bundle, putting usable authenticators into the cache, and reporting conditions. What differs between
// the kinds is in a Kind.
//
// Every replica evaluates every object and fills its own cache of authenticators; the leading one writes the status.
package authenticators
