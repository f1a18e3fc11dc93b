//go:build !linux

package governor

// unmapProgram does nothing here.
func unmapProgram() {}
