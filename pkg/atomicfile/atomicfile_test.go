package atomicfile_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, dir string) (path string)
		reads   string // where the content is found, if not at path
		fails   bool
	}{
		{name: "makes a file", prepare: func(_ *testing.T, dir string) string { return filepath.Join(dir, "new") }},
		{name: "replaces a file that was readable for all", prepare: func(t *testing.T, dir string) string {
			t.Helper()
			return write(t, filepath.Join(dir, "old"))
		}},
		{name: "keeps a symbolic link", reads: "target", prepare: func(t *testing.T, dir string) string {
			t.Helper()
			write(t, filepath.Join(dir, "target"))
			return link(t, "target", filepath.Join(dir, "link"))
		}},
		{name: "makes the target of a dangling link", reads: "target", prepare: func(t *testing.T, dir string) string {
			t.Helper()
			return link(t, "target", filepath.Join(dir, "link"))
		}},
		{name: "gives up on a link to itself", fails: true, prepare: func(t *testing.T, dir string) string {
			t.Helper()
			return link(t, "loop", filepath.Join(dir, "loop"))
		}},
		{name: "refuses a directory", fails: true, prepare: func(_ *testing.T, dir string) string { return dir }},
		{
			name: "refuses a missing directory", fails: true,
			prepare: func(_ *testing.T, dir string) string { return filepath.Join(dir, "a", "b") },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := test.prepare(t, dir)
			before, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			err = atomicfile.Write(path, []byte("content"))
			if test.fails {
				after, _ := os.ReadDir(dir)
				if err == nil || len(after) != len(before) {
					t.Errorf("want an error and no file left behind, got %v, %v", err, after)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if test.reads != "" {
				if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
					t.Errorf("want the link kept, got %v, %v", info, err)
				}
				path = filepath.Join(dir, test.reads)
			}
			content, err := os.ReadFile(path)
			if err != nil || string(content) != "content" {
				t.Errorf("want the content, got %q, %v", content, err)
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("want a regular file with mode 0600, got %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := write(t, filepath.Join(dir, "target"))
	if err := os.Chmod(target, 0o640); err != nil {
		t.Fatal(err)
	}
	path := link(t, "target", filepath.Join(dir, "link"))
	if err := atomicfile.Update(path, []byte("content")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(target)
	if err != nil || string(content) != "content" {
		t.Errorf("want the content, got %q, %v", content, err)
	}
	if info, err := os.Lstat(target); err != nil || info.Mode() != 0o640 {
		t.Errorf("want a regular file with the mode that it had, got %v, %v", info.Mode(), err)
	}
	for _, bad := range []string{filepath.Join(dir, "missing"), dir} {
		if err := atomicfile.Update(bad, nil); err == nil {
			t.Errorf("%s is updated", bad)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("want nothing left behind, got %v, %v", entries, err)
	}
}

func TestWriteThroughPipe(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	path := filepath.Join("/dev/fd", strconv.Itoa(int(writer.Fd())))
	if _, err := os.Stat(path); err != nil {
		t.Skipf("this system has no %s", path)
	}
	if err := atomicfile.Write(path, []byte("content")); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	got := make([]byte, 16)
	if n, err := reader.Read(got); err != nil || string(got[:n]) != "content" {
		t.Errorf("want the content from the pipe, got %q, %v", got[:n], err)
	}
}

func write(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte("old and longer content"), 0o644); err != nil { // to see it become private
		t.Fatal(err)
	}
	return path
}

func link(t *testing.T, target, path string) string {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	return path
}
