// Package same compares what a test wants with what it got.
package same

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Values reports the differences, if any. what may be empty.
func Values(tb testing.TB, what string, want, got any, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Error(strings.TrimLeft(what+" (-want +got):\n"+diff, " "))
	}
}
