package proxy

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestCrowdsAreReadLess reads from a connection without a user on which a request waits for its body, and others wait
// for that one. The more of them there are, the later the next piece is read, and a piece is short.
func TestCrowdsAreReadLess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		quiet   bool // not under attack
		answer  bool // the request that is inside has its body, and is about to be answered
		inside  int
		waiting int
		want    time.Duration
		bytes   int
	}{
		"one inside, and no attack": {quiet: true, inside: 1, bytes: unusedTolerated},
		"many waiting, and no attack": {
			quiet: true, inside: maxUndecided, waiting: 20, want: readPause, bytes: unusedTolerated,
		},
		"one inside that waits for its body": {inside: 1, want: strangerPause, bytes: crowdedPiece},
		"one waiting":                        {inside: 1, waiting: 1, want: readPause + strangerPause, bytes: crowdedPiece},
		"two waiting":                        {inside: 1, waiting: 2, want: 2*readPause + strangerPause, bytes: crowdedPiece},
		"five waiting": {
			inside: 1, waiting: 5, want: 16*readPause + strangerPause, bytes: crowdedPiece,
		},
		"five waiting for an answer": {
			answer: true, inside: 1, waiting: 5, want: readPause + strangerPause, bytes: crowdedPiece,
		},
		"as many waiting as there may be": {
			inside: 1, waiting: 99, want: longestReadPause + strangerPause, bytes: crowdedPiece,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), time.Now)
				if !test.quiet {
					b.Misused(budget.Client{}, 1<<20)
				}
				server, client := net.Pipe()
				conn := newClientConnections(b, 1).admit(server)
				conn.certified.Store(true)
				conn.received.since = strangerBurst
				for range test.inside + test.waiting {
					conn.gate.join()
				}
				if !test.answer {
					defer conn.gate.awaitBody()()
				}
				go func() { _, _ = client.Write(make([]byte, 4096)) }()
				began := time.Now()
				n, err := conn.Read(make([]byte, 4096))
				if took := time.Since(began); err != nil || n != test.bytes || took != test.want {
					t.Errorf("want %d bytes after %v, got %d after %v, %v", test.bytes, test.want, n, took, err)
				}
				_ = client.Close()
				_ = conn.Close()
			})
		})
	}
}
