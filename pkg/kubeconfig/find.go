package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// Found is a file that may be a kubeconfig.
type Found struct {
	Path  string
	Named bool // the caller named it, so it must be a kubeconfig; otherwise it was found in a directory
	// Hidden is true for a directory that was skipped because its name starts with a dot.
	Hidden bool
	// Err is why Path is unreadable; ErrDangling for a dangling symbolic link.
	Err error
}

// Load loads the kubeconfig. If it was found in a directory, it must be a regular file; if it was named, it may be a
// pipe.
func (f Found) Load(inputs *atomicfile.Inputs) (*clientcmdapi.Config, error) {
	if f.Err != nil {
		return nil, f.Err
	}
	if f.Named {
		return LoadInput(f.Path, inputs)
	}
	return Load(f.Path)
}

// ErrDangling means that the target of a symbolic link does not exist.
var ErrDangling = errors.New("it is a dangling symbolic link")

// passing matches temporary files: kubectl's and editors' locks, and files that atomicfile has not renamed yet.
var passing = regexp.MustCompile(`\.lock$|^\.#|^\..+\.[0-9]+\.(tmp|backup)$`)

// Find returns the files for paths, in order and without duplicates: for a directory, all files in and below it. It
// follows symbolic links, and skips locks and temporary files. A directory whose name starts with a dot, such as .git,
// is returned as Hidden, unless it is .kube or the caller names it; directories whose names start with two dots, which
// Kubernetes creates in volumes, are skipped. Unreadable files are returned with their error. Find fails only if ctx is
// done.
func Find(ctx context.Context, paths []string) ([]Found, error) {
	f := finder{seen: map[string]bool{}}
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			f.add(Found{Path: path, Named: true}) // errors are reported when it is read
			continue
		}
		if err := f.walk(ctx, filepath.Clean(path)); err != nil {
			return nil, err
		}
	}
	return f.files, nil
}

type finder struct {
	files []Found
	seen  map[string]bool // files and directories, by real path
}

// first reports whether path, which may be a link, leads to something new.
func (f *finder) first(path string) bool {
	actual, err := filepath.EvalSymlinks(path)
	if err != nil {
		actual = filepath.Clean(path)
	}
	if absolute, err := filepath.Abs(actual); err == nil {
		actual = absolute
	}
	seen := f.seen[actual]
	f.seen[actual] = true
	return !seen
}

func (f *finder) add(file Found) {
	if f.first(file.Path) {
		f.files = append(f.files, file)
	}
}

func (f *finder) walk(ctx context.Context, folder string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !f.first(folder) {
		return nil
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		f.files = append(f.files, Found{Path: folder, Err: err})
	}
	for _, entry := range entries {
		if err := f.visit(ctx, filepath.Join(folder, entry.Name()), entry); err != nil {
			return err
		}
	}
	return nil
}

func (f *finder) visit(ctx context.Context, path string, entry fs.DirEntry) error {
	kind := entry.Type()
	if passing.MatchString(entry.Name()) && !kind.IsDir() {
		return nil
	}
	if kind&fs.ModeSymlink != 0 {
		info, err := os.Stat(path)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = ErrDangling
			}
			f.add(Found{Path: path, Err: fmt.Errorf("following %q: %w", path, err)})
			return nil
		}
		kind = info.Mode().Type()
	}
	switch {
	case kind.IsDir() && strings.HasPrefix(entry.Name(), ".."):
	case kind.IsDir() && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".kube":
		f.files = append(f.files, Found{Path: path, Hidden: true}) // not seen: the caller may name it as well
	case kind.IsDir():
		return f.walk(ctx, path)
	case kind.IsRegular():
		f.add(Found{Path: path})
	}
	return nil
}
