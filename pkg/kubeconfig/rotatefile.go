package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// RotateFile is Rotate for the file at path, which it replaces atomically with the same permissions and owner. It holds
// kubectl's lock (path with ".lock" appended), and waits for it until ctx ends. If dryRun is true, it changes nothing.
func RotateFile(ctx context.Context, path string, to Target, dryRun bool) (*Rotation, error) {
	return UpdateFile(ctx, path, FileUpdate{DryRun: dryRun, Change: func(content []byte) (*Rotation, error) {
		rotation, err := Rotate(content, to)
		if err != nil {
			return nil, err
		}
		return rotation, CheckCAFiles(path, content, rotation, to)
	}})
}

// FileUpdate says how UpdateFile changes a file.
type FileUpdate struct {
	// Change returns the new content. It is called twice: without the lock, to find out whether anything changes, and
	// then while the file is locked.
	Change func(content []byte) (*Rotation, error)
	DryRun bool // the file stays unchanged
}

// UpdateFile changes the kubeconfig at path. It replaces and locks the file as RotateFile does.
func UpdateFile(ctx context.Context, path string, update FileUpdate) (*Rotation, error) {
	rotation, file, err := readAndChange(path, update.Change) // most files of a fleet do not change, and need no lock
	if err != nil {
		return rotation, err
	}
	file.Close()
	if update.DryRun || !rotation.Changed() {
		return rotation, nil
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	rotation, file, err = readAndChange(path, update.Change)
	if err != nil {
		return rotation, err
	}
	defer file.Close()
	if !rotation.Changed() {
		return rotation, nil
	}
	if err := file.Replace(rotation.Content); err != nil {
		return nil, writing(path, err)
	}
	return rotation, nil
}

// readAndChange leaves the file open if there is no error.
func readAndChange(path string, change func([]byte) (*Rotation, error)) (*Rotation, *atomicfile.File, error) {
	file, err := open(path)
	if err == nil && !file.Exists {
		file.Close()
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	rotation, err := change(file.Content)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("rotating kubeconfig %q: %w", path, err)
	}
	return rotation, file, nil
}

// CheckCAFiles marks entries of a rotation as current if their CA file, which Rotate does not read, already contains
// the target's CA bundle. content is that of the file at path.
func CheckCAFiles(path string, content []byte, rotation *Rotation, to ...Target) error {
	if !slices.ContainsFunc(rotation.Entries, func(e Entry) bool { return e.Code == SkipCAFile }) {
		return nil
	}
	config, err := loadText(path, content)
	if err == nil {
		err = resolvePaths(path, config)
	}
	if err != nil {
		return err
	}
	for _, target := range to {
		if len(target.CABundle) == 0 {
			continue
		}
		for _, trust := range Trusts(config, target.Endpoint) {
			at := slices.IndexFunc(
				rotation.Entries,
				func(e Entry) bool { return e.Kind == trust.Kind && e.Name == trust.Name && e.Code == SkipCAFile },
			)
			if at >= 0 && trust.Err == nil && hasAll(trust.CABundle, target.CABundle) {
				rotation.Entries[at] = Entry{Kind: trust.Kind, Name: trust.Name, Outcome: Current}
			}
		}
	}
	return nil
}

// maxNamed limits files that a kubeconfig names, such as a CA bundle.
const maxNamed = 8 << 20

// ReadNamed reads a file that a kubeconfig names: a CA bundle, a certificate or a token. It must be a regular file, so
// that reading cannot block or be endless.
func ReadNamed(path string) ([]byte, error) { return atomicfile.ReadFile(path, maxNamed) }

// ReadInput is ReadNamed for a file that a user names, which may be a pipe.
func ReadInput(path string) ([]byte, error) { return atomicfile.ReadInput(path, maxNamed) }

// open opens a kubeconfig, which need not exist.
func open(path string) (*atomicfile.File, error) {
	file, err := atomicfile.Open(path, maxSize)
	return file, explainRead(err)
}

// explainRead adds ErrNotKubeconfig to errors about files that cannot be a kubeconfig.
func explainRead(err error) error {
	if errors.Is(err, atomicfile.ErrNotRegular) || errors.Is(err, atomicfile.ErrTooLarge) {
		return fmt.Errorf("%w: %w", ErrNotKubeconfig, rootCause(err))
	}
	return err
}

// writing adds the path to an error of a write.
func writing(path string, err error) error { return fmt.Errorf("writing kubeconfig %q: %w", path, err) }
