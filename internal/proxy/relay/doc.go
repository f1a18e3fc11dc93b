// Package relay carries requests to the API server, as the user whom others found out: NewHandler is the back half of
// the proxy. It puts the user onto the request (asuser.go), lets users take turns at the API server (turn.go), and
// chooses the way there (transport.go).
//
// HTTP1 is for every request that is no stream and whose body is in memory. It writes the request and reads the
// response in the goroutine that calls it, over an HTTP/1.1 connection which carries nothing else meanwhile. net/http's
// transports hand each request from goroutine to goroutine, and HTTP/2 compresses headers and counts windows besides:
// for a small request that was most of what the proxy did. A client that does not read its response is held back by
// TCP, as far as the API server.
//
// # What keeps answers apart
//
// A connection is used again only when all of a response was read, neither side asked to close, and nothing is left
// over. Before it is used again, it is looked at: a connection on which anything has come meanwhile, be it an end or
// bytes that no request asked for, is closed. This look goes through TLS to the socket, so no layer can hide bytes that
// would be taken for the next answer. Whatever else happens to a response, a client that leaves included, ends the
// connection.
//
// # What is sent twice
//
// The API server may close a connection just when a request is written to it. The request is then sent again, once and
// on a new connection, if nothing of it was sent, or if it is a read and nothing of a response came. A write of which
// anything was sent is not repeated: it may have been carried out.
//
// Locks: aheadBody.mu, and under it those of admission.
package relay
