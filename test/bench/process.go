package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of processor time in /proc/PID/stat: on Linux always 10 ms, as seen from a program.
const clockTick = 10 * time.Millisecond

// readProcess returns the processor time, user and system, that a process has used so far.
func readProcess(pid int) (time.Duration, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading a process's processor time: %w", err)
	}
	// The program's name, in parentheses, may contain anything.
	_, after, found := bytes.Cut(content[max(0, bytes.LastIndexByte(content, ')')):], []byte(") "))
	fields := strings.Fields(string(after))
	if !found || len(fields) < 13 {
		return 0, fmt.Errorf("reading %q: too few fields", path)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("reading %q: %w", path, err)
	}
	return time.Duration(user+system) * clockTick, nil
}

// memory is the resident memory of a process, in bytes. Most of files is the program itself, which replicas on one
// node share.
type memory struct{ all, anonymous, files, peak int64 }

func readMemory(pid int) (memory, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "status")
	content, err := os.ReadFile(path)
	if err != nil {
		return memory{}, fmt.Errorf("reading a process's memory: %w", err)
	}
	var m memory
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		var into *int64
		switch name {
		case "VmRSS":
			into = &m.all
		case "VmHWM":
			into = &m.peak
		case "RssAnon":
			into = &m.anonymous
		case "RssFile":
			into = &m.files
		default:
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return memory{}, fmt.Errorf("reading %q: %w", path, err)
		}
		*into = kilobytes << 10
	}
	if m.all == 0 {
		return memory{}, fmt.Errorf("reading %q: no VmRSS", path)
	}
	return m, nil
}

// forgetPeak makes the peak of a process's memory what it is now.
func forgetPeak(pid int) error {
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0); err != nil {
		return fmt.Errorf("forgetting a process's peak of memory: %w", err)
	}
	return nil
}

// processorTimes are those of the servers. other is zero without another agent.
type processorTimes struct{ proxy, other, apiServer time.Duration }

func (t processorTimes) minus(before processorTimes) processorTimes {
	return processorTimes{t.proxy - before.proxy, t.other - before.other, t.apiServer - before.apiServer}
}

func (w *world) processorTimes() (processorTimes, error) {
	var t processorTimes
	var err1, err2, err3 error
	t.proxy, err1 = readProcess(w.agent.PID())
	t.apiServer, err2 = readProcess(w.Cluster.APIServerPID())
	if w.other != nil {
		t.other, err3 = readProcess(w.other.PID())
	}
	return t, errors.Join(err1, err2, err3)
}
