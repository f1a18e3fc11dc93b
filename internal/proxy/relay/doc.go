// Package relay forwards requests to the API server as the authenticated user: NewHandler is the back half of the
// proxy. It impersonates the user (asuser.go), acquires seats (seats.go), and chooses the transport (transport.go).
//
// HTTP1 sends every request that is not a stream and whose body is in memory. It writes the request and reads the
// response in the caller's goroutine, over an exclusive HTTP/1.1 connection. net/http's transports pass each request
// between goroutines, and HTTP/2 also compresses headers and counts windows: for a small request that was most of the
// proxy's work. A slow client causes TCP backpressure up to the API server.
//
// # Separation of responses
//
// A connection is reused only when the whole response was read, neither side asked to close, and no bytes are left
// over. Before reuse it is checked: a connection that has ended or has received unsolicited bytes is closed. The check
// reads through TLS from the socket, so no layer can hide bytes that would be taken for the next response. Any other
// end of a response, such as a client that disconnects, ends the connection.
//
// # Retries
//
// The API server may close a connection just when a request is written to it. The request is then sent again, once and
// on a new connection, if no part of it was sent, or if it is a read and no part of a response was received. A
// partially sent write is not repeated: it may have been carried out.
//
// Locks: aheadBody.mu, and under it those of flowcontrol.
package relay
