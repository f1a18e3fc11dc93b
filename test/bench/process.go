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

// clockTick is the unit of CPU time in /proc/PID/stat, which is always 10 ms on Linux.
const clockTick = 10 * time.Millisecond

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading a process's CPU time, which needs Linux: %w", err)
	}
	// The program's name is in parentheses and may contain any byte.
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

// residentMemory returns the resident memory of a process, in total and without files. Replicas on one node share the
// pages of the program file.
func residentMemory(pid int) (all, anonymous int64, err error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "status")
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("reading a process's memory: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		kilobytes, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			all = kilobytes << 10
		case "RssAnon":
			anonymous = kilobytes << 10
		}
	}
	if all == 0 {
		return 0, 0, fmt.Errorf("reading %q: no VmRSS", path)
	}
	return all, anonymous, nil
}
