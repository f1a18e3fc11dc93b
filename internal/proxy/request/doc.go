// Package request is what the packages of the proxy share about one request, and how they respond to it. State goes
// with the context of the request. A response that is not the API server's is a metav1.Status, whose code says whether
// it is worth trying again: 503 when nothing was decided, 429 when the client wants too much.
package request
