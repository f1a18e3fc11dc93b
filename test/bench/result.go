package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sample is the result of one measurement of one target.
type sample struct {
	workers    int
	operations int
	elapsed    time.Duration
	latencies  []time.Duration
	proxyCPU   time.Duration
	serverCPU  time.Duration
	memory     int64 // resident, of the proxy; 0 if there is none
	perWatch   int64 // bytes; 0 unless the load is watches
}

// write prints one line in Go's benchmark format. benchstat combines the lines of all rounds.
func (s sample) write(out io.Writer, name string, t *target) error {
	n := max(1, s.operations)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(n) }
	slices.Sort(s.latencies)
	line := fmt.Sprintf("Benchmark%s/workers=%d/via=%s %d %.0f ns/op %.0f p50-ns %.0f p99-ns %.0f apiserver-cpu-ns/op",
		strings.ToUpper(name[:1])+name[1:], s.workers, t.name, n, each(s.elapsed),
		quantile(s.latencies, 0.5), quantile(s.latencies, 0.99), each(s.serverCPU))
	if t.process != nil {
		line += fmt.Sprintf(" %.0f proxy-cpu-ns/op %d rss-bytes", each(s.proxyCPU), s.memory)
	}
	if s.perWatch > 0 {
		line += fmt.Sprintf(" %d bytes/watch", s.perWatch)
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// quantile returns the q-quantile of sorted durations, in nanoseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))])
}

// writeHeader prints the configuration by which benchstat groups results.
func writeHeader(out io.Writer, e *environment) error {
	_, err := fmt.Fprintf(out, "goos: %s\ngoarch: %s\ncpu: %s\ngomaxprocs: %s\n",
		runtime.GOOS, runtime.GOARCH, processor(), e.procs)
	return err
}

func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer file.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

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
