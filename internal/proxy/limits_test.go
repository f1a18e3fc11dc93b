package proxy

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
)

// TestLimitsAreDocumented compares the limits in the code with the table in the reference.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "agent.md"))
	if err != nil {
		t.Fatal(err)
	}
	server := newHTTPServer(nil, nil, io.Discard)
	seconds := func(d time.Duration) string { return fmt.Sprintf("%d s", int(d.Seconds())) }
	kib := func(n int) string {
		if n%(1<<20) == 0 {
			return fmt.Sprintf("%d MiB", n>>20)
		}
		return fmt.Sprintf("%d KiB", n>>10)
	}
	var o Options
	o.setDefaults()
	for what, limit := range map[string]string{
		"request header, all lines together": kib(server.MaxHeaderBytes) + ", then 431",
		"concurrent HTTP/2 streams per connection": fmt.Sprintf("%d, authenticated or not",
			server.HTTP2.MaxConcurrentStreams),
		"HTTP/2 frame from a client": kib(server.HTTP2.MaxReadFrameSize),
		"buffered request body": fmt.Sprintf(
			"%s before the request is forwarded; for a larger body, %s per stream and %s per connection",
			kib(listener.MaxHeldBody),
			kib(server.HTTP2.MaxReceiveBufferPerStream), kib(server.HTTP2.MaxReceiveBufferPerConnection),
		),
		"time for the TLS handshake, and then for the header of a request":       seconds(server.ReadHeaderTimeout) + " each",
		"time from the header of a non-streaming request to the end of its body": seconds(o.BodyTimeout) + ", then 400",
		"connection without a request":                                           seconds(server.IdleTimeout) + ", then it is closed",
		"HTTP/2 client that does not acknowledge pings": seconds(server.HTTP2.SendPingTimeout) + " until a ping is sent, and " +
			seconds(server.HTTP2.PingTimeout) + " for the acknowledgement, then its streams end",
		"response to a slow client": seconds(o.WriteTimeout) + " for each 32 KiB, then it ends; only " + seconds(slowAfter) +
			" when the slow-client limit is reached",
		"connection whose client reads nothing": seconds(server.HTTP2.WriteByteTimeout) + ", then it is closed",
		"time to finish at shutdown": "streams: `shutdownDelay` + " + seconds(o.StreamGrace) +
			"; other requests: `shutdownDelay` + " + seconds(o.DrainTimeout),
		"certificates that a client may present": fmt.Sprintf(
			"%d, with at most %d intermediates of the same subject; then 401", clienttrust.MaxPresented, clienttrust.MaxOfOneName,
		),
		"cached rejections of certificates": fmt.Sprintf(
			"%[1]d for users and %[1]d for front proxies, for %.0[2]f minute or until a CA changes",
			clienttrust.MaxRefused, clienttrust.RefusedFor.Minutes(),
		),
		"body of a TokenCredentialRequest": kib(maxLogin) + ", then 413",
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
	if text := fmt.Sprintf(
		"it is unread for %d ms and",
		aheadAfter.Milliseconds(),
	); !strings.Contains(
		string(content),
		text,
	) {
		t.Errorf("docs/reference/agent.md does not say %q", text)
	}
}
