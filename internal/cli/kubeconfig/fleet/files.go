package fleet

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

const kindFile = "file"

// Files are kubeconfigs in files and directories.
type Files struct {
	Paths []string
	// Contexts are patterns such as "prod-*": only entries of matching contexts are rotated. Empty means all.
	Contexts []string
	// LockTimeout is how long to wait for a kubeconfig that another program is changing.
	LockTimeout time.Duration
	// Hidden is called for each directory that is skipped because its name begins with a dot.
	Hidden func(path string)
}

// List implements Place.
func (f *Files) List(ctx context.Context) ([]*Item, error) {
	found, err := kubeconfig.Find(ctx, f.Paths)
	if err != nil {
		return nil, err
	}
	var items []*Item
	for _, file := range found {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if file.Hidden {
			f.Hidden(file.Path)
			continue
		}
		item := &Item{Kind: kindFile, Shown: file.Path, place: f, Err: file.Err}
		if item.ID, err = filepath.Abs(file.Path); err != nil {
			return nil, err
		}
		if item.Err == nil {
			item.Err = f.read(item)
		}
		if errors.Is(item.Err, kubeconfig.ErrNotKubeconfig) && !file.Named {
			continue
		}
		items = append(items, item)
	}
	return items, nil
}

func (f *Files) read(item *Item) error {
	config, err := kubeconfig.Load(item.ID)
	if err != nil {
		return err
	}
	trusts := kubeconfig.AllTrusts(config)
	include, err := contextFilter(config, f.Contexts)
	if err != nil {
		return err
	}
	for _, trust := range trusts {
		if include == nil || include(trust) {
			item.trusts = append(item.trusts, trust)
		}
	}
	return nil
}

// Update implements Place.
func (f *Files) Update(ctx context.Context, item *Item, update kubeconfig.FileUpdate) (*kubeconfig.Rotation, error) {
	ctx, cancel := context.WithTimeout(ctx, f.LockTimeout)
	defer cancel()
	return kubeconfig.UpdateFile(ctx, item.ID, update)
}

// contextFilter returns a function that reports whether an entry of config is used by a context whose name matches a
// pattern. Without patterns it returns nil: everything is included.
func contextFilter(config *clientcmdapi.Config, patterns []string) (func(kubeconfig.Trust) bool, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	used := map[string]bool{}
	for name, kubeContext := range config.Contexts {
		if kubeContext == nil {
			continue
		}
		for _, pattern := range patterns {
			matched, err := path.Match(oneName(pattern), oneName(name))
			if err != nil {
				return nil, fmt.Errorf("reading the pattern %q: %w", pattern, err)
			}
			if matched {
				used["cluster/"+kubeContext.Cluster], used["user/"+kubeContext.AuthInfo] = true, true
			}
		}
	}
	return func(trust kubeconfig.Trust) bool { return used[trust.Kind+"/"+trust.Name] }, nil
}

// oneName replaces slashes, so that "*" also matches those in context names.
func oneName(text string) string { return strings.ReplaceAll(text, "/", "\x00") }

// rotateContexts is kubeconfig.Rotate for the contexts that match patterns.
func rotateContexts(content []byte, patterns []string, targets []kubeconfig.Target) (*kubeconfig.Rotation, error) {
	if len(patterns) == 0 {
		return kubeconfig.Rotate(content, targets...)
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", kubeconfig.ErrDamaged, err)
	}
	include, err := contextFilter(config, patterns)
	if err != nil {
		return nil, err
	}
	return kubeconfig.RotateOnly(content, include, targets...)
}
