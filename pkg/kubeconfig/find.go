package kubeconfig

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Found is a file that may be a kubeconfig.
type Found struct {
	Path  string
	Named bool  // by the caller, and not found in a folder: if it is no kubeconfig, that is a mistake
	Link  bool  // a symbolic link in a folder, perhaps to somewhere else
	Err   error // why what is at Path cannot be looked at
}

// passing are the names of files that are not there to stay: kubectl's locks, and what atomicfile is about to rename.
var passing = regexp.MustCompile(`\.lock$|^\..+\.[0-9]+\.tmp$`)

// Find returns the files that paths stand for, each once, in order: a folder stands for every file in it and in the folders below.
// There, links to folders are not followed, and neither are folders whose name begins with a dot, such as .git; locks and
// temporary files are left out; and one that cannot be read is returned with its error. Find itself fails only when ctx is over.
func Find(ctx context.Context, paths []string) ([]Found, error) {
	var files []Found
	seen := map[string]bool{}
	add := func(file Found) {
		if clean := filepath.Clean(file.Path); !seen[clean] {
			seen[clean] = true
			files = append(files, file)
		}
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			add(Found{Path: path, Named: true}) // what is wrong with it is said when it is read
			continue
		}
		// A link to a folder is named by the caller, but WalkDir would not follow it.
		err := filepath.WalkDir(path+string(filepath.Separator), func(at string, entry fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				add(Found{Path: filepath.Clean(at), Err: err})
			case entry.IsDir():
				if strings.HasPrefix(entry.Name(), ".") && filepath.Clean(at) != filepath.Clean(path) {
					return fs.SkipDir
				}
			case passing.MatchString(entry.Name()):
			case entry.Type().IsRegular():
				add(Found{Path: at})
			case entry.Type()&fs.ModeSymlink != 0:
				if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() {
					add(Found{Path: at, Link: true})
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
