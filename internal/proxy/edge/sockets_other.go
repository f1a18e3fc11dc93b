//go:build !linux

package edge

import "net"

func boundSendQueue(net.Conn) {}
