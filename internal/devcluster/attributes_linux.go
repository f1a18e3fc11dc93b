package devcluster

import "syscall"

// attributes puts a program into a process group of its own, and asks the kernel to kill it together with the thread
// that starts it: see thread.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
