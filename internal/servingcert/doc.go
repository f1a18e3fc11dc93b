// Package servingcert decides which certificate the impersonation proxy serves, and holds it.
//
// There are two sources. An external certificate comes from a Secret that an admin names in
// spec.impersonationProxy.tls; External judges it with the checks of pkg/certs. A generated one is made by the agent
// itself when there is no tls block; PlanCA and PlanServing say whether the one at hand is still good.
// Everything that decides is a pure function. Holder is the one place where a decision takes effect: a certificate
// that is refused never gets there, so the last good one stays in service.
package servingcert
