// Package governor fits the Go runtime to what the agent has to do. Without it, a get takes 10% more CPU, and a list by one
// client 20% (docs/adr/0031).
//
//   - Processors. Go wakes another thread whenever there is work and a processor is idle. A request through the proxy
//     passes through a dozen goroutines, so with little to do most of its cost is threads that wake each other. The
//     agent uses as many processors as it needs: one when there is little to do, all of them within a tenth of a second
//     when there is much, and two as soon as goroutines have to wait for the only one.
//   - Garbage. With little live memory, Go collects garbage after a few megabytes: many times a second under load. While
//     there is load, the heap may grow to busyHeap before it is collected. Where more than half of that is live,
//     nothing changes. The limit on memory (GOMEMLIMIT, or nine tenths of the container's) stays in force.
//   - Memory. When it gets quiet, memory that is not in use goes back to the system at once. Go itself would keep about
//     as much as it has live. So do the pages of the program that only its start or a load has needed.
//   - Monitor. The thread with which Go looks after its other threads wakes less often.
//
// GOMAXPROCS or GOGC in the environment decide for themselves: the governor leaves alone what they set.
package governor
