package change

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// gather reads the cluster for the wanted configuration, and returns both.
func (o *SetOptions) gather(ctx context.Context) (*plan.Snapshot, configv1alpha1.ImpersonationProxySpec, error) {
	issuer, err := o.Session.ReadIssuer(ctx)
	if err == nil {
		err = session.Fits(o.request, issuer)
	}
	if err != nil {
		return nil, configv1alpha1.ImpersonationProxySpec{}, err
	}
	wanted := o.request.On(issuer.Spec.ImpersonationProxy)
	st, err := o.Session.Gather(ctx, issuer, o.request.Namespace, wanted)
	return st, wanted, err
}

// gatherAndEvaluate evaluates the configuration. It waits for an issuer that is about to fill a Secret that is refused.
func (o *SetOptions) gatherAndEvaluate(ctx context.Context) (*plan.Snapshot, *plan.Plan, error) {
	for {
		st, wanted, err := o.gather(ctx)
		if err != nil {
			return nil, nil, err
		}
		if o.files != nil {
			if err := mayWrite(st.Secret, o.OverwriteSecret); err != nil {
				return nil, nil, err
			}
			o.present = st.Secret
			st.Secret = o.files.intended(o.present, o.request.Namespace, o.request.Secret, o.request.SystemRoots)
		}
		unfit := plan.FitsSecret(o.request, st.Secret)
		wanted.TLS = st.ForSet(wanted.TLS)
		p := plan.Evaluate(o.request, st, wanted)
		if o.files != nil || st.NotPermitted() || unfit == nil && p.Report.OK() {
			return st, p, unfit
		}
		filled, err := o.awaitIssuer(ctx, st, p)
		if err != nil {
			return nil, nil, err
		}
		if !filled {
			return st, p, unfit
		}
	}
}

// issuerPolls is the factor by which issuers are polled less often than the agent: they need seconds or minutes.
const issuerPolls = 5

// filler is a controller that is about to fill a Secret.
type filler struct {
	name        string // such as: cert-manager's Certificate "proxy-tls"
	state       string // its own report; may be empty
	certificate string // name of the cert-manager Certificate, if it is one
	failed      string // why it has failed
}

func (f *filler) String() string {
	if f.state == "" {
		return f.name
	}
	return f.name + " (" + f.state + ")"
}

// awaitIssuer waits while a controller is about to fill the Secret. It reports whether to read the Secret again.
func (o *SetOptions) awaitIssuer(ctx context.Context, st *plan.Snapshot, p *plan.Plan) (bool, error) {
	name := o.request.SecretName()
	by, err := o.fillerOf(ctx, name, st.Secret)
	if err != nil || by == nil {
		return false, err
	}
	if o.Flags.DryRun != session.DryRunNone || !o.Flags.Wait {
		o.sayFiller(p, name, by)
		return false, nil
	}
	task := o.Session.Progress.Start("Waiting for %s to fill Secret %q", by, name)
	defer task.Stop()
	started := o.Session.Now()
	for by != nil && by.failed == "" {
		task.Update("Waiting for %s to fill Secret %q", by, name)
		_ = pause(ctx, issuerPolls*o.Session.Poll) // Over returns its error, too
		if err := factory.Over(ctx); err != nil {
			return false, notFilled(name, by, err)
		}
		secret, err := session.ReadSecret(ctx, o.Session.Cluster, name.Namespace, name.Name)
		if err == nil && !sameSecret(st.Secret, secret) {
			if !incomplete(secret) {
				task.Done("Secret %q was filled after %s", name, o.Session.Now().Sub(started).Round(100*time.Millisecond))
			}
			return true, nil
		}
		next, asked := o.fillerOf(ctx, name, st.Secret)
		switch {
		case factory.Over(ctx) != nil:
			return false, notFilled(name, by, factory.Over(ctx))
		case err != nil:
			return false, session.WithCodes(fmt.Errorf("reading the Secret with the certificate: %w", err))
		case asked != nil:
			return false, asked
		}
		by = next
	}
	if by == nil {
		return false, nil // it is gone or has finished
	}
	return false, ui.WithHint(fmt.Errorf("%s failed to fill Secret %q: %s", by.name, name, by.failed),
		"fix the cause, then have cert-manager retry at once: cmctl renew %s --namespace %s", by.certificate, name.Namespace)
}

