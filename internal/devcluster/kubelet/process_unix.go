//go:build unix

package kubelet

import (
	"os/exec"
	"syscall"
)

// asGroup starts the process in a process group of its own. Cancelling the command kills the whole group.
func asGroup(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
}

// asSession makes a process the leader of a session whose terminal is its standard input.
func asSession(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}
