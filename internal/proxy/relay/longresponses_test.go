package relay

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// TestWhatIsKnownOfResponses checks what is cached, and for how long.
func TestWhatIsKnownOfResponses(t *testing.T) {
	t.Parallel()
	clk := testingclock.NewFakePassiveClock(time.Now())
	l := NewLongResponses(clk)
	const longList, longGet = "/api/v1/namespaces/d/configmaps", "/api/v1/namespaces/d/configmaps/large"
	list, some, get := readKey{longList, true}, readKey{longList, false}, readKey{longGet, false}
	long := func() *request.State { return &request.State{ResponseOK: true, ResponseLong: true} }
	short := func() *request.State { return &request.State{ResponseOK: true, ResponseFits: true} }
	expect := func(when string, what readKey, want bool) {
		t.Helper()
		if got := l.expected(what); got != want {
			t.Errorf("%s: want %+v expected long: %t, got %t", when, what, want, got)
		}
	}
	expect("nothing is known", list, true)
	expect("nothing is known", some, false)
	expect("nothing is known", get, false)

	for what, state := range map[string]*request.State{
		"was refused":   {ResponseFits: true},
		"broke off":     {ResponseOK: true, ResponseBody: &aheadBody{err: io.ErrUnexpectedEOF}},
		"was not taken": {ResponseOK: true, ResponseBody: &aheadBody{}},
	} {
		l.note(list, state)
		expect("a list that "+what, list, true)
	}
	l.note(list, &request.State{ResponseOK: true, ResponseBody: &aheadBody{err: io.EOF, sentBytes: longResponse - 1}})
	expect("the list was short", list, false)
	l.note(list, &request.State{ResponseOK: true, ResponseBody: &aheadBody{sentBytes: longResponse}})
	expect("it was long, and not taken as a whole", list, true)
	l.note(list, short())
	expect("it was short after that", list, true)
	clk.SetTime(clk.Now().Add(longFor - time.Second))
	expect("almost a minute later", list, true)
	clk.SetTime(clk.Now().Add(2 * time.Second))
	l.note(list, short())
	expect("it was short a minute later", list, false)

	l.note(get, long())
	expect("the get was long", get, true)
	clk.SetTime(clk.Now().Add(longFor + time.Second))
	expect("a minute later", get, false)

	for i := range 2 * maxKnownResponses {
		l.note(readKey{fmt.Sprintf("%s/%d", longList, i), true}, short())
	}
	l.note(readKey{"/" + strings.Repeat("x", maxKnownPath), true}, short())
	if got := len(l.known.Keys()); got > maxKnownResponses {
		t.Errorf("want at most %d responses cached, got %d", maxKnownResponses, got)
	}
	expect("it was pushed out by others", list, true)
	expect("the path is too long to be cached", readKey{"/" + strings.Repeat("x", maxKnownPath), true}, true)
}
