package memory

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
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
		t.Skip("this kernel does not report how much memory is of files")
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
	// Needed pages are mapped again.
	if got := fmt.Sprint(strings.Fields(" a  b ")); got != "[a b]" {
		t.Errorf("the program does not work any more: %s", got)
	}
}
