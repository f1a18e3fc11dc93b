package localuser

import "golang.org/x/sys/unix"

// lowerPriority is of the calling thread. Where it is not allowed, the comparison is like everything else.
func lowerPriority() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness) }
