// Package admission decides how much of the agent's memory, of its processors and of the API server each client gets.
//
// Everything has an Owner: a user, over all connections and addresses, or an address as long as nobody has
// authenticated. Everything that a client can cause is a Kind, and one table (limits.go) says of each kind how much of
// it an owner may have. Enter is the one decision. Three things can happen when something is full:
//
//   - It waits, when the bound is one of work: owners take turns, and so do the connections of one address. A wait ends
//     with the request.
//   - It is refused (*Full), when the bound is one of memory. Nothing has been done by then.
//   - The caller evicts a connection of a stranger, and asks again. Package edge does that.
//
// Memory is one number, derived from the limit of the pod: all users together have one part of it, all strangers
// another, so strangers take nothing from users however many they are. The last part of what users have is for those
// who hold little.
//
// Work that came to nothing, such as a request that the client has reset, is a debt of its owner in processor time
// (debt.go). Package edge reads nothing from owners in debt until it is paid.
//
// Locks: Admission.mu, queue.mu and ledger.mu guard what stands below them. None is held while another is taken.
package admission
