//go:build !linux

package governor

// calmMonitor does nothing here.
func calmMonitor() {}
