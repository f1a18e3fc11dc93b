package devcluster

import (
	"fmt"
	"net"
)

// port is a TCP port of 127.0.0.1 that belongs to this cluster for as long as it runs, or, where the system knows no
// way to keep it, that was free when it was chosen.
type port struct {
	number  int
	release func()
}

// freePort finds a port on which no program listens.
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

// ReservePort returns a TCP port of 127.0.0.1 for a program in Go that runs next to the cluster. On Linux no other
// program is given it until the cluster is stopped, also while the program does not listen.
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
