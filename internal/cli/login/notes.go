package login

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// notes are until when something need not be done again. They stand in a file next to the credential cache, and hold no
// secret. There is no lock: when a note is lost, it is done once more.
type notes struct {
	path  string // empty: nothing can be noted
	now   func() time.Time
	until map[string]time.Time
}

// maxNotes bounds the file: that of a hundred clusters has a tenth of it.
const maxNotes = 256 << 10

func readNotes(cache string, now func() time.Time) *notes {
	n := &notes{now: now, until: map[string]time.Time{}}
	if cache == "" {
		return n
	}
	n.path = cache + ".followed"
	if content, err := atomicfile.ReadFile(
		n.path,
		maxNotes,
	); err != nil || json.Unmarshal(content, &n.until) != nil ||
		n.until == nil {
		n.until = map[string]time.Time{}
	}
	return n
}

// fresh says whether what need not be done again yet.
func (n *notes) fresh(what string) bool { return n.good(n.until[what]) }

// good excludes times in the far future, from when the clock was wrong.
func (n *notes) good(until time.Time) bool {
	left := until.Sub(n.now())
	return left > 0 && left <= noticeInterval
}

// note says that what was done now, and reports whether that is recorded.
func (n *notes) note(what string, again time.Duration) bool {
	if n.path == "" {
		return false
	}
	maps.DeleteFunc(n.until, func(_ string, until time.Time) bool { return !n.good(until) })
	n.until[what] = n.now().Add(again).UTC()
	content, err := json.Marshal(n.until)
	if err != nil {
		return false
	}
	file, err := atomicfile.Open(n.path, maxNotes)
	if err != nil {
		return false
	}
	defer file.Close()
	return !file.Linked && file.ReplacePrivate(append(content, '\n')) == nil
}
