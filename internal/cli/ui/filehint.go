package ui

import (
	"errors"
	"io/fs"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// WithFileHint adds a hint for the cause of err, an error about a file that a flag names. holds is what the file should
// contain.
func WithFileHint(err error, holds string) error {
	switch path, _ := errors.AsType[*fs.PathError](err); {
	case err == nil || HintOf(err) != "":
		return err
	case errors.Is(err, fs.ErrNotExist):
		return WithHint(err, "check the path; a relative path starts in the current folder")
	case errors.Is(err, fs.ErrPermission) && path != nil:
		return WithHint(err, "permission denied: \"ls -l %s\" shows why", ShellWord(path.Path))
	case errors.Is(err, atomicfile.ErrTooLarge):
		return WithHint(err, "check that it is the right file")
	case errors.Is(err, atomicfile.ErrNotRegular):
		return WithHint(err, "name a file, not a folder")
	}
	return WithHint(err, "name a file with %s", holds)
}
