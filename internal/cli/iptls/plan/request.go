package plan

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Request is the change that the flags request.
type Request struct {
	Namespace   string // the agent's
	Secret      string // NAME, or NAMESPACE/NAME of another namespace
	Bundle      []byte // of --ca-bundle
	BundleGiven bool   // --ca-bundle
	// Source is --ca-bundle-from; nil: unchanged.
	Source           *configv1alpha1.CertificateAuthorityDataSourceSpec
	BundleFromSecret bool                                  // --ca-from-secret
	SystemRoots      bool                                  // --system-roots
	Endpoint         *string                               // --external-endpoint
	LoadBalancerIP   *string                               // --load-balancer-ip
	Mode             configv1alpha1.ImpersonationProxyMode // --mode; empty: unchanged
	// ServiceType is --service-type; empty: unchanged.
	ServiceType   configv1alpha1.ImpersonationProxyServiceType
	Allow         []certs.Code
	ExpiresWithin time.Duration // --expires-within of "ip-tls check"; zero: not set
	// Sources name the inputs from flags in messages; empty for those of the Secret and the spec.
	Sources certs.Sources
	// ActivateAfter is --activate-after; nil: unchanged.
	ActivateAfter *time.Duration
	// WritesSecret is true if the certificate is from files and is written into the Secret.
	WritesSecret bool
}

// On returns spec with the request applied.
func (r Request) On(spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxySpec {
	wanted := *spec.DeepCopy()
	if r.Secret != "" {
		if wanted.TLS == nil {
			wanted.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{}
		}
		wanted.TLS.SecretName = r.Secret
	}
	if tls := wanted.TLS; tls != nil {
		if r.Source != nil || r.BundleGiven || r.BundleFromSecret || r.SystemRoots {
			tls.CertificateAuthorityDataSource = r.Source
		}
		switch {
		case r.Source != nil:
			tls.CertificateAuthorityData = ""
		case r.BundleGiven && !SameBase64(tls.CertificateAuthorityData, r.Bundle):
			tls.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.Bundle)
		case r.BundleFromSecret, r.SystemRoots:
			tls.CertificateAuthorityData = ""
		}
		if r.ActivateAfter != nil {
			tls.ActivateAfter = &metav1.Duration{Duration: *r.ActivateAfter}
		}
	}
	if r.Endpoint != nil {
		wanted.ExternalEndpoint = *r.Endpoint
	}
	if r.LoadBalancerIP != nil {
		wanted.Service.LoadBalancerIP = *r.LoadBalancerIP
	}
	wanted.Mode = cmp.Or(r.Mode, wanted.Mode)
	wanted.Service.Type = cmp.Or(r.ServiceType, wanted.Service.Type)
	return wanted
}

// SecretName returns the name of the Secret. Session.Locate must have validated it.
func (r Request) SecretName() types.NamespacedName {
	name, _ := delegation.SecretName(r.Secret, r.Namespace)
	return name
}

// FitsSecret returns an error if the Secret cannot provide the CA bundle that the request wants.
func FitsSecret(r Request, secret *corev1.Secret) error {
	if secret == nil {
		return nil // a check reports it
	}
	has := len(secret.Data[CABundleKey]) > 0
	name := secret.Namespace + "/" + secret.Name
	switch {
	case r.BundleFromSecret && !has:
		return ui.WithExitCode(ui.WithHint(
			fmt.Errorf("the Secret %q has no ca.crt that could be published", name),
			"pass a file with --ca-bundle, or --system-roots if the certificate is from a public CA",
		), ui.ExitRefused)
	case r.SystemRoots && has:
		return ui.WithExitCode(ui.WithHint(
			fmt.Errorf("the Secret %q has a ca.crt, which the agent publishes to "+
				"clients in place of their system roots", name),
			`remove it: kubectl patch secret %s --namespace %s --type=json -p='[{"op":"remove","path":"/data/ca.crt"}]'`,
			secret.Name,
			secret.Namespace,
		), ui.ExitRefused)
	}
	return nil
}
