package relay

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// inTime is a body without a limit.
type inTime struct{ request.Body }

func (inTime) Unbind() {}

func TestSmallBodiesCanBeSentAgain(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", listener.MaxHeldBody+1)
	for _, test := range []struct {
		name, body string
		unknown    bool // of unknown length
		expect     string
		want       bool
	}{
		{name: "a small one can", body: "hello", want: true},
		{name: "the largest that is held can", body: long[1:], want: true},
		{name: "a small one whose length is not announced can", body: "hello", unknown: true, want: true},
		{name: "an empty one whose length is not announced can", unknown: true, want: true},
		{name: "one the client waits with can", body: "hello", expect: "100-continue", want: true},
		{name: "a large one cannot", body: long},
		{name: "a large one whose length is not announced cannot", body: long, unknown: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			req := &http.Request{
				Header:        http.Header{},
				ContentLength: int64(len(test.body)),
				Body:          io.NopCloser(strings.NewReader(test.body)),
			}
			if test.unknown {
				req.ContentLength, req.TransferEncoding = -1, []string{"chunked"}
			}
			if test.expect != "" {
				req.Header.Set("Expect", test.expect)
			}
			here := must.Get(holdBody(req, inTime{}))(t)
			if here != test.want || (req.GetBody != nil) != test.want {
				t.Fatalf("want it replayable: %t", test.want)
			}
			if req.Header.Get("Expect") != "" {
				t.Error("want the client told to go on, and not to wait for the API server")
			}
			bodies := []io.Reader{req.Body}
			if test.want {
				if got := req.ContentLength; got != int64(len(test.body)) || req.TransferEncoding != nil {
					t.Errorf("want the length known, got %d and %v", got, req.TransferEncoding)
				}
				again := must.Get(req.GetBody())(t)
				bodies = append(bodies, again)
			}
			for _, body := range bodies {
				if text, err := io.ReadAll(body); err != nil || string(text) != test.body {
					t.Errorf("want the body of %d bytes, got %d and %v", len(test.body), len(text), err)
				}
			}
		})
	}
	for name, announced := range map[string]int64{"a short one": 10, "a long one": listener.MaxHeldBody + 10} {
		req := &http.Request{Header: http.Header{}, ContentLength: announced, Body: io.NopCloser(strings.NewReader("short"))}
		if _, err := holdBody(req, inTime{}); err == nil {
			t.Errorf("%s: want the client's body to blame", name)
		}
	}
}
