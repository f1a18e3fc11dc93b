package rotate

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// preconditions says whether the preconditions of step 3 hold, and lists in the result those that do not. What an
// administrator shows is looked at in any case.
func (o *Options) preconditions(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record,
	done *Result,
) (bool, error) {
	if _, err := o.newChain(ctx, issuer, r); err != nil {
		return false, err
	}
	target := plan.TargetOf(issuer.Spec.ImpersonationProxy)
	target.TLS = r.Block(r.PhaseAfter(rotation.StepSwitch))
	later, err := o.Session.GatherTarget(ctx, issuer, o.request.Namespace, target)
	if err != nil {
		return false, err
	}
	shown := true
	if len(o.Kubeconfigs) > 0 {
		next := plan.EvaluateTarget(o.request, later, target.In(issuer.Spec.ImpersonationProxy)).Next(later)
		if shown, err = o.kubeconfigs(ctx, issuer, next, done); err != nil {
			return false, err
		}
	}
	if len(o.reports) > 0 {
		reported, err := o.reported(ctx, issuer, r, done)
		if err != nil {
			return false, err
		}
		shown = shown && reported
	}
	lost := o.lost(later, later, r)
	switch {
	case o.Continue:
		done.WaitsFor = nil
		return true, nil
	case len(lost.Broken) == 0:
		if shown {
			o.Session.Progress.Info("Every kubeconfig that was handed out so far works with the new certificate as well, so " +
				"none has to be made anew")
		}
		return shown, nil
	case o.After == 0 && len(o.Kubeconfigs) == 0 && len(o.reports) == 0:
		done.waits("kubeconfigs to be made anew (%s): go on with --continue when they are, or let --after DURATION, "+
			"--kubeconfigs PATH or --report FILE tell", strings.Join(lost.Sentences(), "; "))
		return false, nil
	}
	return o.isOver(lost, later.Now, done) && shown, nil
}

// isOver says whether --after has passed since those who would be lost were told anything.
func (o *Options) isOver(lost serving.Judgement, now time.Time, done *Result) bool {
	if o.After == 0 {
		return true
	}
	var last time.Time
	for _, one := range lost.Broken {
		if one.Revision.Until.IsZero() {
			done.waits("the names of the certificate in service to be told no more: %s", lost.Sentences()[0])
			return false
		}
		if one.Revision.Until.After(last) {
			last = one.Revision.Until
		}
	}
	at := last.Add(o.After)
	if !now.Before(at) {
		return true
	}
	done.DueAt = &at
	done.waits("%s to have passed since the last kubeconfig was handed out that would stop working: that is at %s, in %s",
		o.After, at.Format(time.RFC3339), at.Sub(now).Round(time.Second))
	return false
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
