//go:build unix

package kubelet

import (
	"os/exec"
	"syscall"
)

// asGroup puts a process into a group of its own, and has that killed with it.
func asGroup(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
}

// asSession makes a process the leader of a session whose terminal is its standard input.
func asSession(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}
