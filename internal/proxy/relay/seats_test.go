package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// seats is an API server with fair queuing, whose requests stay until they are released.
type seats struct {
	*flowcontrol.Controller
	handler http.Handler
	release chan struct{}
	now     atomic.Int64 // at the API server now
	all     atomic.Int64 // at the API server so far
}

func newSeats() *seats {
	api := &seats{Controller: standard(), release: make(chan struct{})}
	sent := holdResponse{next: roundTrip(func(*http.Request) (*http.Response, error) {
		api.all.Add(1)
		api.now.Add(1)
		defer api.now.Add(-1)
		<-api.release
		return nil, errors.New("over")
	})}
	api.handler = AcquireSeats(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = sent.RoundTrip(req) //nolint:bodyclose // there is none
	}), api.Controller, NewLongResponses(clock.RealClock{}), request.NewSerializer())
	return api
}

func (a *seats) usage() flowcontrol.Usage { return a.Usage()[flowcontrol.Forward] }

// checkFree expects that all goroutines have released their seats.
func (a *seats) checkFree(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if got := a.usage(); got.Taken != 0 || got.Waiting != 0 {
		t.Errorf("want no seat taken, got %+v", got)
	}
}

// asks sends a request of a user.
func (a *seats) asks(name, verb, target string) <-chan struct{} {
	req, _ := sentOn(name, verb, target)
	_, over := a.ask(req)
	return over
}

// ask sends a request, and returns on its response or when all goroutines of the bubble wait.
func (a *seats) ask(req *http.Request) (*httptest.ResponseRecorder, <-chan struct{}) {
	response, over := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(over)
		a.handler.ServeHTTP(response, req)
	}()
	synctest.Wait()
	return response, over
}

// sentOn returns a request of a user as it is forwarded.
func sentOn(name, verb, target string) (*http.Request, *request.State) {
	state := &request.State{
		Original: &user.DefaultInfo{Name: name}, LongRunning: verb == "watch", Holds: &listener.Request{},
	}
	info := &apirequest.RequestInfo{Verb: verb, IsResourceRequest: true}
	method := http.MethodGet
	if verb == "create" {
		method = http.MethodPost
	}
	ctx := apirequest.WithRequestInfo(request.With(context.Background(), state), info)
	return httptest.NewRequestWithContext(ctx, method, target, nil), state
}

// TestRequestsAreQueued has one user send more requests than fit, and then thirty others. Few requests of each are at
// the API server at a time, and a user with one request is next. Slow requests delay the others only briefly.
func TestRequestsAreQueued(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, verb, target string
		one, another, all  int64 // at a time: of the first user, of the second, and of all
	}{
		{name: "short responses", verb: "get", target: "/", one: 16, another: 4, all: 128},
		{name: "writes", verb: "create", target: "/", one: 16, another: 16, all: 128},
		{name: "long responses", verb: "list", target: "/", one: 2, another: 2, all: 16},
		{name: "watches", verb: "watch", target: "/?watch=1&resourceVersion=5", one: 16, another: 16, all: 128},
		{name: "watches of everything", verb: "watch", target: "/?watch=1", one: 16, another: 16, all: 128},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api, asked := newSeats(), int64(0)
				ask := func(name string) <-chan struct{} {
					asked++
					return api.asks(name, test.verb, test.target)
				}
				for range test.one + 10 {
					ask("ann")
				}
				if got := api.now.Load(); got != test.one {
					t.Fatalf("want %d of one user at the API server, got %d", test.one, got)
				}
				for user := range 30 {
					for range test.one + 10 {
						ask(fmt.Sprint("user-", user))
					}
					if got := api.now.Load(); user == 0 && got != test.one+test.another {
						t.Errorf("want %d of another user, got %d", test.another, got-test.one)
					}
				}
				if got := api.now.Load(); got != test.all {
					t.Fatalf("want %d at the API server, got %d", test.all, got)
				}
				last := ask("jane")
				for range 2 { // one whose seat jane gets, and perhaps hers
					api.release <- struct{}{}
					synctest.Wait()
				}
				if got := api.all.Load(); got != test.all+2 {
					t.Errorf("want one for another, got %d after 2 of %d", got, test.all)
				}
				if got := api.usage().Waiting; int64(got) != asked-test.all-2 {
					t.Errorf("want the others to wait, got %d", got)
				}
				before := api.all.Load()
				time.Sleep(longSeatTimeout)
				synctest.Wait()
				if api.all.Load() == before {
					t.Error("want more when those have taken long")
				}
				close(api.release)
				<-last
				api.checkFree(t)
			})
		})
	}
}

