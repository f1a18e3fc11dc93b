//go:build unix

package fleet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const helperFolder, helperJournal = "PINNIPED_TEST_FLEET_FOLDER", "PINNIPED_TEST_FLEET_JOURNAL"

// TestMain runs the tests, or, in a process that TestKilled starts, one rotation.
func TestMain(m *testing.M) {
	folder := os.Getenv(helperFolder)
	if folder == "" {
		os.Exit(m.Run())
	}
	if err := rotateIn(folder, os.Getenv(helperJournal)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func rotateIn(folder, journal string) error {
	j, err := OpenJournal(journal, true, time.Now)
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }()
	o := options(folder)
	o.Journal = j
	_, err = Run(unkilled{}, o)
	return err
}

// unkilled is the context of a process that only a signal ends.
type unkilled struct{}

func (unkilled) Deadline() (time.Time, bool) { return time.Time{}, false }
func (unkilled) Done() <-chan struct{}       { return nil }
func (unkilled) Err() error                  { return nil }
func (unkilled) Value(any) any               { return nil }

// TestKilled kills rotations at any moment. No kubeconfig is ever half written, the next run goes on where the killed
// one ended, and in the end all is done, nothing is left behind, and everything can be undone.
func TestKilled(t *testing.T) {
	t.Parallel()
	f := newBigFleet(t, 24)
	for name := range f.expected { // this is about the files; clusters that do not answer would only make it slow
		var cluster int
		if _, err := fmt.Sscanf(name, "%03d", &cluster); err != nil {
			t.Fatal(err)
		}
		if cluster%5 == 4 {
			if err := os.Remove(filepath.Join(f.folder, fmt.Sprint(cluster%7), name)); err != nil {
				t.Fatal(err)
			}
			delete(f.expected, name)
		}
	}
	journal := filepath.Join(t.TempDir(), "journal")
	run := func(life time.Duration) bool {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperFolder+"="+f.folder, helperJournal+"="+journal)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		err := cmd.Wait()
		if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() >= 0 { //nolint:errorlint // it is the very error
			t.Fatalf("a run failed by itself: %v\n%s", err, &said)
		}
		return err == nil
	}
	killed := 0
	for life := 20 * time.Millisecond; !run(life); life += life / 12 {
		killed++
		for name, after := range f.expected {
			path, _ := filepath.Glob(filepath.Join(f.folder, "*", name))
			if len(path) != 1 {
				t.Fatalf("%s is gone: %v", name, path)
			}
			if got := read(t, path[0]); got != after && got != f.before[name] {
				t.Fatalf("%s is half written:\n%s", name, got)
			}
		}
	}
	t.Logf("killed %d times", killed)
	if killed < 3 {
		t.Errorf("killed only %d times", killed)
	}
	f.check(t)
	result := restored(t, journal)
	if len(result.Items) != len(f.expected) {
		t.Errorf("undone %d of %d", len(result.Items), len(f.expected))
	}
	for name := range f.expected {
		f.expected[name] = f.before[name]
	}
	f.check(t)
}
