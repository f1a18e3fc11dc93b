//go:build unix

package devcluster

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reservePort takes a free port and keeps it. The reservation is a socket that is bound but does not listen, with
// SO_REUSEPORT: programs which set that option too (etcd and kube-apiserver are told to) can listen on the port, all
// others are kept away, also while the API server is down. The kernel drops it when the process ends.
func reservePort() (*port, error) { return reserve(unix.SO_REUSEPORT) }

// reserveGoPort does the same for a program in Go, which sets SO_REUSEADDR when it listens. Only Linux lets it listen
// then; elsewhere the port is free when it is chosen.
func reserveGoPort() (*port, error) {
	if runtime.GOOS != "linux" {
		return freePort()
	}
	return reserve(unix.SO_REUSEADDR)
}

func reserve(option int) (*port, error) {
	syscall.ForkLock.RLock()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserving a port: %w", os.NewSyscallError("socket", err))
	}
	number, err := bindReservation(fd, option)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	return &port{number: number, release: sync.OnceFunc(func() { _ = unix.Close(fd) })}, nil
}

func bindReservation(fd, option int) (int, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	inet, ok := address.(*unix.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("unexpected socket address %T", address)
	}
	return inet.Port, nil
}

// portSharing says that the programs are to set SO_REUSEPORT, without which they cannot listen on a reserved port.
const portSharing = true
