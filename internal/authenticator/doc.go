// Package authenticator finds out whom a token belongs to: it holds the authenticators that the cluster's
// WebhookAuthenticator objects describe, and speaks to their webhooks.
package authenticator
