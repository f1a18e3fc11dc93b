package governor

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// prSetTimerSlack is PR_SET_TIMERSLACK of prctl: how much later than asked for a thread may wake.
	prSetTimerSlack = 29
	// usualSlack is what Linux gives each thread, and monitorSlack what the monitor of the Go runtime gets.
	usualSlack, monitorSlack = 50 * time.Microsecond, 500 * time.Microsecond
)

// calmMonitor lets the monitor thread of the Go runtime (sysmon) sleep longer. It asks to be woken after 20 µs again and
// again as long as there is something to do, and looks whether a thread hangs in a system call. That was a seventh of what
// a get costs. It cannot be asked by itself: so all threads get what is meant for it, and the others give it back.
func calmMonitor() {
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(monitorSlack), 0)
	if errno != 0 {
		return
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		threads = make([]os.DirEntry, runtime.NumCPU())
	}
	// Each of these goroutines holds a thread of its own until all of them have one.
	var met sync.WaitGroup
	release := make(chan struct{})
	for range threads {
		met.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, prSetTimerSlack, uintptr(usualSlack), 0)
			met.Done()
			<-release
		}()
	}
	met.Wait()
	close(release)
}
