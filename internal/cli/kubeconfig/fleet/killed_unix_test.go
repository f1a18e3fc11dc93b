//go:build unix

package fleet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

const helperFolder = "PINNIPED_TEST_FLEET_FOLDER"

// TestMain runs the tests or, in a process of TestKilled, one rotation.
func TestMain(m *testing.M) {
	folder := os.Getenv(helperFolder)
	if folder == "" {
		os.Exit(m.Run())
	}
	if err := rotateIn(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func rotateIn(folder string) error {
	_, err := Run(unkilled{}, options(folder))
	return err
}

// unkilled is a context that never ends.
type unkilled struct{}

func (unkilled) Deadline() (time.Time, bool) { return time.Time{}, false }
func (unkilled) Done() <-chan struct{}       { return nil }
func (unkilled) Err() error                  { return nil }
func (unkilled) Value(any) any               { return nil }

// TestKilled kills rotations at random moments. No kubeconfig is ever partial, and the next run completes the work. A
// lock that is left behind fails only its kubeconfig, with the command that removes it.
func TestKilled(t *testing.T) {
	t.Parallel()
	f := newBigFleet(t, 24)
	for name := range f.expected { // clusters that do not respond would only make it slow
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
	run := func(life time.Duration) bool {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperFolder+"="+f.folder)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		err := cmd.Wait()
		if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() >= 0 { //nolint:errorlint // Wait does not wrap it
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
	locks, err := filepath.Glob(filepath.Join(f.folder, "*", "*.lock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, lock := range locks {
		path := strings.TrimSuffix(lock, ".lock")
		rotated := read(t, path) == f.expected[filepath.Base(path)] // killed before it removed the lock
		o := options(path)
		o.Places[0].(*Files).LockTimeout = 10 * time.Millisecond
		result, err := Run(t.Context(), o)
		blocked := result.Items[0].Outcome == "failed" && strings.Contains(ui.HintOf(result.Items[0].Err), "rm -f '"+lock+"'")
		if err != nil || blocked == rotated {
			t.Errorf("with a lock that was left behind, rotated %v: %v, %v", rotated, result.Items[0].Err, err)
		}
		if err := os.Remove(lock); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(f.folder, "*", ".*.tmp"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Run(t.Context(), options(f.folder)); err != nil {
		t.Fatal(err)
	}
	f.check(t)
}
