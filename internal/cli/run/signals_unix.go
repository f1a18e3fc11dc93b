//go:build unix

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are those that reach us while a program runs.
type signals struct {
	incoming chan os.Signal
	done     chan struct{}
}

// catch begins to catch signals.
func catch() *signals {
	s := &signals{incoming: make(chan os.Signal, 16), done: make(chan struct{})}
	signal.Notify(
		s.incoming,
		syscall.SIGINT,
		syscall.SIGQUIT,
		syscall.SIGTERM,
		syscall.SIGHUP,
		syscall.SIGUSR1,
		syscall.SIGUSR2,
	)
	return s
}

// passTo passes the signals on to process. Ctrl-C and Ctrl-\ are an exception: when our process group has the terminal,
// the terminal sends them to the program itself, which may count them.
func (s *signals) passTo(process *os.Process) {
	go func() {
		for {
			select {
			case <-s.done:
				return
			case caught := <-s.incoming:
				if (caught == syscall.SIGINT || caught == syscall.SIGQUIT) && inForeground() {
					continue
				}
				_ = process.Signal(caught) // it may have ended
			}
		}
	}()
}

func (s *signals) release() {
	signal.Stop(s.incoming)
	close(s.done)
}

// inForeground reports whether our process group is the one that the terminal sends signals to.
func inForeground() bool {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer terminal.Close() //nolint:errcheck // only read from
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalled + int(status.Signal())
	}
	return state.ExitCode()
}
