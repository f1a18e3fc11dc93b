package relay

import (
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// longResponse is the size in bytes from which on a response is long. The API server compresses from that size on,
	// too.
	longResponse = 128 << 10
	// longFor is how long a request counts as long after a long response, and shortFor how long as short after a short
	// one.
	longFor, shortFor = time.Minute, time.Hour
	// maxKnownResponses limits the cache, and maxKnownPath the length of each path.
	maxKnownResponses, maxKnownPath = 4096, 512
)

// LongResponses predicts which requests have long responses. A long list keeps a processor of the API server busy for
// some 20 ms, a get of a small object for less than 1 ms. So requests with long responses take more seats.
//
// Only the response shows its length. So a request counts as long if an equal request within the last minute had a long
// response. A list of everything counts as long until its length is known. A watch that begins with a list does not: an
// operator starts thousands of short ones at once.
type LongResponses struct {
	known *cache.LRUExpireCache // by readKey: whether the response was long
}

// readKey identifies reads whose responses have about the same length.
type readKey struct {
	path string
	// all is true for a list without a selector or limit, and for an API description.
	all bool
}

// NewLongResponses returns a LongResponses with an empty cache.
func NewLongResponses(clk clock.PassiveClock) *LongResponses {
	return &LongResponses{known: cache.NewLRUExpireCacheWithClock(maxKnownResponses, clk)}
}

// readBy returns the key of a request. It is empty for requests whose lengths are not recorded.
func readBy(req *http.Request) readKey {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	what := readKey{path: req.URL.Path}
	switch {
	case !ok || info.Subresource != "":
		return readKey{}
	case info.Verb == "get":
		what.all = strings.HasPrefix(what.path, "/openapi/")
	case info.Verb == "list":
		query := req.URL.Query()
		what.all = !query.Has("limit") && !query.Has("continue") && !query.Has("labelSelector") &&
			!query.Has("fieldSelector")
	case !BeginsWithAll(req):
		return readKey{}
	}
	return what
}

// expected returns whether the response will probably be long.
func (l *LongResponses) expected(what readKey) bool {
	if long, known := l.known.Get(what); known {
		return long.(bool)
	}
	return what.all
}

// note records whether a response was long. A short response does not replace a long one within a minute, so a client
// cannot hide long responses behind short ones.
func (l *LongResponses) note(what readKey, s *request.State) {
	if !s.ResponseOK || what.path == "" {
		return
	}
	long, whole := s.ResponseLong, s.ResponseFits
	if body, ok := s.ResponseBody.(*aheadBody); ok {
		sent, end := body.sent()
		long, whole = long || sent >= longResponse, end == io.EOF //nolint:errorlint // upstream's own
	}
	lasts := longFor
	if !long {
		if before, _ := l.known.Get(what); before == true || !whole || !what.all {
			return
		}
		lasts = shortFor
	}
	l.add(what, long, lasts)
}

func (l *LongResponses) add(what readKey, long bool, lasts time.Duration) {
	if len(what.path) <= maxKnownPath {
		what.path = strings.Clone(what.path) // it may be a part of a long header
		l.known.Add(what, long, lasts)
	}
}
