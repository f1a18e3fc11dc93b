// Package servingcert decides which certificate the impersonation proxy serves, and holds it.
//
// There are two sources. An external certificate comes from a Secret that an admin names in
// spec.impersonationProxy.tls; External checks it with pkg/certs. A generated certificate is issued by the agent
// itself when there is no tls block; GeneratedCA and GeneratedServing describe it for internal/issuedcert.
//
// Everything that decides is a pure function. Holder is the one place where a decision takes effect. A certificate
// that is refused never gets there, so the last good one stays in service.
package servingcert
