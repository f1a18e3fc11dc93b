package request_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func theirs() apirequest.RequestInfoResolver {
	return &apirequest.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
}

// TestAsTheAPIServer compares the results with those of the API server's resolver for the same request, without the
// selectors that are omitted on purpose.
func TestAsTheAPIServer(t *testing.T) {
	t.Parallel()
	const pods, long = "/api/v1/namespaces/a/pods", request.MaxSelector + 1
	for name, one := range map[string]struct{ method, path, theirs string }{
		"no query":           {method: http.MethodGet, path: pods},
		"an object":          {method: http.MethodGet, path: pods + "/b?labelSelector=a"},
		"no API":             {method: http.MethodGet, path: "/version?watch=1"},
		"a list":             {method: http.MethodGet, path: pods + "?limit=500&resourceVersion=0"},
		"a watch":            {method: http.MethodGet, path: pods + "?watch=true&timeoutSeconds=1"},
		"a watch of nothing": {method: http.MethodGet, path: pods + "?watch="},
		"no watch":           {method: http.MethodGet, path: pods + "?watch=FALSE"},
		"no watch, 0":        {method: http.MethodGet, path: pods + "?watch=0&watch=1"},
		"a watch, twice":     {method: http.MethodGet, path: pods + "?watch=1&watch=0"},
		"a long watch":       {method: http.MethodGet, path: pods + "?watch=false" + strings.Repeat("e", long)},
		"the watch verb":     {method: http.MethodGet, path: "/api/v1/watch/pods?labelSelector=a%3Db"},
		"one by its name":    {method: http.MethodGet, path: pods + "?fieldSelector=metadata.name%3Db"},
		"selectors": {
			method: http.MethodGet, path: pods + "?watch=1&fieldSelector=spec.nodeName%3Dn&labelSelector=a+in+(b,c),!d",
		},
		"two selectors": {method: http.MethodGet, path: pods + "?labelSelector=a&labelSelector=b"},
		"all by labels": {method: http.MethodDelete, path: pods + "?labelSelector=a%3Db"},
		"a new one":     {method: http.MethodPost, path: pods + "?fieldSelector=a%3Db"},
		"another bad parameter": {
			method: http.MethodGet, path: pods + "?limit=x&watch=1&labelSelector=a",
			theirs: pods + "?watch=1",
		},
		"a bad parameter after the name": {
			method: http.MethodGet, path: pods + "?fieldSelector=metadata.name%3Da&limit=x",
			theirs: pods,
		},
		"a long selector of fields": {
			method: http.MethodGet, path: pods + "?fieldSelector=" + strings.Repeat("a%3Db,", long/4) + "c%3Dd&labelSelector=a",
			theirs: pods + "?labelSelector=a",
		},
		"a long selector of labels": {
			method: http.MethodGet, path: pods + "?watch=1&labelSelector=" + strings.Repeat("a", long),
			theirs: pods + "?watch=1",
		},
		"the longest that is read": {
			method: http.MethodGet, path: pods + "?labelSelector=a+in+(" + strings.Repeat("b,", long/2-4) + "c)",
		},
		"a bad selector": {method: http.MethodGet, path: pods + "?labelSelector=a+b+c&fieldSelector=a%3Db", theirs: pods},
		"a bad query":    {method: http.MethodGet, path: pods + "?watch=1&a=%zz"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := must.Get(request.NewInfoResolver().NewRequestInfo(httptest.NewRequest(one.method, one.path, nil)))(t)
			if one.theirs == "" {
				one.theirs = one.path
			}
			want := must.Get(theirs().NewRequestInfo(httptest.NewRequest(one.method, one.theirs, nil)))(t)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("not as the API server's (-theirs +ours):\n%s", diff)
			}
		})
	}
}

func TestLongSelector(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 3*request.MaxSelector)
	for query, want := range map[string]int{
		"":                                      0,
		"labelSelector=a":                       0,
		"continue=" + long:                      0,
		"labelSelector=" + long:                 len(long),
		"labelSelector=a&labelSelector=" + long: 0, // the first counts
		"fieldSelector=b" + long + "&labelSelector=" + long:                 len(long) + 1,
		"labelSelector=" + strings.Repeat("%61", request.MaxSelector):       0,
		"labelSelector=" + strings.Repeat("%61", request.MaxSelector) + "a": request.MaxSelector + 1,
	} {
		if got := request.LongSelector(&url.URL{RawQuery: query}); got != want {
			t.Errorf("%.60s: got %d, want %d", query, got, want)
		}
	}
}

// TestNoKind resolves a path without a resource that is too long for a log.
func TestNoKind(t *testing.T) {
	t.Parallel()
	path := "/apis/" + strings.Repeat("g", 1<<20) + "/v1/watch"
	_, err := request.NewInfoResolver().NewRequestInfo(httptest.NewRequest(http.MethodGet, path, nil))
	if err == nil || len(err.Error()) > 200 || !strings.Contains(err.Error(), "/apis/ggg") {
		t.Errorf("got %.300v, want an error that shows the beginning of the path", err)
	}
}

// TestCostlyQueries compares the memory that a long query takes with what the API server's resolver takes, and checks
// that the query is not logged.
func TestCostlyQueries(t *testing.T) {
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	t.Cleanup(func() { klog.LogToStderr(true) })
	memory := func(resolver apirequest.RequestInfoResolver, query string) uint64 {
		req := httptest.NewRequest(http.MethodGet, "/api/v1/pods?"+query, nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		must.Get(resolver.NewRequestInfo(req))(t)
		runtime.ReadMemStats(&after)
		klog.Flush()
		return after.TotalAlloc - before.TotalAlloc
	}
	queries := []string{
		"labelSelector=" + strings.Repeat("a,", 100_000) + "a", "fieldSelector=" + strings.Repeat("a%3Db,", 50_000) + "a%3Db",
		"fieldSelector=" + strings.Repeat("a%3Db,", 50_000) + "a",
	}
	for _, query := range queries {
		if ours, theirs := memory(request.NewInfoResolver(), query), memory(theirs(), query); ours > theirs/5 {
			t.Errorf("%.20s... took %d bytes, and the API server's resolver %d", query, ours, theirs)
		}
	}
	if log.Len() < len(queries[2]) {
		t.Fatal("the API server's resolver logged no long query, so this test shows nothing")
	}
	log.Reset()
	for _, query := range append(queries, "limit=x&token=secret") {
		memory(request.NewInfoResolver(), query)
	}
	if log.Len() > 0 {
		t.Errorf("logged %.300s", log.String())
	}
}
