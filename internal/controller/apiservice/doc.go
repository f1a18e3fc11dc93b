// Package apiservice keeps the serving certificate of the aggregated APIs, and the CA bundle in their APIServices by
// which the Kubernetes API server verifies it.
//
// Certificate and CA stand in one Secret. The leading replica makes and renews them, every replica serves what the
// Secret holds. A new CA is announced in the APIServices some minutes before anything is signed by it, and the old
// one stays there until it expires, so that no replica ever presents a certificate that the API server does not trust
// yet or no longer.
package apiservice
