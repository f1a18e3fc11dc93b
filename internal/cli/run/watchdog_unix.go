//go:build unix

package run

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// watch is what the watchdog does. It reads the number of the program's process, and then that the run has ended. When its
// input ends before that, we were killed: the files of the run go, and the program is ended, with some time to do so itself.
const watch = `read -r program
read -r ended && exit
rm -rf -- "$1"
[ -n "$program" ] || exit
kill -TERM "$program" || exit
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; kill -0 "$program" || exit; done
kill -KILL "$program"`

// watchdog cleans up after a run that is killed in a way that leaves it no time to do so. It is a process of its own,
// in a process group of its own, so that what kills the run's group or comes from its terminal does not end it.
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

// guard has the watchdog end this process if we are killed.
func (w *watchdog) guard(process *os.Process) {
	if w != nil {
		_, _ = fmt.Fprintln(w.pipe, process.Pid) // it may have ended
	}
}

// stop says that the run has ended.
func (w *watchdog) stop() {
	if w != nil {
		_, _ = fmt.Fprint(w.pipe, "\nended\n") // a line for the process, where none was started
		_ = w.pipe.Close()
		_ = w.process.Wait() // its exit code says nothing
	}
}
