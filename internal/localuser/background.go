package localuser

import "runtime"

// niceness is the nice value, see sched(7), at which passwords are compared: when everything on the node wants to
// compute, a comparison gets a tenth of a processor.
const niceness = 10

// inBackground returns compare on a thread that computes when others do not. A comparison takes fifty milliseconds
// in one go, and a stranger can cause it; what others do takes one.
func inBackground(compare func(hash, password []byte) error) func(hash, password []byte) error {
	return func(hash, password []byte) error {
		result := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine, as it may not raise its priority again
			lowerPriority()
			result <- compare(hash, password)
		}()
		return <-result
	}
}
