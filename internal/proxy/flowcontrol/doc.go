// Package flowcontrol shares the agent's memory and processors, and the API server, fairly among clients.
//
// Each client belongs to a Flow: a user, over all connections and addresses, or the address of an unauthenticated
// client. One table (limits.go) has the limits of each Resource. Acquire enforces them. At a limit:
//
//   - Work waits in a queue. Flows take turns, and so do the connections of one address. The wait ends with the
//     request.
//   - Memory is refused (*Full) before any work is done.
//   - The listener evicts a connection of an unauthenticated client, and tries again (package listener).
//
// The memory limits derive from the memory limit of the pod: all users together have one part and all unauthenticated
// clients another, so unauthenticated clients never take memory from users. The last part of the users' memory is
// reserved for users who hold little.
//
// Wasted work, such as a request that the client has reset, charges its flow a penalty in processor time (penalty.go).
// Package listener reads nothing from a flow until its penalty has passed.
//
// Locks: Controller.mu, queue.mu and ledger.mu guard the fields below them. None is held while another is taken.
package flowcontrol
