// Package history implements `pinniped ip-tls history`: revisions, and whether their clients verify the certificate.
package history
