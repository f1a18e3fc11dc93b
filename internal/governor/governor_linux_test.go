package governor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// programPages returns how many kilobytes of the program's file are in this process's memory.
func programPages(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut(status, []byte("RssFile:"))
	fields := bytes.Fields(after)
	if len(fields) == 0 {
		t.Skip("this kernel does not tell how much memory is of files")
	}
	pages, err := strconv.Atoi(string(fields[0]))
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

//nolint:paralleltest // other tests would use the program meanwhile
func TestUnmapProgram(t *testing.T) {
	before := programPages(t)
	unmapProgram()
	if after := programPages(t); after >= before {
		t.Errorf("%d kB of the program were in memory, and %d kB afterwards", before, after)
	}
	// What is needed comes back.
	if got := fmt.Sprint(strings.Fields(" a  b ")); got != "[a b]" {
		t.Errorf("the program does not work any more: %s", got)
	}
}

// slackOf returns how much later a thread of this process may wake.
func slackOf(t *testing.T, thread int) time.Duration {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(thread), "timerslack_ns"))
	if err != nil {
		t.Skipf("the kernel does not tell: %v", err)
	}
	slack, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(slack)
}

//nolint:paralleltest // it is about the threads of the whole process
func TestCalmMonitor(t *testing.T) {
	const unchanged = 29 * 1000
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := syscall.AllThreadsSyscall(
		syscall.SYS_PRCTL,
		prSetTimerSlack,
		unchanged,
		0,
	); errno == syscall.ENOTSUP {
		t.Skip("a program with cgo, as the race detector needs it, cannot do this")
	}
	calmMonitor()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var threads []int
	for _, entry := range entries {
		thread, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		threads = append(threads, thread)
	}
	slices.Sort(threads)
	// The runtime starts its monitor first of all.
	if got := slackOf(t, threads[1]); got != monitorSlack {
		t.Errorf("the monitor may wake %s late; want %s", got, monitorSlack)
	}
	usual := 0
	for _, thread := range threads {
		if slackOf(t, thread) == usualSlack {
			usual++
		}
	}
	if usual == 0 {
		t.Error("no thread wakes as usual")
	}
}
