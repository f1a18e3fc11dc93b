//go:build !linux

package impersonator

import "net"

// boundSendQueue does nothing: clusters run the agent on Linux.
func boundSendQueue(net.Conn) {}
