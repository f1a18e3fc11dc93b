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

// delegatedTimeout bounds the first read of a Secret of another namespace. Its permission could be withdrawn
// meanwhile.
const delegatedTimeout = 3 * time.Second

// errRevoked is wrapped by the error that a delegated certificate could not be replaced although its use is no
// longer permitted. The certificate leaves service anyway, a moment later.
var errRevoked = errors.New("its use is no longer permitted")

// Permissions says whether Secrets of other namespaces may be used.
type Permissions interface {
	// Get returns the present outcome, or an error while there is none yet. The reconciler is woken when it changes.
	Get(ctx context.Context, secret types.NamespacedName) (delegation.Outcome, error)
	Forget(keep func(types.NamespacedName) bool)
}

// mayUse returns why a Secret of another namespace may not be used, or nil. It is called before the Secret is read,
// so that the answer does not tell whether the Secret exists.
func (r *Reconciler) mayUse(ctx context.Context, secret types.NamespacedName) (*serving.Refusal, error) {
	outcome, err := r.Permissions.Get(ctx, secret)
	if err != nil || outcome == delegation.Permitted {
		return nil, coded(configv1alpha1.CodePermissionUnknown, err)
	}
	// Everything known about the Secret is dropped, with the key.
	r.Secrets.Forget(func(name types.NamespacedName) bool { return name != secret })
	return &serving.Refusal{Finding: delegation.Refusal(outcome, secret, r.Namespace)}, nil
}

// forgetPermissions stops following what is neither configured nor served.
func (r *Reconciler) forgetPermissions(configured types.NamespacedName) {
	inService := r.Holder.Current()
	r.Permissions.Forget(func(name types.NamespacedName) bool {
		return name == configured || inService != nil && inService.Delegated && name == inService.Secret
	})
}