// TestTheModestAreNext has one user send as many requests as fit, and another user one.
func TestTheModestAreNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newSeats()
		for range 100 {
			for _, verb := range []string{"get", "create"} {
				api.asks("ann", verb, "/")
			}
		}
		if got := api.now.Load(); got != 32 {
			t.Errorf("want three quarters left by one user, got %d of 128 taken", got)
		}
		api.asks("jane", "get", "/")
		if got := api.now.Load(); got != 33 {
			t.Errorf("want another user's request to get a seat at once, got %d", got)
		}
		close(api.release)
	})
}

// TestLeavingBeforeTheTurnIsSaid has a client disconnect while its request waits. The response, for the audit log, does
// not say that the request may have been carried out.
func TestLeavingBeforeTheTurnIsSaid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cause error
		want  string
	}{
		"the client leaves": {context.Canceled, "the client disconnected before the response"},
		"the proxy stops":   {request.ErrDraining, "the API server is busy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := newSeats()
				for user := range 8 {
					for range 16 {
						api.asks(fmt.Sprint("user-", user), "create", "/")
					}
				}
				req, _ := sentOn("jane", "create", "/")
				ctx, leave := context.WithCancelCause(req.Context())
				response, over := api.ask(req.WithContext(ctx))
				leave(test.cause)
				<-over
				said := response.Body.String()
				if response.Code != 503 || !strings.Contains(said, `"`+test.want+`"`) || api.all.Load() != 128 {
					t.Errorf("want it said, and nothing sent, got %d: %s after %d", response.Code, said, api.all.Load())
				}
				close(api.release)
				api.checkFree(t)
			})
		})
	}
}

// TestSeatsAreReleased checks when a request releases its seats: at the latest when it ends.
func TestSeatsAreReleased(t *testing.T) {
	t.Parallel()
	const head, read, later = "the head of the response", "its end", "the end of the request"
	for _, test := range []struct {
		name, verb, target string
		length             int64
		want               string
	}{
		{name: "a response that fits into a window", verb: "get", target: "/", length: upstreamWindow, want: head},
		{name: "a longer response", verb: "get", target: "/", length: upstreamWindow + 1, want: read},
		{name: "a response of unknown length", verb: "list", target: "/", length: -1, want: read},
		{name: "a watch", verb: "watch", target: "/?watch=1&resourceVersion=1", length: -1, want: head},
		{name: "a watch of everything", verb: "watch", target: "/?watch=1", length: -1, want: later},
		{name: "a watch of any version", verb: "watch", target: "/?watch=1&resourceVersion=0", length: -1, want: later},
		{
			name: "a watch that lists", verb: "watch", length: -1, want: later,
			target: "/?watch=1&resourceVersion=3&sendInitialEvents=true",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				req, state := sentOn("jane", test.verb, test.target)
				api := newSeats()
				over := func() bool { return api.usage().Taken == 0 }
				AcquireSeats(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
					res := &http.Response{ContentLength: test.length, Body: io.NopCloser(strings.NewReader("all"))}
					holdResponse{flow: api.Controller}.prepare(res, state)
					if got := over(); got != (test.want == head) {
						t.Errorf("want the seat released at %s, got %t with the head", test.want, got)
					}
					if _, err := io.Copy(io.Discard, res.Body); err != nil {
						t.Error(err)
					}
					if got := over(); got != (test.want != later) {
						t.Errorf("want the seat released at %s, got %t when all is read", test.want, got)
					}
				}), api.Controller, NewLongResponses(clock.RealClock{}), nil).ServeHTTP(nil, req)
				if !over() {
					t.Error("want the seat released in the end")
				}
			})
		})
	}
	t.Run("a watch whose objects are all here", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			events, server := io.Pipe()
			var ended atomic.Bool
			_, state := sentOn("jane", "watch", "/?watch=1")
			state.ReleaseSeats = func() { ended.Store(true) }
			state.Initial.Store(true)
			res := &http.Response{ContentLength: -1, Body: events}
			holdResponse{}.prepare(res, state)
			var came atomic.Int64
			go func() {
				for buffer := make([]byte, 10); ; {
					n, err := res.Body.Read(buffer)
					if err != nil {
						return
					}
					came.Add(int64(n))
				}
			}()
			for range 3 {
				time.Sleep(initialPause - 1)
				_, _ = server.Write([]byte("event"))
				synctest.Wait()
				if ended.Load() || !state.Initial.Load() {
					t.Fatal("want a seat while events come")
				}
			}
			time.Sleep(initialPause + 1)
			synctest.Wait()
			if !ended.Load() || state.Initial.Load() {
				t.Error("want the seat released when no more come")
			}
			_, _ = server.Write([]byte("event"))
			synctest.Wait()
			if got := came.Load(); got != 20 || state.Initial.Load() {
				t.Errorf("want the watch to go on, got %d bytes", got)
			}
			_ = server.Close()
		})
	})
}

