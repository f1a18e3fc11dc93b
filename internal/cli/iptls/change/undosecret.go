package change

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
)

// undo restores the Secret, unless it has been changed again.
func (c *secretChange) undo(ctx context.Context, cluster session.Cluster, progress *ui.Progress) error {
	fail := func(err error) error {
		return fmt.Errorf("restoring Secret %q: %w", c.after.Namespace+"/"+c.after.Name, err)
	}
	for attempt := 1; ; attempt++ {
		current, err := cluster.Secret(ctx, c.after.Namespace, c.after.Name)
		if err != nil {
			return fail(err)
		}
		if len(writtenKeys(current, c.after)) > 0 {
			return fail(errors.New("it was changed in the meantime, so it stays as it is"))
		}
		if c.before == nil {
			err = cluster.DeleteSecret(ctx, current)
		} else {
			var keys []string
			for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, plan.CABundleKey} {
				if _, had := c.before.Data[key]; had &&
					(key != plan.CABundleKey || !bytes.Equal(c.before.Data[key], c.after.Data[key])) {
					keys = append(keys, key)
				}
			}
			_, err = cluster.ApplySecret(ctx, current.Namespace, current.Name,
				secretFields(c.before, keys, current.ResourceVersion),
				discovery.ApplyOptions{FieldManager: plan.FieldManager, Force: true})
		}
		switch {
		case err == nil && c.before == nil:
			progress.Done("Removed Secret %q", c.after.Name)
			return nil
		case err == nil:
			progress.Done("Restored Secret %q", c.after.Name)
			return nil
		case errors.Is(err, discovery.ErrConflict) && attempt < Attempts:
		default:
			return fail(err)
		}
	}
}
