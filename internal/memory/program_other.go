//go:build !linux

package memory

// unmapProgram does nothing on this system.
func unmapProgram() {}
