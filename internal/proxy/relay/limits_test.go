package relay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLimitsAreDocumented compares the table of limits in the reference with the code of this package.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "agent.md"))
	if err != nil {
		t.Fatal(err)
	}
	for what, limit := range map[string]string{
		"buffered response": fmt.Sprintf("up to %d MiB if it is unread for 20 ms and "+
			"there is memory; otherwise %d KiB from the API server and 32 KiB in the proxy; for a stream, %d KiB and 16 KiB",
			maxAhead>>20, upstreamWindow>>10, streamWindow>>10),
		"time to connect to the API server": fmt.Sprintf("%.0f s, and %.0f s for TLS; then 503",
			dialTimeout.Seconds(), handshakeTimeout.Seconds()),
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
}
