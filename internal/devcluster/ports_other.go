//go:build !unix

package devcluster

import (
	"fmt"
	"net"
)

// port is a TCP port of 127.0.0.1 that was free when it was chosen.
type port struct {
	number  int
	release func()
}

// reservePort finds a free port. There is no way here to keep it until the program listens.
func reservePort() (*port, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	number := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	return &port{number: number, release: func() {}}, nil
}

// portSharing: nothing is reserved here, so there is nothing to share.
const portSharing = false
