// Package listener has the listener, the connections below TLS, and the outermost filter. It knows addresses, bytes and
// time, and of users only the name (Conn.Identified).
//
// It is for both ports: the impersonation proxy's and that of the Concierge APIs.
//
// A connection is unauthenticated until a user authenticates on it. All unauthenticated clients share a part of the
// memory. When that is exhausted, one of their connections is evicted (Port.evictionCandidate). When all of them wait
// for the proxy, as when many honest clients connect at once, new clients wait: before their handshake, or in the
// kernel. So an attacker evicts only connections of their own. Work for unauthenticated clients, in handshakes and for
// requests until they are authenticated, is queued fairly by address and connection on half of the processors, so that
// users are served meanwhile.
//
// Input counts until it is processed: as a request, a piece of a body, a window for a response. Unprocessed input, and
// requests that are reset or refused, have a penalty; nothing is read from a connection until its penalty has passed.
//
// Locks, in this order: Conn.mu, Port.mu.
package listener
