package relay

import (
	"context"
	"errors"
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

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/work"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// sentOn returns a request of a user as it is sent on.
func sentOn(name, verb, target string) (*http.Request, *request.State) {
	state := &request.State{Original: &user.DefaultInfo{Name: name}, LongRunning: verb == "watch"}
	ctx := apirequest.WithRequestInfo(request.With(context.Background(), state), &apirequest.RequestInfo{Verb: verb})
	return httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil), state
}

func newInFlight(limits work.Limits, next http.RoundTripper) inFlight {
	limits.Complete()
	all := work.NewAll(limits, 2, nil)
	return inFlight{next: next, all: all.All, long: all.AllLong, watches: all.Watches}
}

// TestRequestsOfAllUsersTakeTurns has users ask for much together. Few of their requests are at the API server at a
// time, and a user who asks for one thing is next. A request that takes long keeps others waiting for a second.
func TestRequestsOfAllUsersTakeTurns(t *testing.T) {
	t.Parallel()
	const fit, fitLong = 8, 4
	for _, test := range []struct {
		name, verb, target string
		length             int64
		want               int64
	}{
		{name: "short answers", verb: "get", target: "/", want: fit},
		{name: "long answers", verb: "list", target: "/", length: longAnswer, want: fitLong},
		{name: "watches", verb: "watch", target: "/?watch=1&resourceVersion=5", want: fit},
		{name: "watches of everything", verb: "watch", target: "/?watch=1", want: fit},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				var busy atOnce2
				turns := newInFlight(
					work.Limits{Requests: fit, LongAnswers: fitLong},
					roundTrip(func(*http.Request) (*http.Response, error) {
						defer busy.count()()
						<-release
						return nil, errors.New("over")
					}),
				)
				ask := func(name string) <-chan struct{} {
					req, state := sentOn(name, test.verb, test.target)
					state.LongExpected = test.length > 0
					answered := make(chan struct{})
					go func() {
						defer close(answered)
						_, _ = turns.RoundTrip(req) //nolint:bodyclose // there is none
					}()
					synctest.Wait()
					return answered
				}
				for range 10 {
					for _, name := range []string{"ann", "bob", "cid"} {
						ask(name)
					}
				}
				if got := busy.now.Load(); got != test.want {
					t.Fatalf("want %d at the API server, got %d", test.want, got)
				}
				last := ask("jane")
				for range 4 { // one of each user who waits
					release <- struct{}{}
					synctest.Wait()
				}
				if got := busy.all.Load(); got != test.want+4 {
					t.Errorf("want one for another, got %d after 4 of %d", got, test.want)
				}
				waiting := turns.all.Fair.Waiting() + turns.long.Fair.Waiting() + turns.watches.Fair.Waiting()
				if got := waiting; got != int(31-test.want-4) {
					t.Errorf("want the others to wait, got %d", got)
				}
				before := busy.all.Load()
				time.Sleep(turnLasts)
				synctest.Wait()
				if got := busy.all.Load() - before; got != test.want {
					t.Errorf("want as many more when those have taken long, got %d", got)
				}
				close(release)
				<-last
				synctest.Wait()
				time.Sleep(turnLasts)
				for _, one := range []*work.Queue{turns.all, turns.long, turns.watches} {
					if n, m := one.Fair.Running(), one.Fair.Waiting(); n != 0 || m != 0 {
						t.Errorf("want no turn left, got %d and %d", n, m)
					}
				}
			})
		})
	}
}

// TestLeavingBeforeTheTurnIsSaid has a client leave while its request waits. The answer, which is in the audit log, does
// not say that the request may have been carried out.
func TestLeavingBeforeTheTurnIsSaid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ cause, want error }{
		"the client leaves": {context.Canceled, request.ErrClientLeft}, "the proxy stops": {request.ErrDraining, request.ErrDraining},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release, sent := make(chan struct{}), 0
				turns := newInFlight(work.Limits{Requests: 1}, roundTrip(func(*http.Request) (*http.Response, error) {
					sent++
					<-release
					return nil, errors.New("over")
				}))
				first, _ := sentOn("ann", "get", "/")
				go func() { _, _ = turns.RoundTrip(first) }() //nolint:bodyclose // there is none
				synctest.Wait()
				second, _ := sentOn("jane", "get", "/")
				ctx, leave := context.WithCancelCause(second.Context())
				leave(test.cause)
				_, err := turns.RoundTrip(second.WithContext(ctx)) //nolint:bodyclose // there is none
				if !errors.Is(err, test.want) || sent != 1 {
					t.Errorf("want %v, and nothing sent, got %v after %d", test.want, err, sent)
				}
				close(release)
				synctest.Wait()
				if n, m := turns.all.Fair.Running(), turns.all.Fair.Waiting(); n != 0 || m != 0 {
					t.Errorf("want no turn left, got %d and %d", n, m)
				}
			})
		})
	}
}

