//go:build !linux

package relay

import "syscall"

// boundUpstream does nothing: clusters run the agent on Linux.
func boundUpstream(string, string, syscall.RawConn) error { return nil }
