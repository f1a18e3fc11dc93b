package impersonator

// stackNeeded makes the stack of a request 16 KiB. So much the filters, ReverseProxy and net/http need below them.
const stackNeeded = 9 << 10

// growStack gives the goroutine of a request the stack that it will need. A goroutine begins with a small stack. Go
// would double it two or three times on the way through the filters, and each time copy all that is on it: a tenth of
// what a get costs. At the beginning there is next to nothing to copy.
//
//go:noinline
func growStack(unused int) byte {
	var space [stackNeeded]byte
	return space[unused%stackNeeded]
}
