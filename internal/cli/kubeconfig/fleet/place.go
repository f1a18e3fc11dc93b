package fleet

import (
	"context"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Place is where a fleet keeps kubeconfigs.
type Place interface {
	// List returns what is there. It changes nothing.
	List(ctx context.Context) ([]*Item, error)
	// Update changes one of the items that List has returned. See Update.
	Update(ctx context.Context, item *Item, update Update) (*kubeconfig.Rotation, error)
}

// Update says what happens to an item. Nothing is written when Change says that there is nothing to do, when another
// program changes the item at the same time, or when DryRun is set.
type Update struct {
	Change func(content []byte) (*kubeconfig.Rotation, error)
	DryRun bool
}

// Item is one kubeconfig.
type Item struct {
	// Kind is that of the place: file, capi, argocd or flux.
	Kind string
	// ID names the item in the place: an absolute path, or NAMESPACE/NAME or NAMESPACE/NAME/KEY of a Secret.
	ID string
	// Shown is what people read: the path as they gave it, or the Secret.
	Shown string
	// Err says why the item cannot be read. Missing is true when it is none to be rotated either.
	Err     error
	Missing bool

	place  Place
	trusts []kubeconfig.Trust
	secret *secretItem
}

// Server returns where a cluster or user of the kubeconfig leads; empty when that is not one place.
func (i *Item) Server(kind, name string) string {
	server := ""
	for _, trust := range i.trusts {
		if trust.Kind != kind || trust.Name != name {
			continue
		}
		if server != "" && server != trust.Server {
			return ""
		}
		server = trust.Server
	}
	return server
}
