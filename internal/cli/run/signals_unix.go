//go:build unix

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are the signals that reach us while a program runs.
type signals struct {
	incoming chan os.Signal
	done     chan struct{}
}

// catch starts to catch signals.
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

// passTo forwards the signals to process, except Ctrl-C and Ctrl-\ while our process group has the terminal: the
// terminal sends those to the program itself, which may count them.
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
				_ = process.Signal(caught) // it may have exited
			}
		}
	}()
}

func (s *signals) release() {
	signal.Stop(s.incoming)
	close(s.done)
}

// inForeground reports whether our process group is in the foreground of the terminal.
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
