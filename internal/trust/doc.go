// Package trust remembers what clients were told about the impersonation proxy, and judges what a change of its
// certificate does to them. It is pure: it reads no cluster, no file and no clock.
//
// What is advertised at one time is a State: the endpoint, the CA bundle, and the names that the certificate in service
// covered. Every kubeconfig that was made meanwhile has it, and works for as long as what is served verifies with it. The
// agent keeps the States in a History. Effect says, for each kind of client that the History or an administrator's
// evidence knows of, whether it works with what is served now and with what would be served next; Judge draws the
// conclusion from that.
package trust
