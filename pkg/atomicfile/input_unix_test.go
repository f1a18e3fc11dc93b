//go:build unix

package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func fifo(t *testing.T, writes ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	must.Do(t, syscall.Mkfifo(path, 0o600))
	if len(writes) == 0 {
		return path
	}
	go func() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return
		}
		defer func() { _ = file.Close() }()
		for _, text := range writes {
			if _, err := file.WriteString(text); err != nil {
				return
			}
			time.Sleep(30 * time.Millisecond)
		}
	}()
	return path
}

func TestReadInput(t *testing.T) {
	t.Parallel()
	regular := filepath.Join(t.TempDir(), "regular")
	must.Do(t, os.WriteFile(regular, []byte("content"), 0o600))
	for name, test := range map[string]struct {
		path       string
		want, says string
	}{
		"a file":                               {path: regular, want: "content"},
		"a pipe":                               {path: fifo(t, "con", "tent"), want: "content"},
		"a pipe that takes its time":           {path: fifo(t, strings.Split(strings.Repeat("x", 10), "")...), want: strings.Repeat("x", 10)},
		"a pipe into which nothing is written": {path: fifo(t), says: "nothing was written to the pipe for 200ms"},
		"a pipe with too much":                 {path: fifo(t, strings.Repeat("x", 101)), says: "more than 100 bytes"},
		"a device without an end":              {path: "/dev/zero", says: "more than 100 bytes"},
		"an empty device":                      {path: os.DevNull},
		"a folder":                             {path: t.TempDir(), says: ErrNotRegular.Error()},
		"nothing":                              {path: filepath.Join(t.TempDir(), "none"), says: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, err := readInput(test.path, 100, 200*time.Millisecond)
			if string(content) != test.want || (err == nil) != (test.says == "") {
				t.Fatalf("got %q, %v", content, err)
			}
			if err != nil && (!strings.Contains(err.Error(), test.says) || strings.Count(err.Error(), test.path) != 1) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestInputsReadOnce(t *testing.T) {
	t.Parallel()
	path := fifo(t, "content")
	inputs := &Inputs{}
	for range 3 {
		if content, err := inputs.Read(path, 100); string(content) != "content" || err != nil {
			t.Fatalf("got %q, %v", content, err)
		}
	}
	if _, err := inputs.Read(filepath.Join(t.TempDir(), "none"), 100); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
