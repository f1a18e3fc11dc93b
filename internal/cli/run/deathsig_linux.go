package run

import (
	"os/exec"
	"syscall"
)

// endWithUs has the kernel end the program when the thread that starts it does, also in the moment in which the watchdog
// does not know its process yet.
func endWithUs(program *exec.Cmd) {
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
