package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
)

// Destination is where kubeconfigs are written, when they are to stay as they are where they come from.
type Destination interface {
	Put(ctx context.Context, item *Item, content []byte) error
}

// IntoFolder writes each kubeconfig into a file of a folder, readable by its owner only.
type IntoFolder struct{ Path string }

// Put implements Destination.
func (f IntoFolder) Put(_ context.Context, item *Item, content []byte) error {
	local := filepath.FromSlash(item.Name)
	if !filepath.IsLocal(local) {
		return fmt.Errorf("writing %q below %q: the name leads elsewhere", item.Name, f.Path)
	}
	path := filepath.Join(f.Path, local)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	if err := atomicfile.Write(path, content); err != nil {
		return fmt.Errorf("writing kubeconfig %q: %w", path, err)
	}
	return nil
}
