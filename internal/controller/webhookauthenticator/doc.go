// Package webhookauthenticator evaluates WebhookAuthenticators: is the endpoint a URL that can be dialed, and who
// verifies its certificate?
package webhookauthenticator
