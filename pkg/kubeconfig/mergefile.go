package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// MergeFile is Merge for the file at path, which is replaced as a whole or not at all, and keeps its permissions and
// owner. A file that does not exist is made, readable by its owner only, and its folder as well. While MergeFile works
// it holds the lock that kubectl takes (path with ".lock" appended), for which it waits until ctx ends.
func MergeFile(ctx context.Context, path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of kubeconfig %q: %w", path, err)
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	merged, existed, err := readAndMerge(path, made, setCurrent)
	if err != nil || !merged.Changed() {
		return merged, err
	}
	write := atomicfile.Update
	if !existed {
		write = atomicfile.Write
	}
	if err := write(path, merged.Content); err != nil {
		return nil, fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	return merged, nil
}

// PreviewMerge is MergeFile without the writing, and without the lock.
func PreviewMerge(path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, error) {
	merged, _, err := readAndMerge(path, made, setCurrent)
	return merged, err
}

func readAndMerge(path string, made *clientcmdapi.Config, setCurrent bool) (*Merged, bool, error) {
	content, err := readBounded(path)
	existed := !errors.Is(err, fs.ErrNotExist)
	if err != nil && existed {
		return nil, existed, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	merged, err := Merge(content, made, setCurrent)
	if err != nil {
		return nil, existed, fmt.Errorf("merging into kubeconfig %q: %w", path, err)
	}
	return merged, existed, nil
}
