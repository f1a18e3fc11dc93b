// Package repair implements `pinniped ip-tls repair`: a file of certificates, or of a private key, in the form that all
// programs read.
package repair