// notFilled returns the error for a wait that ended before the Secret was filled.
func notFilled(name types.NamespacedName, by *filler, cause error) error {
	err := fmt.Errorf("waiting for %s to fill Secret %q: %w", by, name, cause)
	if by.certificate == "" || errors.Is(cause, context.Canceled) {
		return ui.WithHint(err, "nothing was changed")
	}
	return ui.WithHint(err, "nothing was changed; find the cause: kubectl describe "+
		"certificates,certificaterequests --namespace %s; or raise --timeout", name.Namespace)
}

// sayFiller adds what to wait for to the findings of a run that does not wait.
func (o *SetOptions) sayFiller(p *plan.Plan, name types.NamespacedName, by *filler) {
	said := false
	for i := range p.Report.Findings {
		if f := &p.Report.Findings[i]; f.Code == certs.SecretNotFound || f.Code == certs.SecretIncomplete {
			f.Hint, said = "wait until "+by.String()+" fills it", true
			if by.certificate != "" {
				f.Hint += fmt.Sprintf(": kubectl wait --for=condition=Ready certificates/%s --namespace %s", by.certificate,
					name.Namespace)
			}
		}
	}
	if !said {
		o.Session.Progress.Info("%s is about to fill Secret %q again", by, name)
	}
}

// fillerOf returns the controller that is about to fill a Secret, or nil. secret is nil if it does not exist.
func (o *SetOptions) fillerOf(ctx context.Context, name types.NamespacedName, secret *corev1.Secret) (*filler, error) {
	all, err := o.Session.Cluster.Certificates(ctx, name.Namespace)
	switch {
	case err == nil, errors.Is(err, discovery.ErrNotFound):
	case errors.Is(err, discovery.ErrForbidden) && o.mayNotList:
	case errors.Is(err, discovery.ErrForbidden):
		o.mayNotList = true
		o.Session.Progress.Info("Cannot tell whether cert-manager will fill Secret %q: %s", name, err)
	default:
		return nil, session.WithCodes(fmt.Errorf("checking whether cert-manager is about to fill Secret %q: %w", name, err))
	}
	for _, one := range all {
		// If the Secret has a certificate, wait only while a new one is being issued.
		if one.Secret != name.Name || !incomplete(secret) && !one.Issuing {
			continue
		}
		by := &filler{
			name: fmt.Sprintf("cert-manager's Certificate %q", one.Name), certificate: one.Name, failed: one.Failed,
			state: "ready",
		}
		switch {
		case !one.Ready:
			by.state = one.Reason + ": " + one.Message
		case one.Issuing:
			by.state = "not issued yet"
		}
		return by, nil
	}
	if secret != nil && incomplete(secret) {
		if owner := session.IssuedBy(secret); owner != nil && owner.Kind != result.CertManagerCertificate {
			return &filler{name: fmt.Sprintf("%s %q", owner.Kind, owner.Name)}, nil
		}
	}
	return nil, nil
}

// incomplete reports whether a Secret lacks a certificate or its key. It is true for nil.
func incomplete(secret *corev1.Secret) bool {
	return secret == nil || len(bytes.TrimSpace(secret.Data[corev1.TLSCertKey])) == 0 ||
		len(bytes.TrimSpace(secret.Data[corev1.TLSPrivateKeyKey])) == 0
}

// sameSecret reports whether a Secret is unchanged between two reads.
func sameSecret(before, now *corev1.Secret) bool {
	if before == nil || now == nil {
		return before == nil && now == nil
	}
	return before.UID == now.UID && before.ResourceVersion == now.ResourceVersion
}
