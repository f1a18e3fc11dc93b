package credentialissuer

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// delegatedTimeout limits the first read of a Secret in another namespace, during which its permission could be
// withdrawn.
const delegatedTimeout = 3 * time.Second

// errRevoked is wrapped by the error that a delegated certificate could not be replaced after its permission was
// withdrawn. The certificate is taken out of service soon anyway.
var errRevoked = errors.New("the use of this Secret is no longer permitted")

// Permissions reports whether Secrets of other namespaces may be used. delegation.Poller implements it.
type Permissions interface {
	// Get returns the current outcome, or an error if it is unknown. A change triggers a reconcile.
	Get(ctx context.Context, secret types.NamespacedName) (delegation.Outcome, error)
	Forget(keep func(types.NamespacedName) bool)
}

// mayUse returns why a Secret of another namespace may not be used, or nil. It is called before the Secret is read, so
// that the result does not reveal whether the Secret exists.
func (r *Reconciler) mayUse(ctx context.Context, secret types.NamespacedName) (*serving.Refusal, error) {
	outcome, err := r.Permissions.Get(ctx, secret)
	if err != nil || outcome == delegation.Permitted {
		return nil, coded(configv1alpha1.CodePermissionUnknown, err)
	}
	// Drop the cached Secret with its key.
	r.Secrets.Forget(func(name types.NamespacedName) bool { return name != secret })
	return &serving.Refusal{Finding: delegation.Refusal(outcome, secret, r.Namespace)}, nil
}

// forgetPermissions stops polling for Secrets that are neither configured nor served.
func (r *Reconciler) forgetPermissions(configured types.NamespacedName) {
	inService := r.Holder.Current()
	r.Permissions.Forget(func(name types.NamespacedName) bool {
		return name == configured || inService != nil && inService.Delegated && name == inService.Secret
	})
}
