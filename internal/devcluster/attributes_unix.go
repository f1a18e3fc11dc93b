//go:build unix && !linux

package devcluster

import "syscall"

// attributes puts a program into a process group of its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
