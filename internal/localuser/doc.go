// Package localuser is the local-user-authenticator: a TokenReview webhook whose users are the Secrets of one
// namespace. It is an identity provider for demonstrations and tests, not for production.
//
// A user is a Secret with the key passwordHash (bcrypt) and, optionally, groups (one line of comma-separated names);
// the Secret's name is the username. The token of a user is "username:password". Run serves the webhook at POST
// /authenticate over TLS 1.3 with a certificate that it issues and renews itself, and keeps in the Secret
// ServingSecretName together with its CA.
//
// Anyone who reaches the port may ask, and learns only whether a username and a password match. The number of comparisons
// at a time is bounded. A user who may write Secrets in the namespace decides who the users are, but cannot give a user or
// a group a name that begins with "system:".
//
// There is no health endpoint: every path but /authenticate gets 404, as clients of this protocol expect. The port is
// opened when the users have been read and the certificate exists, so a TCP probe of the port reports readiness.
package localuser