// TestFirstBytesToSlowClients has a slow client read the initial list of a watch. The list counts as initial until the
// API server has sent all of it.
func TestFirstBytesToSlowClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := false
		state := &request.State{ReleaseSeats: func() { over = true }}
		state.Initial.Store(true)
		body := &initialBody{ReadCloser: io.NopCloser(strings.NewReader("two pieces")), state: state}
		for range 2 {
			must.Get(io.ReadFull(body, make([]byte, 5)))(t)
			time.Sleep(10 * initialPause)
			if synctest.Wait(); over {
				t.Error("want it not over while the client has not asked for more")
			}
		}
	})
}

// TestResponsesCount checks how much memory counts for a response before it is sent to the client.
func TestResponsesCount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		length, want int64
		code         int
		prepare      func(*request.State)
	}{
		"a short one": {length: 1000, want: 1000 + bufferSize},
		"a long one":  {length: 2 * upstreamWindow, want: upstreamWindow + bufferSize},
		"unknown":     {length: -1, want: upstreamWindow + bufferSize},
		"a stream":    {length: -1, prepare: func(s *request.State) { s.LongRunning = true }},
		"an upgrade":  {code: http.StatusSwitchingProtocols, want: upgradedBytes},
	} {
		state := &request.State{Holds: &listener.Request{}, ReleaseSeats: func() {}}
		if test.prepare != nil {
			test.prepare(state)
		}
		body := io.NopCloser(strings.NewReader(""))
		res := &http.Response{StatusCode: test.code, ContentLength: test.length, Body: body}
		if got := (holdResponse{}).prepare(res, state); got != test.want {
			t.Errorf("%s: want %d bytes held, got %d", name, test.want, got)
		}
	}
	t.Run("nothing of a login", func(t *testing.T) {
		t.Parallel()
		state := &request.State{ReleaseSeats: func() {}, Login: &request.Login{}} // no Holds: holding bytes would panic
		body := io.NopCloser(strings.NewReader("a certificate"))
		api := holdResponse{next: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{ContentLength: 13, Body: body}, nil
		})}
		req := httptest.NewRequestWithContext(request.With(t.Context(), state), http.MethodPost, "/", nil)
		if _, err := api.RoundTrip(req); err != nil { //nolint:bodyclose // it is in memory
			t.Error(err)
		}
	})
}