// TestOneUserLeavesTurns has one user ask for as much as possible, and then three.
func TestOneUserLeavesTurns(t *testing.T) {
	t.Parallel()
	const fit = 100
	for name, test := range map[string]struct {
		verb, target string
		users        []string
		want         int64
	}{
		"requests of one user":   {"get", "/", []string{"ann"}, fit / 2},
		"requests of more users": {"get", "/", []string{"ann", "bob", "cid"}, fit},
		"watches of one user":    {"watch", "/?watch=1", []string{"ann"}, 8},
		"watches of more users":  {"watch", "/?watch=1", []string{"ann", "bob", "cid"}, 16},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				var busy atOnce2
				turns := newInFlight(work.Limits{Requests: fit}, roundTrip(func(*http.Request) (*http.Response, error) {
					defer busy.count()()
					<-release
					return nil, errors.New("over")
				}))
				for _, name := range test.users {
					for range fit {
						req, _ := sentOn(name, test.verb, test.target)
						go func() { _, _ = turns.RoundTrip(req) }() //nolint:bodyclose // there is none
					}
				}
				synctest.Wait()
				if got := busy.now.Load(); got != test.want {
					t.Errorf("want %d at the API server, got %d", test.want, got)
				}
				close(release)
			})
		})
	}
}

// TestTurnsEnd looks at when the API server is done with a request.
func TestTurnsEnd(t *testing.T) {
	t.Parallel()
	const head, read, closed = "the head of the answer", "its end", "it is closed"
	for _, test := range []struct {
		name, verb, target string
		length             int64
		fails              bool
		want               string
	}{
		{name: "an answer that fits into a window", verb: "get", target: "/", length: upstreamWindow, want: head},
		{name: "a longer answer", verb: "get", target: "/", length: upstreamWindow + 1, want: read},
		{name: "an answer of unknown length", verb: "list", target: "/", length: -1, want: read},
		{name: "an answer that is given up", verb: "list", target: "/", length: -1, want: closed},
		{name: "no answer", verb: "get", target: "/", fails: true, want: head},
		{name: "a watch", verb: "watch", target: "/?watch=1&resourceVersion=1", length: -1, want: head},
		{name: "a watch of everything", verb: "watch", target: "/?watch=1", length: -1, want: read},
		{name: "a watch of any version", verb: "watch", target: "/?watch=1&resourceVersion=0", length: -1, want: read},
		{
			name: "a watch that lists", verb: "watch", length: -1, want: read,
			target: "/?watch=1&resourceVersion=3&sendInitialEvents=true",
		},
		{name: "a watch of everything that is given up", verb: "watch", target: "/?watch=1", length: -1, want: closed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				turns := newInFlight(work.Limits{}, roundTrip(func(*http.Request) (*http.Response, error) {
					if test.fails {
						return nil, errors.New("no connection")
					}
					return &http.Response{ContentLength: test.length, Body: io.NopCloser(strings.NewReader("all"))}, nil
				}))
				ended := func(when string) bool {
					t.Helper()
					n := turns.all.Fair.Running() + turns.watches.Fair.Running()
					return n == 0 && when != ""
				}
				req, state := sentOn("jane", test.verb, test.target)
				res, err := turns.RoundTrip(req)
				if (err != nil) != test.fails {
					t.Fatal(err)
				}
				if got := ended(head); got != (test.want == head) {
					t.Errorf("want the turn to end at %s, got %t with the head", test.want, got)
				}
				if test.fails {
					return
				}
				if test.want == read {
					if _, err := io.Copy(io.Discard, res.Body); err != nil || !ended(read) || state.Initial.Load() {
						t.Errorf("want the turn over when all is read, got %v", err)
					}
				}
				if err := res.Body.Close(); err != nil || !ended(closed) {
					t.Errorf("want the turn over in the end, got %v", err)
				}
			})
		})
	}
	t.Run("a watch whose objects are all here", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			events, api := io.Pipe()
			turns := newInFlight(work.Limits{}, roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{ContentLength: -1, Body: events}, nil
			}))
			req, state := sentOn("jane", "watch", "/?watch=1")
			res, err := turns.RoundTrip(req) //nolint:bodyclose // the pipe ends with api
			if err != nil {
				t.Fatal(err)
			}
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
				_, _ = api.Write([]byte("event"))
				synctest.Wait()
				if turns.watches.Fair.Running() != 1 || !state.Initial.Load() {
					t.Fatal("want a turn while events come")
				}
			}
			time.Sleep(initialPause + 1)
			synctest.Wait()
			if turns.watches.Fair.Running() != 0 || turns.all.Fair.Running() != 0 || state.Initial.Load() {
				t.Error("want the turn over when no more come")
			}
			_, _ = api.Write([]byte("event"))
			synctest.Wait()
			if got := came.Load(); got != 20 || state.Initial.Load() {
				t.Errorf("want the watch to go on, got %d bytes", got)
			}
			_ = api.Close()
		})
	})
}

