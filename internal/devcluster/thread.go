package devcluster

import (
	"runtime"
	"sync"
)

// thread runs functions on one operating system thread that lives until stop is called.
//
// The kernel ties a program's death signal to the thread that started the program, not to the process. When Go ends
// that thread, the kernel kills a healthy API server. Go cannot end this thread.
type thread struct {
	calls chan func()
	stop  func()
}

func newThread() *thread {
	t := &thread{calls: make(chan func())}
	t.stop = sync.OnceFunc(func() { close(t.calls) })
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for call := range t.calls {
			call()
		}
	}()
	return t
}

// do runs call on the thread and returns its error. It must not be called after stop.
func (t *thread) do(call func() error) error {
	result := make(chan error, 1)
	t.calls <- func() { result <- call() }
	return <-result
}
