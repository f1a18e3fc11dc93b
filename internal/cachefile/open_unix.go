//go:build unix

package cachefile

import "syscall"

// asItIs opens a file without following a symbolic link, and a pipe without waiting for its other end.
const asItIs = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
