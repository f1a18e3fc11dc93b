package fleet

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// journalVersion is that of the records.
const journalVersion = "journal.pinniped.dev/v1"

// The kinds of records.
const (
	recordRun    = "run"    // a run begins; Run is its name
	recordIntent = "intent" // an item is about to be written
	recordDone   = "done"   // it was written
	recordUndone = "undone" // its changes were taken back
	recordFinish = "finish" // the run came to its end
)

// record is one line of the journal.
type record struct {
	Version string    `json:"version,omitempty"` // of the first record of a run
	Record  string    `json:"record"`
	Time    time.Time `json:"time"`
	Run     string    `json:"run"`
	Kind    string    `json:"kind,omitempty"` // of the item
	Item    string    `json:"item,omitempty"`
	Shown   string    `json:"shown,omitempty"`
	Before  string    `json:"before,omitempty"` // SHA-256 of the content
	After   string    `json:"after,omitempty"`
	// Changes have CA bundles, and no secrets.
	Changes []kubeconfig.Change `json:"changes,omitempty"`
}

// Journal is a file in which a run notes what it does before it does it, so that a run which was killed can be resumed,
// and any run be undone. One process at a time has it open. A nil Journal notes nothing.
type Journal struct {
	// Interrupted is the name of a run that did not come to its end; empty when there is none.
	Interrupted string

	run     string
	file    *os.File
	lock    *flock.Flock
	now     func() time.Time
	history []record

	mu sync.Mutex
}

// OpenJournal opens the journal at path and begins a run in it. The file is made if it does not exist and create
// is set.
func OpenJournal(path string, create bool, now func() time.Time) (*Journal, error) {
	if !create { // or a lock would be left beside a file that is not there
		if _, err := os.Stat(path); err != nil { //nolint:gosec // the user says where it is
			return nil, fmt.Errorf("opening journal %q: %w", path, err)
		}
	}
	j := &Journal{now: now, lock: flock.New(path + ".lock")}
	locked, err := j.lock.TryLock()
	switch {
	case err != nil:
		return nil, fmt.Errorf("locking journal %q: %w", path, err)
	case !locked:
		return nil, fmt.Errorf("locking journal %q: another run is using it", path)
	}
	if err := j.open(path, create); err != nil {
		return nil, errors.Join(fmt.Errorf("opening journal %q: %w", path, err), j.lock.Unlock())
	}
	j.run = "pinniped kubeconfig rotate " + rand.Text()
	if err := j.write(record{Version: journalVersion, Record: recordRun}, true); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func (j *Journal) open(path string, create bool) error {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	file, err := os.OpenFile(path, flags, 0o600) //nolint:gosec // the user says where it is
	if err != nil {
		return err
	}
	good, err := j.read(file)
	if err == nil {
		err = file.Truncate(good) // a process was killed while it wrote the last line
	}
	if err == nil {
		_, err = file.Seek(good, io.SeekStart)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	j.file = file
	return nil
}

// read reads the history, and returns where the last whole line ends.
func (j *Journal) read(file io.Reader) (int64, error) {
	reader := bufio.NewReader(file)
	var good int64
	for number := 1; ; number++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if number == 1 && len(line) > 0 && !bytes.HasPrefix(line, []byte(`{"`)) {
				return 0, errors.New("it is no journal")
			}
			return good, nil
		}
		if err != nil {
			return 0, err
		}
		var one record
		if err := json.Unmarshal(line, &one); err != nil || one.Record == "" {
			return 0, fmt.Errorf("line %d is no record: it is no journal, or damaged", number)
		}
		if one.Version != "" && one.Version != journalVersion {
			return 0, fmt.Errorf("it was written by another version of this program (%.60q)", one.Version)
		}
		switch one.Record {
		case recordRun:
			j.Interrupted = one.Run
		case recordFinish:
			j.Interrupted = ""
		}
		j.history = append(j.history, one)
		good += int64(len(line))
	}
}

// Owner is the name of this run in locks.
func (j *Journal) Owner() string {
	if j == nil {
		return ""
	}
	return j.run
}

// dead says whether an owner of a lock is a run of this journal that has ended: only one has the journal open.
func (j *Journal) dead(owner string) bool {
	return slices.ContainsFunc(j.history, func(r record) bool { return r.Run == owner })
}

// write appends a record. With sync it is on the disk before write returns.
func (j *Journal) write(r record, sync bool) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Run, r.Time = j.run, j.now().UTC()
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("writing the journal: %w", err)
	}
	if sync {
		if err := j.file.Sync(); err != nil {
			return fmt.Errorf("writing the journal: %w", err)
		}
	}
	return nil
}

// intent notes what is about to happen to an item.
func (j *Journal) intent(item *Item, content []byte, made *kubeconfig.Rotation) error {
	return j.write(record{
		Record: recordIntent, Kind: item.Kind, Item: item.ID, Shown: item.Shown,
		Before: hashOf(content), After: hashOf(made.Content), Changes: made.Changes,
	}, true)
}

func (j *Journal) note(kind string, item *Item) error {
	return j.write(record{Record: kind, Kind: item.Kind, Item: item.ID}, false)
}

// finish notes that the run has come to its end.
func (j *Journal) finish() error { return j.write(record{Record: recordFinish}, true) }

// Close gives the journal to the next process.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	err := j.file.Close()
	return errors.Join(err, j.lock.Unlock())
}

// left is what the history says about one item.
type left struct {
	item *Item
	// changes are what was written and not taken back, in order: one list for each time.
	changes [][]kubeconfig.Change
	after   string // SHA-256 of what was written last by the interrupted run; empty if that wrote nothing
}

// items returns what the history says, in the order in which items were written last.
func (j *Journal) items() []*left {
	if j == nil {
		return nil
	}
	var all []*left
	find := func(r record) *left {
		for i, one := range all {
			if one.item.Kind == r.Kind && one.item.ID == r.Item {
				all = append(append(all[:i], all[i+1:]...), one)
				return one
			}
		}
		one := &left{item: &Item{Kind: r.Kind, ID: r.Item, Shown: r.Shown}}
		all = append(all, one)
		return one
	}
	index := map[string]*left{}
	for _, r := range j.history {
		key := r.Kind + "\x00" + r.Item
		switch r.Record {
		case recordIntent:
			one := index[key]
			if one == nil || len(all) == 0 || all[len(all)-1] != one {
				one = find(r)
				index[key] = one
			}
			one.changes = append(one.changes, r.Changes)
			if r.Run == j.Interrupted {
				one.after = r.After
			}
		case recordUndone:
			if one := index[key]; one != nil {
				one.changes, one.after = nil, ""
			}
		}
	}
	return all
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
