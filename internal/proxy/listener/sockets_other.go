//go:build !linux

package listener

import "net"

// boundSendQueue and hasLeft do nothing: clusters run the agent on Linux.
func boundSendQueue(net.Conn) {}

func hasLeft(net.Conn) bool { return false }
