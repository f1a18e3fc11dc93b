package fleet

import (
	"context"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Place holds kubeconfigs.
type Place interface {
	// List returns the kubeconfigs. It changes nothing.
	List(ctx context.Context) ([]*Item, error)
	// Update changes an item that List has returned.
	Update(ctx context.Context, item *Item, update Update) (*kubeconfig.Rotation, error)
}

// Update is a change of an item. Place.Update writes nothing if the rotation changes nothing or DryRun is set, and
// never overwrites a concurrent change of another program.
type Update struct {
	Change func(content []byte) (*kubeconfig.Rotation, error)
	DryRun bool
}

// Item is one kubeconfig.
type Item struct {
	// Kind is the kind of the place: file, capi, argocd or flux.
	Kind string
	// ID identifies the item: an absolute path, or NAMESPACE/NAME or NAMESPACE/NAME/KEY of a Secret.
	ID string
	// Shown is the name in messages: the path as given, or the Secret.
	Shown string
	// Err is why the item cannot be read. Missing means that there is no file, so that nothing need be rotated.
	Err     error
	Missing bool

	place  Place
	trusts []kubeconfig.Trust
	secret *secretItem
}

// Server returns the server of a cluster or user in the kubeconfig; empty if there are several.
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
