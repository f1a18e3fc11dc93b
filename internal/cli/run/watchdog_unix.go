//go:build unix

package run

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

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
