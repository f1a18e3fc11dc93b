package logs_test

import (
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

func TestTruncate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"short":                 "short",
		strings.Repeat("x", 11): "xxxxxxx…",
		strings.Repeat("ä", 6):  "äää…",
	} {
		if got := logs.Truncate(text, 10); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
