//go:build unix

package governor

import (
	"syscall"
	"time"
)

// processorTime returns the processor time that this process has used, user and system.
func processorTime() (time.Duration, bool) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, false
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), true
}
