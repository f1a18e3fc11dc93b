//go:build !linux

package proxy

import (
	"net"
	"syscall"
)

// boundSendQueue does nothing: clusters run the agent on Linux.
func boundSendQueue(net.Conn) {}

func boundUpstream(string, string, syscall.RawConn) error { return nil }
