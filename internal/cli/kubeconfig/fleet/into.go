package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
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

// IntoContexts puts the clusters, users and contexts of all kubeconfigs into one file, as "get kubeconfig --merge-into"
// does.
type IntoContexts struct {
	Path string

	mu   sync.Mutex
	seen map[string]origin // what this run has put in, by kind and name
}

// origin is an entry and the kubeconfig that it comes from.
type origin struct {
	item  *Item
	value any
}

// Put implements Destination. Two kubeconfigs may have an entry of the same name only if it is the same one.
func (c *IntoContexts) Put(ctx context.Context, item *Item, content []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	made, err := clientcmd.Load(content)
	if err != nil {
		return fmt.Errorf("merging into %q: %w", c.Path, err)
	}
	entries := map[string]any{}
	for name, one := range made.Clusters {
		entries[fmt.Sprintf("cluster %q", name)] = one
	}
	for name, one := range made.AuthInfos {
		entries[fmt.Sprintf("user %q", name)] = one
	}
	for name, one := range made.Contexts {
		entries[fmt.Sprintf("context %q", name)] = one
	}
	for name, value := range entries {
		if other, ok := c.seen[name]; ok && !equality.Semantic.DeepEqual(other.value, value) {
			return fmt.Errorf(
				"merging into %q: %s is another one in %s: give them different names",
				c.Path,
				name,
				other.item.Shown,
			)
		}
	}
	if _, err := kubeconfig.MergeFile(ctx, c.Path, made, false); err != nil {
		return err
	}
	if c.seen == nil {
		c.seen = map[string]origin{}
	}
	for name, value := range entries {
		c.seen[name] = origin{item, value}
	}
	return nil
}
