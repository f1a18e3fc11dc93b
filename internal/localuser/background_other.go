//go:build !linux

package localuser

// lowerPriority does nothing: elsewhere the priority is of the whole process, and clusters run it on Linux.
func lowerPriority() {}
