package atomicfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, dir string) (path string)
		reads   string // where the content is, if not at path
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

func TestReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := write(t, filepath.Join(dir, "target"))
	must.Do(t, os.Chmod(target, 0o640))
	path := link(t, "target", filepath.Join(dir, "link"))
	must.Do(t, replace(t, path, nil))
	expect(t, target, "content")
	if info, err := os.Lstat(target); err != nil || info.Mode() != 0o640 {
		t.Errorf("want a regular file with the mode that it had, got %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("want nothing left behind, got %v, %v", entries, err)
	}
	if _, err := atomicfile.Open(dir, limit); !errors.Is(err, atomicfile.ErrNotRegular) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := atomicfile.Open(target, 3); !errors.Is(err, atomicfile.ErrTooLarge) {
		t.Errorf("a file beyond the limit: %v", err)
	}
	missing := filepath.Join(dir, "missing")
	if err := replace(t, missing, nil); err != nil {
		t.Error(err)
	}
	expect(t, missing, "content")
}

// TestReplaceOfAnExchangedFile: an attacker who owns the directory replaces the file by a link to one of the writer's.
func TestReplaceOfAnExchangedFile(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		exchange func(t *testing.T, folder, theirs string)
		fails    bool
	}{
		{name: "by a symbolic link", fails: true, exchange: func(t *testing.T, folder, theirs string) {
			t.Helper()
			remove(t, filepath.Join(folder, "config"))
			link(t, theirs, filepath.Join(folder, "config"))
		}},
		{name: "by another file", fails: true, exchange: func(t *testing.T, folder, theirs string) {
			t.Helper()
			remove(t, filepath.Join(folder, "config"))
			must.Do(t, os.Link(theirs, filepath.Join(folder, "config")))
		}},
		{name: "with its folder", exchange: func(t *testing.T, folder, theirs string) {
			t.Helper()
			must.Do(t, os.Rename(folder, folder+".old"))
			link(t, filepath.Dir(theirs), folder)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			folder, private := filepath.Join(dir, "shared"), filepath.Join(dir, "private")
			for _, made := range []string{folder, private} {
				must.Do(t, os.Mkdir(made, 0o755))
			}
			write(t, filepath.Join(folder, "config"))
			theirs := write(t, filepath.Join(private, "config"))
			err := replace(t, filepath.Join(folder, "config"), func() { test.exchange(t, folder, theirs) })
			if (err != nil) != test.fails || test.fails && !errors.Is(err, atomicfile.ErrReplaced) {
				t.Errorf("got %v", err)
			}
			expect(t, theirs, old)
		})
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
	must.Do(t, atomicfile.Write(path, []byte("content")))
	_ = writer.Close()
	got := make([]byte, 16)
	if n, err := reader.Read(got); err != nil || string(got[:n]) != "content" {
		t.Errorf("want the content from the pipe, got %q, %v", got[:n], err)
	}
}

const (
	old   = "old and longer content"
	limit = 1 << 10
)

// replace reads the file at path, calls between, and replaces the file with "content".
func replace(t *testing.T, path string, between func()) error {
	t.Helper()
	file := must.Get(atomicfile.Open(path, limit))(t)
	defer file.Close()
	if between != nil {
		between()
	}
	return file.Replace([]byte("content"))
}

func expect(t *testing.T, path, want string) {
	t.Helper()
	if content, err := os.ReadFile(path); err != nil || string(content) != want {
		t.Errorf("%s: want %q, got %q, %v", path, want, content, err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	must.Do(t, os.Remove(path))
}

func write(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(old), 0o644); err != nil { // to see it become private
		t.Fatal(err)
	}
	return path
}

func link(t *testing.T, target, path string) string {
	t.Helper()
	must.Do(t, os.Symlink(target, path))
	return path
}
