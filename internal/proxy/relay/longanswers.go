package relay

import (
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// longAnswer is from how many bytes on an answer is long. The API server compresses from there on, too.
	longAnswer = 128 << 10
	// longFor is for how long an answer counts as long after it was, and shortFor the same for a short one.
	longFor, shortFor = time.Minute, time.Hour
	// maxKnownAnswers bounds what is remembered, and maxKnownPath the length of each path.
	maxKnownAnswers, maxKnownPath = 4096, 512
)

// LongAnswers tells which requests are for long answers. A long list keeps a processor of the API server busy for some
// 20 ms, a get of a small object for less than one. So requests for long answers take more seats.
//
// Only the answer shows how long it is. So a request counts as one for a long answer when the same was asked for within
// a minute and was long. A list of everything counts as long until it is known.
type LongAnswers struct {
	known *cache.LRUExpireCache // by readKey: whether the answer was long
}

// readKey is what reads have in common whose answers are about as long.
type readKey struct {
	path string
	// all is true for a list without a selector or limit, and for a description of the API.
	all bool
}

// NewLongAnswers returns one that knows of no answers yet.
func NewLongAnswers(clk clock.PassiveClock) *LongAnswers {
	return &LongAnswers{known: cache.NewLRUExpireCacheWithClock(maxKnownAnswers, clk)}
}

// readBy returns what a request asks for, and false when it reads nothing whose length is remembered.
func readBy(req *http.Request) (readKey, bool) {
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !ok || info.Subresource != "" {
		return readKey{}, false
	}
	switch info.Verb {
	case "get":
		return readKey{path: req.URL.Path, all: strings.HasPrefix(req.URL.Path, "/openapi/")}, true
	case "list":
		return readKey{path: req.URL.Path, all: !narrowed(req)}, true
	}
	return readKey{}, false
}

// narrowed is true when a list is not of everything.
func narrowed(req *http.Request) bool {
	if req.URL.RawQuery == "" {
		return false
	}
	query := req.URL.Query()
	return query.Has("limit") || query.Has("continue") || query.Has("labelSelector") || query.Has("fieldSelector")
}

// expected returns whether the answer will probably be long.
func (l *LongAnswers) expected(what readKey) bool {
	if long, known := l.known.Get(what); known {
		return long.(bool)
	}
	return what.all
}

// note remembers whether an answer was long. Of the same requests within a minute a long one counts: a client cannot hide
// long answers behind short ones.
func (l *LongAnswers) note(what readKey, state *request.State) {
	switch {
	case len(what.path) > maxKnownPath:
	case hasLongAnswer(state):
		what.path = strings.Clone(what.path) // it may be a part of a long header
		l.known.Add(what, true, longFor)
	case what.all && answerComplete(state):
		if long, known := l.known.Get(what); !known || !long.(bool) {
			what.path = strings.Clone(what.path)
			l.known.Add(what, false, shortFor)
		}
	}
}

// noteAnswer takes from the head of the API server's answer what it says about its length.
func noteAnswer(s *request.State, res *http.Response) {
	s.AnswerGood = res.StatusCode == http.StatusOK
	s.AnswerLong = s.AnswerGood && (res.ContentLength >= longAnswer || res.Header.Get("Content-Encoding") != "")
}

// hasLongAnswer is true as soon as it is known that the answer is long.
func hasLongAnswer(s *request.State) bool {
	return s.AnswerLong || s.AnswerGood && s.Answer != nil && s.Answer.Length() >= longAnswer
}

// answerComplete is true when the API server has said all of a good answer.
func answerComplete(s *request.State) bool {
	return s.AnswerGood && (s.AnswerFits || s.Answer != nil && s.Answer.Complete())
}
