// Package memory fits how the agent uses memory to what it has to do.
//
//   - Garbage. With little live memory, Go collects garbage after a few megabytes: many times a second under load.
//     Meanwhile the heap may grow to busyHeap before it is collected. Where more than half of that is live,
//     nothing changes. The limit on memory (GOMEMLIMIT, or nine tenths of the container's) stays in force. Without
//     this, a get takes 15% more CPU, and a list by one client half as much again (docs/adr/0031).
//   - What is not in use goes back to the system as soon as it gets quiet. Go itself would keep about as much as it has
//     live. The pages of the program that only its start or a load has needed go as well. Together that is almost half
//     of the resident memory.
//
// GOGC in the environment decides for itself: then nothing is done.
package memory
