// Package flowcontrol decides how much of the agent's memory, of its processors and of the API server each client gets.
//
// Everything has a Flow: a user, over all connections and addresses, or an address as long as nobody has authenticated.
// Everything that a client can cause is a Resource, and one table (limits.go) says of each resource how much of it a
// flow may have. Acquire is the one decision. Three things can happen when something is full:
//
//   - It waits, when the bound is one of work: flows are served in turn, and so do the connections of one address. A wait ends
//     with the request.
//   - It is refused (*Full), when the bound is one of memory. Nothing has been done by then.
//   - The caller evicts a connection of an unauthenticated client, and asks again. Package listener does that.
//
// Memory is one number, derived from the limit of the pod: all users together have one part of it, all unauthenticated
// clients another, so unauthenticated clients take nothing from users however many they are. The last part of what
// users have is for those who hold little.
//
// Work that came to nothing, such as a request that the client has reset, gives its flow a penalty in processor time
// (penalty.go). Package listener reads nothing from flows under a penalty until it has passed.
//
// Locks: Controller.mu, queue.mu and ledger.mu guard what stands below them. None is held while another is taken.
package flowcontrol
