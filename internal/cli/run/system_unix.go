//go:build unix

package run

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
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

// watch is the watchdog's script. It reads the program's PID, and then a line when the run ends. If its input ends
// before that, we were killed: it deletes the run's files, and ends the program with SIGTERM, then SIGKILL.
const watch = `read -r program
read -r ended && exit
rm -rf -- "$1"
[ -n "$program" ] || exit
kill -TERM "$program" || exit
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; kill -0 "$program" || exit; done
kill -KILL "$program"`

// watchdog cleans up after a run that is killed with SIGKILL. It is a process in its own process group, so that signals
// to the run's group or from its terminal do not reach it.
type watchdog struct {
	process *exec.Cmd
	pipe    io.WriteCloser
}

// startWatchdog starts a watchdog for the files in dir. Without a shell there is none, and the next run cleans up.
func startWatchdog(dir string) *watchdog {
	process := exec.Command("/bin/sh", "-c", watch, "pinniped-run", dir) //nolint:noctx // it outlives us
	process.Env = []string{"PATH=" + os.Getenv("PATH")}
	process.Dir = "/"
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := process.StdinPipe()
	if err != nil {
		return nil
	}
	if process.Start() != nil {
		_ = pipe.Close()
		return nil
	}
	return &watchdog{process, pipe}
}

// guard makes the watchdog end process if we are killed.
func (w *watchdog) guard(process *os.Process) {
	if w != nil {
		_, _ = fmt.Fprintln(w.pipe, process.Pid) // the watchdog may have exited
	}
}

// stop tells the watchdog that the run has ended.
func (w *watchdog) stop() {
	if w != nil {
		_, _ = fmt.Fprint(w.pipe, "\nended\n") // an empty line in place of the PID if no program was started
		_ = w.pipe.Close()
		_ = w.process.Wait() // its exit code says nothing
	}
}

// checkPrivate rejects a directory that other users own or may write to: they could read credentials, or replace the
// kubeconfig by one that runs their program.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		err = fmt.Errorf("%q is not a directory", dir)
	case ok && int(owner.Uid) != os.Geteuid():
		err = fmt.Errorf("%q belongs to user %d", dir, owner.Uid)
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("%q is accessible by others (mode %#o)", dir, info.Mode().Perm())
	default:
		return nil
	}
	word := ui.ShellWord(dir)
	return ui.WithHint(err, "run \"rm -r %s\", or if the folder is yours, \"chmod 700 %s\"", word, word)
}
