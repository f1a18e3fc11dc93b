package credentialissuer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// delegatedTimeout bounds the first read of a Secret of another namespace. Meanwhile a permission may go.
const delegatedTimeout = 3 * time.Second

// errRevoked is wrapped by the error of a delegated certificate that is still in service although its use is no longer permitted. It does not
// stay there.
var errRevoked = errors.New("its use is no longer permitted")

// Permissions says whether Secrets of other namespaces may be used.
type Permissions interface {
	// Get returns the present outcome, or an error while there is none yet. The reconciler is woken when it changes.
	Get(ctx context.Context, secret types.NamespacedName) (delegation.Outcome, error)
	Forget(keep func(types.NamespacedName) bool)
}

// externalSecret returns the Secret that a valid spec names, and whether it is of another namespace.
func (r *Reconciler) externalSecret(tls *configv1alpha1.ImpersonationProxyTLSSpec) (name types.NamespacedName, delegated bool, err error) {
	name, err = delegation.SecretName(tls.SecretName, r.Namespace)
	return name, name.Namespace != r.Namespace, err
}

// mayUse returns why a Secret of another namespace may not be used, or nil. It is asked before the Secret is, so that nothing here
// depends on whether the Secret exists.
func (r *Reconciler) mayUse(ctx context.Context, secret types.NamespacedName) (*servingcert.Refusal, error) {
	outcome, err := r.Permissions.Get(ctx, secret)
	if err != nil || outcome == delegation.Permitted {
		return nil, coded(configv1alpha1.CodePermissionUnknown, err)
	}
	// Whatever was known about it is dropped, with the key.
	r.Secrets.Forget(func(name types.NamespacedName) bool { return name != secret })
	return &servingcert.Refusal{Finding: delegation.Refusal(outcome, secret, r.Namespace)}, nil
}

// serveFallback puts the generated certificate into service where a delegated one must not be: in place of one whose permission is gone, and
// for one that is not permitted while nothing else was brought. An external certificate that is rightly in service stays.
func (r *Reconciler) serveFallback(ctx context.Context, evaluation servingcert.Evaluation, names certs.SANs) error {
	serving := r.Holder.Current()
	if serving == nil || serving.Source == servingcert.SourceGenerated {
		if evaluation.Refusal == nil || evaluation.Refusal.Finding.Code != certs.SecretNotPermitted {
			return nil
		}
		return r.loadGenerated(ctx, names)
	}
	if !serving.Delegated {
		return nil
	}
	refusal, err := r.mayUse(ctx, serving.Secret)
	if err != nil || refusal == nil {
		return err
	}
	if err := r.loadGenerated(ctx, names); err != nil {
		return coded(configv1alpha1.CodePermissionWithdrawn,
			fmt.Errorf("replacing the certificate of Secret %q: %w: %w", serving.Secret, errRevoked, err))
	}
	log.FromContext(ctx).Info("Stopped serving a certificate whose permission was withdrawn", "secret", serving.Secret,
		"sha256", serving.SHA256(), "cause", refusal.Finding.Message)
	return nil
}

// forgetPermissions stops following what is neither configured nor served.
func (r *Reconciler) forgetPermissions(configured types.NamespacedName) {
	serving := r.Holder.Current()
	r.Permissions.Forget(func(name types.NamespacedName) bool {
		return name == configured || serving != nil && serving.Delegated && name == serving.Secret
	})
}
