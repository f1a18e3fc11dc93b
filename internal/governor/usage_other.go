//go:build !unix

package governor

import "time"

// processorTime is not known here.
func processorTime() (time.Duration, bool) { return 0, false }