// TestBeginningsOfSlowReaders has a client take its time with the objects of a watch. They count as the beginning until
// the API server has no more of them.
func TestBeginningsOfSlowReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := false
		body := newBeginningBody(io.NopCloser(strings.NewReader("two pieces")), func() { over = true })
		for range 2 {
			if _, err := io.ReadFull(body, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * initialPause)
			if synctest.Wait(); over {
				t.Error("want it not over while the client has not asked for more")
			}
		}
		if _, err := body.Read(make([]byte, 5)); !errors.Is(err, io.EOF) || !over {
			t.Errorf("want it over with the end, got %v", err)
		}
	})
}

// TestAnswersCount looks at how many bytes count for an answer, also where some were taken before it came.
func TestAnswersCount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		expected, length, want int64
		code                   int
		prepare                func(*request.State)
	}{
		"as expected":  {expected: 2 * upstreamWindow, length: 2 * upstreamWindow, want: 2 * upstreamWindow},
		"not expected": {length: 2 * upstreamWindow, want: upstreamWindow + bufferSize},
		"a short one":  {length: 1000, want: 1000 + bufferSize},
		"longer":       {expected: 100, length: upstreamWindow, want: upstreamWindow + bufferSize},
		"very long":    {expected: 2 * maxAhead, length: 2 * maxAhead, want: maxAhead},
		"unknown":      {length: -1, want: upstreamWindow + bufferSize},
		"a stream":     {length: -1, prepare: func(s *request.State) { s.LongRunning = true }},
		"a login":      {length: 1000, prepare: func(s *request.State) { s.Login = &request.Login{} }},
		"an upgrade":   {code: http.StatusSwitchingProtocols, want: upgradedBytes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(budget.Defaults(), nil)
			answer := roundTrip(func(*http.Request) (*http.Response, error) {
				body := io.NopCloser(strings.NewReader(""))
				return &http.Response{StatusCode: test.code, ContentLength: test.length, Body: body}, nil
			})
			req, state := sentOn("jane", "list", "/")
			state.LengthExpected, state.Client = test.expected, budget.Client{User: "jane"}
			if test.prepare != nil {
				test.prepare(state)
			}
			res, err := holdAnswer{reserveAnswer{answer, b}, b}.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.HeldByUser(budget.Bytes, "jane"); got != test.want {
				t.Errorf("want %d bytes held, got %d", test.want, got)
			}
			_ = res.Body.Close()
			if state.ReleaseAll(); b.Held(budget.Bytes) != 0 {
				t.Error("want them given back")
			}
		})
	}
}

// TestLongAnswersNeedRoomBefore asks for a long answer for which there is no room. The API server does not hear of it.
func TestLongAnswersNeedRoomBefore(t *testing.T) {
	t.Parallel()
	const fits = 4
	b := budget.New(budget.Limits{budget.Bytes: {budget.PerUser: fits * longAnswer}}, nil)
	var sent int
	reserved := reserveAnswer{budget: b, next: roundTrip(func(*http.Request) (*http.Response, error) {
		sent++
		return &http.Response{}, nil
	})}
	for i, test := range []struct{ length, held int64 }{
		{0, 0},
		{longAnswer, longAnswer},
		{3 * longAnswer, fits * longAnswer},
		{longAnswer, fits * longAnswer},
		{0, fits * longAnswer},
	} {
		before := sent
		req, state := sentOn("jane", "list", "/")
		state.LengthExpected, state.Client.User = test.length, "jane"
		res, err := reserved.RoundTrip(req)
		if err == nil && res.Body != nil {
			_ = res.Body.Close()
		}
		if want := test.held == b.HeldByUser(
			budget.Bytes,
			"jane",
		); !want || (err == nil) != (sent == before+1) ||
			(err != nil) != (i == 3) {
			t.Errorf(
				"answer %d of %d bytes: got %d held, sent %t, %v",
				i,
				test.length,
				b.HeldByUser(budget.Bytes, "jane"),
				sent > before,
				err,
			)
		}
	}
}

// atOnce counts requests that are under way.
type atOnce2 struct{ now, most, all atomic.Int64 }

// count is to be called at the beginning, and what it returns at the end.
func (c *atOnce2) count() func() {
	c.all.Add(1)
	n := c.now.Add(1)
	for last := c.most.Load(); n > last && !c.most.CompareAndSwap(last, n); last = c.most.Load() {
	}
	return func() { c.now.Add(-1) }
}
