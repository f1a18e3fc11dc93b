package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

const (
	longList = "/api/v1/namespaces/d/configmaps"
	longGet  = longList + "/large"
	// aLongAnswer is from how many bytes on an answer counts as long.
	aLongAnswer = 128 << 10
)

// TestLongAnswersTakeTurns has one user ask for more long answers than may be at the API server at a time. The user's
// own short requests, and the lists of another user, do not wait for them.
func TestLongAnswersTakeTurns(t *testing.T) {
	t.Parallel()
	const fit, fitLong, asked = 8, 2, 12
	large := bytes.Repeat([]byte("0123456789abcdef"), aLongAnswer/16)
	for _, test := range []struct {
		name   string
		path   string
		header http.Header // of the answer
		before []byte      // what the same request was answered before, nil when it was not asked
		want   int64
	}{
		{"a list of everything, of which nothing is known", longList, nil, nil, fitLong},
		{"a list that was long", longList, nil, large, fitLong},
		{"a list that was compressed", longList, http.Header{"Content-Encoding": {"br"}}, []byte("short"), fitLong},
		{"a list that was short", longList, nil, []byte("short"), fit},
		{"a list with a limit, of which nothing is known", longList + "?limit=20", nil, nil, fit},
		{"a list with a limit that was long", longList + "?limit=2000", nil, large, fitLong},
		{"a list with a selector that was long", longList + "?labelSelector=a", nil, large, fitLong},
		{"a long selector", longList + "?limit=1&labelSelector=" + strings.Repeat("a,", 300) + "a", nil, []byte("short"), fitLong},
		{"a get, of which nothing is known", longGet, nil, nil, fit},
		{"a get that was long", longGet, nil, large, fitLong},
		{"a get that was short", longGet, nil, []byte("short"), fit},
		{"a long answer that is no object's", "/openapi/v2", nil, large, fit},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, func(_ *proxy, o *Options) { o.Work.RequestsPerUser, o.Work.LongAnswersPerUser = fit, fitLong })
			var busy atOnce
			var wait atomic.Bool
			release := make(chan struct{})
			p.api.set(func() {
				p.api.serve = func(w http.ResponseWriter, req *http.Request) {
					if req.URL.RequestURI() != test.path {
						return
					}
					for name, values := range test.header {
						w.Header()[name] = values
					}
					if wait.Load() && req.Header.Get("Impersonate-User") == "greedy" {
						defer busy.count()()
						select {
						case <-release:
						case <-req.Context().Done():
						}
					}
					_, _ = w.Write(test.before)
				}
			})
			greedy, jane := p.as(t, "greedy"), p.as(t, "jane")
			if test.before != nil { // by another user
				if got := p.get(t, jane, test.path, nil); got.Code != http.StatusOK {
					t.Fatalf("want %s answered, got %d", test.path, got.Code)
				}
				eventually(t, func() bool { return p.work.Forwarded.Fair.Running() == 0 }) // it has been noted
			}
			wait.Store(true)
			var all []<-chan *answer
			for range asked {
				all = append(all, p.begin(t.Context(), greedy, "GET", test.path, nil, nil))
			}
			eventually(t, func() bool {
				return busy.now.Load() == test.want &&
					p.work.Long.Fair.Waiting()+p.work.Forwarded.Fair.Waiting() == asked-int(test.want)
			})
			if test.want == fitLong {
				if got := p.get(t, greedy, "/api/v1/namespaces/d/pods/short", nil); got.Code != http.StatusOK {
					t.Errorf("want the user's other requests served, got %d", got.Code)
				}
			}
			if got := p.get(t, jane, test.path, nil); got.Code != http.StatusOK {
				t.Errorf("want another user served, got %d", got.Code)
			}
			close(release)
			if got := codes(all); got[http.StatusOK] != asked {
				t.Errorf("want all answered in the end, got %v", got)
			}
			if got := busy.most.Load(); got != test.want {
				t.Errorf("want %d at the API server at a time, got %d", test.want, got)
			}
			eventually(t, func() bool { return p.work.Long.Fair.Running() == 0 && p.work.Long.Fair.Waiting() == 0 })
		})
	}
}

// TestListsOfManyKindsAtOnce does what a controller does at its start: it lists many kinds of objects at once.
func TestListsOfManyKindsAtOnce(t *testing.T) {
	t.Parallel()
	const kinds = 40
	p := startProxy(t)
	controller := p.as(t, "controller")
	for range 2 { // when nothing is known, and when all is
		var all []<-chan *answer
		for i := range kinds {
			all = append(all, p.begin(t.Context(), controller, "GET", fmt.Sprintf("/apis/a/v1/kind%ds", i), nil, nil))
		}
		if got := codes(all); got[http.StatusOK] != kinds {
			t.Errorf("want all lists answered, got %v", got)
		}
	}
	if got := p.work.Long.Begun.Load(); got != kinds {
		t.Errorf("want each list to take a turn of long ones the first time only, got %d turns for %d", got, kinds)
	}
}
