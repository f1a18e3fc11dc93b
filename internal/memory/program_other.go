//go:build !linux

package memory

// unmapProgram does nothing here.
func unmapProgram() {}
