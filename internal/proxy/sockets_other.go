//go:build !linux

package proxy

import "net"

// boundSendQueue does nothing: clusters run the agent on Linux.
func boundSendQueue(net.Conn) {}
