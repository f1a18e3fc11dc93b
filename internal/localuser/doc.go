// Package localuser is the local-user-authenticator: a TokenReview webhook whose users are the Secrets of one
// namespace. It is an identity provider for demonstrations and tests, not for production.
//
// A user is a Secret with the key passwordHash (bcrypt) and, optionally, groups (one line of comma-separated names);
// the Secret's name is the username. The token of a user is "username:password". Run serves the webhook at POST
// /authenticate over TLS 1.3 with a certificate which it makes and renews itself, and keeps in the Secret
// ServingSecretName together with its CA.
//
// Who is trusted with what: anyone who reaches the port may ask, and learns only whether a username and a password go
// together. An unknown username costs the same work as a known one. That a password is right is remembered for a while,
// in memory, so that users who log in again do not wait behind those who guess. A user who may write Secrets in the
// namespace decides who the users are, but cannot give a user or a group a name that begins with "system:".
//
// There is no health endpoint: every path but /authenticate is answered with 404, as clients of this protocol expect.
// The port is opened when the users have been read and the certificate is there, so a TCP probe of the port tells
// readiness.
package localuser
