package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

const (
	longList = "/api/v1/namespaces/d/configmaps"
	longGet  = longList + "/large"
	// aLongResponse is the size in bytes from which on a response is long.
	aLongResponse = 128 << 10
)

// TestSeatsAtTheAPIServer checks how many seats each type of request takes at the API server.
func TestSeatsAtTheAPIServer(t *testing.T) {
	t.Parallel()
	labels := strings.Repeat("a,", 300) + "a"
	compressed := http.Header{"Content-Encoding": {"br"}}
	large := bytes.Repeat([]byte("0123456789abcdef"), aLongResponse/16)
	for _, test := range []struct {
		name, path string
		header     http.Header // of the response
		before     []byte      // the previous response to the same request, nil for none
		want       int64
	}{
		{"a list of everything, of which nothing is known", longList, nil, nil, flowcontrol.LongSeats},
		{"a list that was long", longList, nil, large, flowcontrol.LongSeats},
		{"a list that was compressed", longList, compressed, []byte("short"), flowcontrol.LongSeats},
		{"a list that was short", longList, nil, []byte("short"), 1},
		{"a list with a limit, of which nothing is known", longList + "?limit=20", nil, nil, 1},
		{"a list with a limit that was long", longList + "?limit=2000", nil, large, flowcontrol.LongSeats},
		{"a list with a selector that was long", longList + "?labelSelector=a", nil, large, flowcontrol.LongSeats},
		{"a long selector", longList + "?limit=1&labelSelector=" + labels, nil, []byte("short"), flowcontrol.LongSeats},
		{"a get, of which nothing is known", longGet, nil, nil, 1},
		{"a get that was long", longGet, nil, large, flowcontrol.LongSeats},
		{"a get that was short", longGet, nil, []byte("short"), 1},
		{"a long response that is no object's", "/openapi/v2", nil, large, flowcontrol.LongSeats},
		{"a watch", longList + "?watch=1&resourceVersion=5", nil, nil, 1},
		{"a watch that begins with all objects", longList + "?watch=1", nil, nil, 1},
		{"a watch that began with few objects", longList + "?watch=1", nil, []byte("short"), 1},
		{"a watch that began with many objects", longList + "?watch=1", nil, large, flowcontrol.LongSeats},
		{"a watch from now on that sent much", longList + "?watch=1&resourceVersion=5", nil, large, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			var seats atomic.Int64
			p.api.serves(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.RequestURI() != test.path {
					return
				}
				for name, values := range test.header {
					w.Header()[name] = values
				}
				seats.Store(int64(p.taken(flowcontrol.Forward)))
				_, _ = w.Write(test.before)
			})
			takes := func() int64 {
				p.get(t, p.as(t, "jane"), test.path, nil).check(t, http.StatusOK, "want it served")
				return seats.Load()
			}
			if test.before != nil { // by another user
				p.get(t, p.as(t, "joe"), test.path, nil)
			}
			// A length is recorded after the client has the response, and a busy computer may hold up the API server until
			// the seats are free again.
			eventually(t, func() bool { return takes() == test.want })
			eventually(t, func() bool { return p.taken(flowcontrol.Forward) == 0 })
		})
	}
}

// TestListsOfManyKindsAtOnce lists many kinds of objects at once, as a controller does at its start.
func TestListsOfManyKindsAtOnce(t *testing.T) {
	t.Parallel()
	const kinds = 40
	p := startProxy(t)
	controller := p.as(t, "controller")
	for range 2 { // with an empty and a full cache
		var all []<-chan response
		for i := range kinds {
			all = append(all, p.begin(t.Context(), controller, "GET", fmt.Sprintf("/apis/a/v1/kind%ds", i), nil))
		}
		checkCodes(t, all, http.StatusOK, kinds)
	}
}
