package proxy

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// TestStreamsThatAreNotReadAreMisuse opens watches and reads none of them, again and again. When enough had to be ended,
// the connection is closed, and the user gets no more watches for a while, but everything else. Others get theirs.
func TestStreamsThatAreNotReadAreMisuse(t *testing.T) {
	t.Parallel()
	const fit, watches = 3, 10
	p := startProxy(t, limit(budget.Bytes, budget.PerUser, relay.StreamBytes), limit(budget.Resets, budget.PerUser, fit))
	var sent, reading atomic.Int64
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			if reading.Load() == 0 {
				pour(&sent)(w, req)
			}
		}
	})
	certificate := clientCertificate(t, p.signerCA, "mallory")
	c := p.rawHTTP2(t, certificate)
	c.readNothing(t)
	for i := range uint32(watches) {
		c.request(t, 2*i+1, false, false, pseudo("GET", "/api/v1/pods?watch=1")...)
	}
	eventually(t, func() bool {
		return p.readers.ended.Load() >= fit &&
			p.budget.Held(budget.Connections)+p.budget.Held(budget.Streams)+p.budget.Held(budget.Bytes) == 0
	})
	reading.Store(1)
	for _, test := range []struct {
		who, path string
		want      int
	}{
		{"mallory", "/api/v1/pods?watch=1", http.StatusTooManyRequests},
		{"mallory", "/api/v1/pods", http.StatusOK},
		{"jane", "/api/v1/pods?watch=1", http.StatusOK},
	} {
		got := p.get(t, p.client(t, clientCertificate(t, p.signerCA, test.who)), test.path, nil)
		if got.Code != test.want {
			t.Errorf("%s, %s: want %d, got %d: %s", test.who, test.path, test.want, got.Code, got.Body)
		}
	}
}
