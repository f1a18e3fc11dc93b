// Package relay forwards requests to the API server as the authenticated user: NewHandler is the back half of the
// proxy. It impersonates the user (asuser.go), acquires seats (seats.go), and chooses the transport (transport.go).
//
// HTTP1 is for every request that is no stream and whose body is in memory. It writes the request and reads the
// response in the goroutine that calls it, over an HTTP/1.1 connection which carries nothing else meanwhile. net/http's
// transports pass each request between goroutines, and HTTP/2 also compresses headers and counts windows: for a small
// request that was most of the proxy's work. A slow client causes TCP backpressure up to the API server.
//
// # What keeps responses apart
//
// A connection is used again only when all of a response was read, neither side asked to close, and nothing is left
// over. Before it is used again, it is checked: a connection that has ended or has received unsolicited bytes is
// closed. The check reads through TLS from the socket, so no layer can hide bytes that would be taken for the next
// response. Any other end of a response, such as a client that disconnects, ends the connection.
//
// # What is sent twice
//
// The API server may close a connection just when a request is written to it. The request is then sent again, once and
// on a new connection, if nothing of it was sent, or if it is a read and nothing of a response came. A write of which
// anything was sent is not repeated: it may have been carried out.
//
// Locks: aheadBody.mu, and under it those of flowcontrol.
package relay
