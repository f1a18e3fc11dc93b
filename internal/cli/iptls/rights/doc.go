// Package rights knows what each command of `pinniped ip-tls` must be permitted to do. The manifests of --print-rbac,
// the list of what a user lacks, and the Roles in deploy/iptlsroles are all made from it.
package rights
