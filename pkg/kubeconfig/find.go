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
	Named bool // by the caller, and not found in a folder: if it is no kubeconfig, that is a mistake
	// Hidden is true for a folder that was left out because its name begins with a dot.
	Hidden bool
	// Err says why what is at Path cannot be looked at. ErrDangling is a link that leads nowhere.
	Err error
}

// Load reads the kubeconfig. One that was found in a folder must be a regular file; one that was named may be a pipe.
func (f Found) Load(inputs *atomicfile.Inputs) (*clientcmdapi.Config, error) {
	if f.Named {
		return LoadInput(f.Path, inputs)
	}
	return Load(f.Path)
}

// ErrDangling means that a symbolic link leads to a file that does not exist.
var ErrDangling = errors.New("it is a symbolic link that leads nowhere")

// passing matches the names of temporary files: kubectl's locks, the locks of editors, and files that atomicfile has
// not renamed yet.
var passing = regexp.MustCompile(`\.lock$|^\.#|^\..+\.[0-9]+\.(tmp|backup)$`)

// Find returns the files that paths stand for, each once, in order: a folder stands for every file in it and in the
// folders below. Symbolic links are followed, and what several of them lead to is returned once. Locks and temporary
// files are left out. A folder whose name begins with a dot, such as .git, is returned as Hidden and not looked into,
// except .kube and what the caller names; the folders that Kubernetes makes in its volumes, whose names begin with
// two dots, are not even returned. What cannot be read is returned with its error. Find itself fails only when ctx is
// over.
func Find(ctx context.Context, paths []string) ([]Found, error) {
	f := finder{seen: map[string]bool{}}
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			f.add(Found{Path: path, Named: true}) // what is wrong with it is said when it is read
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
	seen  map[string]bool // files and folders, by their real paths
}

// first says whether path, which may be a link, leads to something that was not seen yet.
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
