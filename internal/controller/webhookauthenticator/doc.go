// Package webhookauthenticator checks WebhookAuthenticators, makes the good ones usable for logins, and reports what it found.
//
// Every replica evaluates every object and fills its own cache of authenticators; the leading one writes the status.
package webhookauthenticator
