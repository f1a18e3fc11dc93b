package login

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// notes records until when things need not be done again, in a file next to the credential cache. It holds no secret,
// and needs no lock: if a note is lost, the thing is done once more.
type notes struct {
	path  string // empty: nothing is recorded
	now   func() time.Time
	until map[string]time.Time
}

// maxNotes is the maximum size of the file, ten times that for a hundred clusters.
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

// fresh reports whether what need not be done yet.
func (n *notes) fresh(what string) bool { return n.good(n.until[what]) }

// good rejects times in the far future, from when the clock was wrong.
func (n *notes) good(until time.Time) bool {
	left := until.Sub(n.now())
	return left > 0 && left <= noticeInterval
}

// note records that what was done now, and reports whether it was recorded.
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
