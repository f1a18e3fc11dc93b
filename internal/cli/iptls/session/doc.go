// Package session is how the commands of `pinniped ip-tls` reach the cluster and the endpoint: the flags that all of
// them have, and the client; Gather, which takes a Snapshot for package plan; Probe, which looks at what an endpoint
// presents.
package session
