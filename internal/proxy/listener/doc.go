// Package listener is where clients come in: the listener, the connections below TLS, and the outermost filter. It
// knows addresses, bytes and time, and of users only the name that others tell it (Conn.Identified).
//
// It is for both ports: the impersonation proxy's and that of the Concierge APIs.
//
// As long as nobody has authenticated on a connection, it is an unauthenticated client's. All unauthenticated clients
// together have a part of the memory. When that is full, one of their connections is closed to make room
// (Port.evictionCandidate). When all wait for us, as many honest clients come at once, newcomers wait: before their
// handshake, or in the kernel. So an attacker replaces the attacker's own. What unauthenticated clients have computed,
// in handshakes and for requests until it is known who asks, takes turns by address and connection on half of the
// processors, so that users are served meanwhile.
//
// What a client sends counts until something comes of it: a request, a piece of a body, a window for a response. What
// does not, and what is reset or refused, is a penalty; nothing is read from a connection under a penalty until it has
// passed.
//
// Locks, in this order: Conn.mu, Port.mu.
package listener
