package rotate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// preconditions says whether the preconditions of step 3 hold, and lists in the result those that do not.
func (o *Options) preconditions(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	done *Result,
) (bool, error) {
	chain, err := o.newChain(ctx, issuer, r)
	if err != nil {
		return false, err
	}
	if r.To != nil && rotation.Verifies([]byte(r.OldCA), chain, o.Session.Now()) {
		o.Session.Progress.Info("Kubeconfigs with the old CA verify the new certificate as well, so none has to be " +
			"made anew")
		return true, nil
	}
	if o.Continue {
		return true, nil
	}
	if o.After == 0 && len(o.Kubeconfigs) == 0 && len(o.reports) == 0 {
		done.waits("kubeconfigs to be made anew: go on with --continue when they are, or let --after DURATION, " +
			"--kubeconfigs PATH or --report FILE tell")
		return false, nil
	}
	due := true
	if at := r.Advertised.Add(o.After); o.After > 0 && o.Session.Now().Before(at) {
		due, done.DueAt = false, &at
		done.waits("%s to have passed since step 1: that is at %s, in %s", o.After, at.Format(time.RFC3339),
			at.Sub(o.Session.Now()).Round(time.Second))
	}
	if len(o.Kubeconfigs) > 0 {
		trusted, err := o.kubeconfigs(ctx, issuer, r, chain, done)
		if err != nil {
			return false, err
		}
		due = due && trusted
	}
	if len(o.reports) > 0 {
		reported, err := o.reported(ctx, issuer, r, done)
		if err != nil {
			return false, err
		}
		due = due && reported
	}
	return due, nil
}

// newChain returns the new certificate with its intermediates. It is nil for a generated certificate, which the agent
// issues in step 3.
func (o *Options) newChain(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record) ([]byte,
	error,
) {
	if r.To == nil {
		return nil, nil
	}
	secret, err := o.Session.PermittedSecret(ctx, issuer, o.request.Namespace, r.To.SecretName)
	if err != nil {
		return nil, err
	}
	if secret == nil {
		name := plan.Request{Namespace: o.request.Namespace, Secret: r.To.SecretName}.SecretName()
		return nil, ui.WithExitCode(fmt.Errorf("%s: there is no Secret %q in namespace %q any more",
			certs.SecretNotFound, name.Name, name.Namespace), ui.ExitRefused)
	}
	return secret.Data[corev1.TLSCertKey], nil
}
