package kubeconfig

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// found is a file to look at.
type found struct {
	path  string
	named bool // by the user, and not found in a folder
	err   error
}

// find returns the files that paths stand for, each once, in order. Within folders, links are not followed, and neither are
// folders whose name begins with a dot, such as .git; one that cannot be read is returned with its error.
func find(ctx context.Context, paths []string) ([]found, error) {
	var files []found
	seen := map[string]bool{}
	add := func(file found) {
		if clean := filepath.Clean(file.path); !seen[clean] {
			seen[clean] = true
			files = append(files, file)
		}
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			add(found{path: path, named: true}) // what is wrong with it is said when it is read
			continue
		}
		err := filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				add(found{path: at, err: err})
			case entry.IsDir() && at != path && strings.HasPrefix(entry.Name(), "."):
				return fs.SkipDir
			case entry.Type().IsRegular() && !strings.HasSuffix(at, ".lock"):
				add(found{path: at})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
