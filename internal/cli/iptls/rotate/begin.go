package rotate

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// begin returns the rotation that is under way or done. If there is none, it makes a new one, and begun is true.
func (o *Options) begin(ctx context.Context, issuer *configv1alpha1.CredentialIssuer,
	r *rotation.Record,
) (made *rotation.Record, begun bool, err error) {
	spec := issuer.Spec.ImpersonationProxy
	switch {
	case r.Active():
		return r, false, nil
	case o.Secret == "" && !o.ToGenerated:
		if r.Current() == rotation.PhaseDone {
			return r, false, nil
		}
		return nil, false, ui.WithHint(ui.Usage(errors.New("--secret is missing, and no rotation is under way")),
			"name the Secret with the new certificate: --secret proxy-tls-new")
	case r.Current() == rotation.PhaseDone && len(r.Edited(spec)) == 0 && o.leadsTo(r):
		return r, false, nil
	}
	r = &rotation.Record{
		Version: rotation.Version, Started: o.Session.Now().UTC().Truncate(time.Second),
		From: spec.TLS.DeepCopy(),
	}
	if err := o.fillOld(ctx, issuer, r); err != nil {
		return nil, false, err
	}
	if o.ToGenerated {
		err = o.fillGenerated(ctx, issuer, r)
	} else {
		err = o.fillSecret(ctx, issuer, r)
	}
	return r, true, err
}

// leadsTo says whether a rotation ends with the certificate and the CA bundle that the flags name.
func (o *Options) leadsTo(r *rotation.Record) bool {
	if o.ToGenerated {
		return r.To == nil
	}
	return r.To != nil && r.To.SecretName == o.request.Secret &&
		(!o.request.BundleGiven || plan.SameBase64(r.To.CertificateAuthorityData, o.request.Bundle))
}

// fillOld fills in the Secret and the CA of the certificate that is in service now.
func (o *Options) fillOld(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record) error {
	now, advertised := plan.Advertised(issuer)
	if !advertised {
		return ui.WithHint(
			fmt.Errorf("CredentialIssuer %q does not advertise the impersonation proxy, so that "+
				"there is nothing to rotate", issuer.Name),
			`see why: kubectl get %s -o yaml; a first certificate is put in front with "pinniped ip-tls set"`,
			discovery.KubectlName(issuer),
		)
	}
	objects, _ := discovery.Objects(issuer, o.request.Namespace)
	r.OldSecret = objects.GeneratedCertificateSecret
	if r.From != nil {
		r.OldSecret = r.From.SecretName
	}
	secret, err := o.Session.PermittedSecret(ctx, issuer, o.request.Namespace, r.OldSecret)
	if err != nil {
		return err
	}
	if secret == nil {
		return o.refuse("the Secret in service must be there until step 3",
			"%s: there is no Secret %q in namespace %q, which holds the old certificate",
			certs.SecretNotFound, r.OldSecret, o.request.Namespace)
	}
	if r.From != nil {
		if bundle, err := plan.AdvertisedBundle(*r.From, secret); err != nil || !sameTrust(bundle, now) {
			return o.refuse(`wait until the agent has taken it over, or mend what its status says`,
				"the agent does not advertise the CA bundle that is configured (yet)")
		}
	}
	trust, err := rotation.TrustOf(now, secret.Data[corev1.TLSCertKey], o.Session.Now())
	if err != nil {
		return o.refuse("without it, there is nothing that could be advertised beside the new CA",
			"finding the CA of the old certificate in Secret %q: %w", r.OldSecret, err)
	}
	r.OldCA = string(trust)
	return nil
}

func sameTrust(a, b []byte) bool {
	return len(a) == 0 && len(b) == 0 || len(a) > 0 && len(b) > 0 && certs.SameBundle(a, b)
}

func (o *Options) refuse(hint, format string, args ...any) error {
	return ui.WithExitCode(ui.WithHint(fmt.Errorf(format, args...), "%s%s", plan.NothingChanged, hint), ui.ExitRefused)
}

// fillSecret fills in the Secret and the CA of the new certificate.
func (o *Options) fillSecret(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, r *rotation.Record) error {
	name := o.request.Secret
	if name == r.OldSecret {
		return ui.WithHint(ui.Usage(fmt.Errorf("the Secret %q is in service now, so there is nothing to rotate to",
			name)),
			"put the new certificate into a Secret of its own, so that both exist during the rotation")
	}
	secret, err := o.Session.PermittedSecret(ctx, issuer, o.request.Namespace, name)
	if err != nil {
		return err
	}
	if secret == nil {
		missing := o.request.SecretName()
		return o.refuse("make the Secret first", "%s: there is no Secret %q in namespace %q", certs.SecretNotFound,
			missing.Name, missing.Namespace)
	}
	r.To = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: name, Verification: configv1alpha1.VerificationEnforce}
	switch {
	case !o.Session.Verifies(ctx):
		r.To.Verification = ""
	case slices.Contains(o.request.Allow, certs.NameNotCovered):
		// with Enforce, the agent would refuse what the administrator allows
		r.To.Verification = configv1alpha1.VerificationWarn
	}
	inSecret := secret.Data[plan.CABundleKey]
	bundle := inSecret
	switch {
	case o.request.BundleGiven:
		bundle = o.request.Bundle
		r.To.CertificateAuthorityData = base64.StdEncoding.EncodeToString(bundle)
	case o.SystemRoots && len(inSecret) > 0:
		return ui.WithHint(
			ui.Usage(fmt.Errorf("--system-roots: Secret %q has ca.crt, which the agent would advertise", name)),
			"leave out --system-roots, or remove ca.crt from the Secret",
		)
	case !o.SystemRoots && len(inSecret) == 0:
		return ui.WithHint(ui.Usage(fmt.Errorf("the CA of the new certificate is missing: Secret %q has no ca.crt",
			name)),
			"give it with --ca-bundle FILE; for a certificate of a public CA say --system-roots")
	}
	trust, err := rotation.TrustOf(bundle, secret.Data[corev1.TLSCertKey], o.Session.Now())
	if err != nil {
		return o.refuse("give it with --ca-bundle FILE", "finding the CA of the new certificate in Secret %q: %w",
			name, err)
	}
	r.NewCA = string(trust)
	return nil
}

// fillGenerated fills in the CA of the new certificate, which the agent will generate.
func (o *Options) fillGenerated(ctx context.Context, issuer *configv1alpha1.CredentialIssuer,
	r *rotation.Record,
) error {
	if r.From == nil {
		return ui.Usage(errors.New("the agent's generated certificate is in service now, so there is nothing to rotate to"))
	}
	ca, err := o.Session.GeneratedCA(ctx, issuer, o.request.Namespace, o.Session.Now())
	if err != nil {
		return err
	}
	if ca == nil {
		return o.refuse(`"pinniped ip-tls unset --allow OldClientsBreak" goes back at once, with an outage for `+
			`kubeconfigs made so far`,
			"the CA of the agent is not known, so that it cannot be advertised beforehand")
	}
	r.NewCA = string(ca)
	return nil
}
