// Package clients implements `pinniped ip-tls clients`: what clients were told, and who of them works.
package clients
