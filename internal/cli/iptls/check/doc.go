// Package check implements `pinniped ip-tls check`: the catalogue of checks, asked about the cluster, files, or an
// endpoint.
package check
