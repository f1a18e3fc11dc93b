package kubeconfig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// MergeFile is Merge for the file at path, which it replaces atomically with the same permissions and owner. If the
// file does not exist, it is created with mode 0600, and its directory as well. MergeFile holds kubectl's lock (path
// with ".lock" appended), and waits for it until ctx ends.
func MergeFile(ctx context.Context, path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder for %q: %w", path, err)
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	merged, file, err := readAndMerge(path, made, setCurrent)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if !merged.Changed() {
		return merged, nil
	}
	if err := file.Replace(merged.Content); err != nil {
		return nil, writing(path, err)
	}
	return merged, nil
}

// PreviewMerge is MergeFile without writing or locking.
func PreviewMerge(path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	merged, file, err := readAndMerge(path, made, setCurrent)
	if err != nil {
		return nil, err
	}
	file.Close()
	return merged, nil
}

// readAndMerge leaves the file open if there is no error.
func readAndMerge(path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, *atomicfile.File, error) {
	file, err := open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	merged, err := Merge(file.Content, made, setCurrent)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("merging into kubeconfig %q: %w", path, err)
	}
	return merged, file, nil
}
