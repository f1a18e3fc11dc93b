package devcluster

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is a TCP port of 127.0.0.1 that is reserved for this cluster while it runs, or, on systems without such a
// reservation, that was free when it was chosen.
type port struct {
	number  int
	release func()
}

// freePort returns a port on which no program listens.
func freePort() (*port, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("looking for a free port: %w", err)
	}
	number := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("looking for a free port: %w", err)
	}
	return &port{number: number, release: func() {}}, nil
}

// ReservePort returns a TCP port of 127.0.0.1 for a Go program that runs next to the cluster. On Linux, it is reserved
// until the cluster is stopped, even while the program does not listen.
func (c *Cluster) ReservePort() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return 0, fmt.Errorf("reserving a port: %w", errStopped)
	}
	reserved, err := reserveGoPort()
	if err != nil {
		return 0, err
	}
	c.lent = append(c.lent, reserved)
	return reserved.number, nil
}

// reservePort reserves a free port with a socket that is bound but does not listen, with SO_REUSEPORT: only programs
// that also set that option (etcd and kube-apiserver are configured to) can listen on the port, even while the API
// server is stopped. The kernel releases it when the process ends.
func reservePort() (*port, error) { return reserve(unix.SO_REUSEPORT) }

// reserveGoPort does the same for a Go program, which sets SO_REUSEADDR when it listens. That only works on Linux;
// elsewhere the port is free when it is chosen.
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
