package proxy

import (
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// stuckWriter is the response to a client that reads nothing.
type stuckWriter struct {
	http.ResponseWriter
	end func()
	// ended is closed when a deadline has passed.
	ended chan struct{}
}

func newStuckWriter() *stuckWriter {
	w := &stuckWriter{ResponseWriter: httptest.NewRecorder(), ended: make(chan struct{})}
	w.end = sync.OnceFunc(func() { close(w.ended) })
	return w
}

func (w *stuckWriter) Write([]byte) (int, error) {
	<-w.ended
	return 0, os.ErrDeadlineExceeded
}

func (w *stuckWriter) SetWriteDeadline(at time.Time) error {
	if at.Before(time.Now()) && !at.IsZero() {
		w.end()
	}
	return nil
}

// TestPatienceWithReaders writes responses that the client does not read, and checks when they end, with a fake clock.
func TestPatienceWithReaders(t *testing.T) {
	t.Parallel()
	const timeout, never = time.Minute, time.Hour
	for name, test := range map[string]struct {
		state *request.State
		full  bool // the user's limits are reached
		want  time.Duration
	}{
		"a large response":                  {state: &request.State{}, want: timeout},
		"one more large response":           {state: &request.State{}, full: true, want: slowAfter},
		"one more that the API server sent": {state: &request.State{ResponseFits: true}, full: true, want: timeout},
		"a stream":                          {state: &request.State{LongRunning: true}, want: never},
		"one more stream":                   {state: &request.State{LongRunning: true}, full: true, want: slowAfter},
		"a watch with all objects":          {state: beginningWatch(), want: timeout},
		"one more watch with all objects":   {state: beginningWatch(), full: true, want: slowAfter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2))
				for test.full {
					if _, err := a.Enqueue(flowcontrol.Flow{}, flowcontrol.Cost{Resource: flowcontrol.SlowClient}); err != nil {
						break
					}
				}
				w := newStuckWriter()
				time.AfterFunc(never, w.end)
				test.state.Holds = &listener.Request{}
				ctx, began := request.With(t.Context(), test.state), time.Now()
				boundResponse(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write([]byte("a piece"))
				}), a, timeout).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/a", nil))
				if took := time.Since(began); took != test.want {
					t.Errorf("want it to end after %v, got %v", test.want, took)
				}
				if got := test.state.ClientTooSlow.Load(); got != (test.want != never) {
					t.Errorf("want it noted that it was left unread, got %t", got)
				}
			})
		})
	}
}

func beginningWatch() *request.State {
	state := &request.State{LongRunning: true}
	state.Initial.Store(true)
	return state
}

// TestLostConnectionsAreForgotten resets a stream whose handler is still running, and closes the connection after it
// returns. Nothing must keep the connection in memory then, where it does not count.
func TestLostConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	b := p.block(is("jane"))
	defer close(b.release)
	c := p.rawHTTP2(t, p.jane(t))
	c.request(t, 1, false, pseudo("GET", "/a")...)
	eventually(t, func() bool { return b.now.Load() == 1 })
	one := weak.Make(p.port.Of(&http.Request{RemoteAddr: c.conn.LocalAddr().String()}))
	must.Do(t, c.WriteRSTStream(1, http2.ErrCodeCancel))
	p.waitServing(t, 0)
	_ = c.conn.Close()
	eventually(t, func() bool {
		runtime.GC()
		return one.Value() == nil
	})
}
