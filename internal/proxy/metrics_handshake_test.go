package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
)

// TestHandshakesInTheLog writes what net/http does about failed handshakes, as an operator without -v sees it.
func TestHandshakesInTheLog(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, reason string
		wants        int
	}{
		{"logs samples of those that are too large", errHandshakeTooLarge.Error(), logs.SamplesPerPeriod},
		{"logs none that a client gave up", "EOF", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
			log := serverLog{logger: logger, metrics: NewMetrics(), refused: logs.NewSampler("Refused a TLS handshake")}
			for i := range logs.SamplesPerPeriod {
				_, _ = fmt.Fprintf(log, "http: TLS handshake error from 192.0.2.1:%d: %s\n", i, test.reason)
			}
			if len(lines) != test.wants {
				t.Fatalf("want %d lines, got %q", test.wants, lines)
			}
			for i, line := range lines {
				if address := fmt.Sprintf("192.0.2.1:%d: ", i); !strings.Contains(line, "Refused a TLS handshake") ||
					!strings.Contains(line, address+test.reason) {
					t.Errorf("want address and reason in %q", line)
				}
			}
		})
	}
}
