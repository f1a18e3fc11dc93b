package proxy

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// TestLimitsAreDocumented compares what the server is made with, and other limits, with the table for admins.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "agent.md"))
	if err != nil {
		t.Fatal(err)
	}
	server := newHTTPServer(nil, nil, io.Discard)
	seconds := func(d time.Duration) string { return fmt.Sprintf("%d s", int(d.Seconds())) }
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	kib := func(n int) string {
		if n%(1<<20) == 0 {
			return fmt.Sprintf("%d MiB", n>>20)
		}
		return fmt.Sprintf("%d KiB", n>>10)
	}
	o, err := Options{
		Listener:           closedListener(t),
		Agent:              &rest.Config{},
		Upstream:           &rest.Config{},
		Token:              &staticToken{},
		GroupSuffix:        "pinniped.dev",
		ServingCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil },
	}.complete()
	if err != nil {
		t.Fatal(err)
	}
	for what, limit := range map[string]string{
		"request header, all lines together": kib(server.MaxHeaderBytes) + ", then 431",
		"HTTP/2 streams of one connection at a time": fmt.Sprintf("%d, known client or not",
			server.HTTP2.MaxConcurrentStreams),
		"HTTP/2 frame that is read": kib(server.HTTP2.MaxReadFrameSize),
		"body of a request that waits in memory for the API server": fmt.Sprintf(
			"%s before it is sent on, and of a larger one %s a stream, %s a connection", kib(relay.MaxHeldBody),
			kib(server.HTTP2.MaxReceiveBufferPerStream), kib(server.HTTP2.MaxReceiveBufferPerConnection),
		),
		"requests refused (401, 429; without a user 400 and more) or, without a user, reset, if they are more than the others " +
			"on one connection": fmt.Sprintf("after %d the next answer ends the connection; without a user, HTTP/2 is closed "+
			"after %d, after %d while the share of `resets` is full; %s of header count as one more",
			maxRefusals, maxMisused, misusedUnderAttack, kib(heavyHeader)),
		"requests of one HTTP/2 connection without a user that are looked at at a time": fmt.Sprintf("%d, the others wait, "+
			"and hold %s and their header of `bytes`; streams count until they begin; none waits any more once a user has authenticated on the connection; while "+
			"the share of `resets` is full one, and one more for each that was served",
			maxUndecided, kib(waitingBytes)),
		"requests that have come and about which nothing is decided yet": fmt.Sprintf("%d, then no connection is read, for %s "+
			"at most; for clients without a user, everything that waits for a processor counts as well",
			maxArriving, seconds(longestArrivalPause)),
		"connection of a user whose share of `requests` is full, when nothing is being served on it": fmt.Sprintf(
			"not read until there is room, and then one such connection each %s; after %s also without room, and its requests "+
				"are refused with 429", roomPause, seconds(longestRoomPause)),
		"heads (path and header) of more than 8 KiB over HTTP/2": fmt.Sprintf(
			"%d MiB a second of one user, or of all clients without one, and at first %d MiB at once. Who has sent more is not "+
				"read until that time has passed", headSpeed>>20, headBurst>>20),
		"TLS handshakes": fmt.Sprintf("half of the processors, and at least one, compute one at a time, the addresses of "+
			"clients in turn. While 1/%d of the connections without a user or more wait for that, and for %s after it, none of "+
			"them is closed for a newcomer with no better right: up to %d newcomers wait for a place, and up to %d "+
			"for one of a connection that came less than %[2]s ago. They get the places of others one after the other: as many in "+
			"%[2]s as clients without a user may have, and half as many while fewer than %[5]d wait",
			crowdedPart, seconds(newcomersTime), maxHeld, manyHeld, fewHeld),
		"bytes that a client sends until its certificates have been read": kib(maxHandshake) + ", then the connection ends",
		"reading from a connection without a user while the share of `resets` is full": fmt.Sprintf(
			"%d bytes after the handshake, then %d bytes each %s, while as many requests are looked at as may be %d bytes "+
				"each %s "+
				"(%s while one waits for its body), twice as long for each further request that waits for one whose body does "+
				"not come, up to %s, and before a refusal that ends the connection nothing",
			strangerBurst, strangerPiece, strangerPause, crowdedPiece, readPause, strangerPause, longestReadPause),
		"time for TLS, and then for a request's header": seconds(server.ReadHeaderTimeout) + " each",
		"header that waits for memory, as others fill a share of `bytes`": fmt.Sprintf("%s, then the connection ends; "+
			"of the others, those that have had %s (%s for up to %s) are closed, for one header each %s",
			seconds(maxHeaderWait), ms(headerPatience),
			seconds(shortPatience), kib(unusedTolerated), ms(evictionPause)),
		"body of a request that is not a stream, from its header to its end": seconds(o.BodyTimeout) + ", then 400",
		"connection without a request":                                       seconds(server.IdleTimeout) + ", then it is closed",
		"HTTP/2 client that does not answer pings": seconds(server.HTTP2.SendPingTimeout) + " until one is sent, " +
			seconds(server.HTTP2.PingTimeout) + " for its answer, then its streams end",
		"streams opened only to be reset before an answer begins": fmt.Sprintf("%d on one connection, if they are more "+
			"than its other requests: then it is closed; the share of `resets` for all of a client's connections. Answers that were "+
			"ended because the client did not read them count as well. Beyond a user's share of `resets`, that user's further "+
			"watches, logs and upgrades are refused with 429, and connections on which nothing is being served are read one "+
			"after the other, one each %s", maxResets, roomPause),
		"answer that the client does not read": seconds(o.WriteTimeout) + " for each 32 KiB; then the answer is broken " +
			"off; " + seconds(unreadAfter) + " when `limits.unread` is reached",
		"connection on which a client reads nothing at all": seconds(server.HTTP2.WriteByteTimeout) + ", then it is closed",
		"streams after the proxy was told to stop":          "`shutdownDelay` and " + seconds(o.StreamGrace) + "; other requests `shutdownDelay` and " + seconds(o.DrainTimeout),
		"certificates that a client may present": fmt.Sprintf(
			"%d, and of these %d intermediates with one subject; then 401", clienttrust.MaxPresented, clienttrust.MaxOfOneName,
		),
		"certificates refused that are remembered": fmt.Sprintf("%d, for %.0f minute, or until one of them or a CA becomes "+
			"valid or changes", clienttrust.MaxRefused, clienttrust.RefusedFor.Minutes()),
		"body of a TokenCredentialRequest": kib(maxLogin) + ", then 413",
	} {
		if row := "| " + what + " | " + limit + " |\n"; !strings.Contains(string(content), row) {
			t.Errorf("docs/reference/agent.md has no row %q", row)
		}
	}
	if text := fmt.Sprintf("not read for %d ms, if", aheadAfter.Milliseconds()); !strings.Contains(string(content), text) {
		t.Errorf("docs/reference/agent.md does not say %q", text)
	}
}
