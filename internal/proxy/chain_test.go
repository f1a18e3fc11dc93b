package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// TestABugCostsOneRequest has a handler panic: the client gets a 500. If a response has begun, it breaks off, so that
// the client does not take it for complete.
func TestABugCostsOneRequest(t *testing.T) {
	t.Parallel()
	s := request.NewSerializer()
	for name, test := range map[string]struct {
		bug    http.HandlerFunc
		panics any
		code   int
	}{
		"before the response":        {bug: func(http.ResponseWriter, *http.Request) { panic("bug") }, code: http.StatusInternalServerError},
		"after an informational one": {bug: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); panic("bug") }, code: 103},
		"within the response": {bug: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"items":[`))
			panic("bug")
		}, panics: http.ErrAbortHandler, code: http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorder := httptest.NewRecorder()
			func() {
				defer func() {
					if got := recover(); got != test.panics {
						t.Errorf("want it to leave with %v, got %v", test.panics, got)
					}
				}()
				req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil)
				setUp(NewMetrics().measure(recoverPanics(test.bug, s))).ServeHTTP(recorder, req)
			}()
			if said := strings.Contains(recorder.Body.String(), "could not be handled"); said != (test.panics == nil) {
				t.Errorf("got %d with %q", recorder.Code, recorder.Body)
			}
			if recorder.Code != test.code {
				t.Errorf("want code %d, got %d", test.code, recorder.Code)
			}
		})
	}
}

// TestWhoLeavesBeforeTheTurnIsNotServed has a client disconnect while its request is queued. The audit log and the
// metrics say that nothing was done.
func TestWhoLeavesBeforeTheTurnIsNotServed(t *testing.T) {
	t.Parallel()
	file := &auditFile{}
	p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
	release := make(chan struct{})
	waiting := p.serveLogins(release)
	client := p.client(t, nil)
	other := p.begin(t.Context(), client, "POST", loginPath, strings.NewReader("wrong")) // one of one connection fits
	eventually(t, func() bool { return waiting.Load() == 1 })
	ctx, leave := context.WithCancel(t.Context())
	late := p.begin(ctx, client, "POST", loginPath, strings.NewReader("wrong too"))
	eventually(t, func() bool { return p.waiting(flowcontrol.Login) == 1 })
	leave()
	<-late
	want := "ResponseComplete Metadata system:anonymous create " + loginPath + " from 127.0.0.1 Service Unavailable " +
		request.ErrClientLeft.ErrStatus.Message + " allow"
	if got := file.events(t, 1); len(got) != 1 || event(got[0]) != want {
		t.Errorf("want %q logged, got %+v", want, got)
	}
	checkMeasured(t, p.Metrics, map[string]float64{"requests_total{code=503,verb=create}": 1})
	close(release)
	<-other
}

// TestWhoLeavesIsNoProblemOfTheAPIServer has a client disconnect while the API server processes its request. The audit
// log says so, and whether something may have been changed.
func TestWhoLeavesIsNoProblemOfTheAPIServer(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/namespaces/d/pods"
	madeBusy := func(ctx context.Context, busy chan<- struct{}) {
		busy <- struct{}{}
		<-ctx.Done()
	}
	for name, test := range map[string]struct {
		method string
		review bool // the review is slow, not the request
		want   *apierrors.StatusError
	}{
		"a read":                         {"GET", false, request.ErrClientLeft},
		"a write":                        {"POST", false, request.ErrClientLeftWrite},
		"a write that is still reviewed": {"POST", true, request.ErrClientLeft},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, busy := &auditFile{}, make(chan struct{}, 10)
			p := startProxy(t, func(_ *proxy, o *Options) { o.Audit = newAuditLog(t, file) })
			p.api.set(func() {
				if test.review {
					p.api.during = func(ctx context.Context, _ string) { madeBusy(ctx, busy) }
				} else {
					p.api.serve = func(_ http.ResponseWriter, req *http.Request) { madeBusy(req.Context(), busy) }
				}
			})
			ctx, leave := context.WithCancel(t.Context())
			asked := p.begin(ctx, p.as(t, "jane"), test.method, path, nil)
			<-busy
			leave()
			<-asked
			got := file.events(t, 1)[0].ResponseStatus
			if got.Code != http.StatusServiceUnavailable || got.Message != test.want.ErrStatus.Message {
				t.Errorf("want %v logged, got %d %q", test.want, got.Code, got.Message)
			}
			for cause, count := range p.upstream.Problems {
				if n := count.Load(); n != 0 {
					t.Errorf("want no problem of the API server counted, got %d of %s", n, cause)
				}
			}
		})
	}
}
