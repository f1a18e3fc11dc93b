package fleet

import (
	"context"
	"errors"
	"path/filepath"
	"time"

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
		item := &Item{
			Kind: kindFile, Shown: file.Path, place: f, Err: file.Err,
			Missing: errors.Is(file.Err, kubeconfig.ErrDangling),
		}
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
func (f *Files) Update(ctx context.Context, item *Item, update Update) (*kubeconfig.Rotation, error) {
	ctx, cancel := context.WithTimeout(ctx, f.LockTimeout)
	defer cancel()
	return kubeconfig.UpdateFile(ctx, item.ID, kubeconfig.FileUpdate{
		Change: update.Change, DryRun: update.DryRun,
	})
}
