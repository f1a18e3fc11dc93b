package plan

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Request is the change that the flags request.
type Request struct {
	Namespace        string                                             // the agent's
	Secret           string                                             // NAME, or NAMESPACE/NAME of another namespace
	Bundle           []byte                                             // of --ca-bundle
	BundleGiven      bool                                               // --ca-bundle
	Source           *configv1alpha1.CertificateAuthorityDataSourceSpec // --ca-bundle-from; nil: unchanged
	BundleFromSecret bool                                               // --ca-from-secret
	SystemRoots      bool                                               // --system-roots
	Endpoint         *string                                            // --external-endpoint
	LoadBalancerIP   *string                                            // --load-balancer-ip
	Mode             configv1alpha1.ImpersonationProxyMode              // --mode; empty: unchanged
	ServiceType      configv1alpha1.ImpersonationProxyServiceType       // --service-type; empty: unchanged
	Allow            []certs.Code
	ExpiresWithin    time.Duration // --expires-within of "ip-tls check"; zero: not set
	// Sources name the inputs from flags in messages; empty for those of the Secret and the spec.
	Sources       certs.Sources
	ActivateAfter *time.Duration // --activate-after; nil: unchanged
	WritesSecret  bool           // true if the certificate is from files and is written into the Secret
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
		switch {
		case r.Source != nil, r.BundleFromSecret, r.SystemRoots:
			tls.CertificateAuthorityDataSource, tls.CertificateAuthorityData = r.Source, ""
		case r.BundleGiven:
			tls.CertificateAuthorityDataSource = nil
			if !SameBase64(tls.CertificateAuthorityData, r.Bundle) {
				tls.CertificateAuthorityData = base64.StdEncoding.EncodeToString(r.Bundle)
			}
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
		return ui.WithExitCode(ui.WithHint(fmt.Errorf("the Secret %q has no ca.crt that could be published", name),
			"pass a file with --ca-bundle, or --system-roots if the certificate is from a public CA"), ui.ExitRefused)
	case r.SystemRoots && has:
		return ui.WithExitCode(ui.WithHint(
			fmt.Errorf("the Secret %q has a ca.crt, which the agent publishes to clients in place of their system roots", name),
			`remove it: kubectl patch secret %s --namespace %s --type=json -p='[{"op":"remove","path":"/data/ca.crt"}]'`,
			secret.Name, secret.Namespace), ui.ExitRefused)
	}
	return nil
}

// Snapshot is the state of the cluster.
type Snapshot struct {
	Issuer     *configv1alpha1.CredentialIssuer
	Secret     *corev1.Secret        // nil if there is none
	Source     *serving.BundleSource // CA bundle source of the wanted configuration
	Permission []certs.Finding       // to use a Secret of another namespace; if one refuses, Secret is not read
	Service    *corev1.Service       // in front of the proxy; nil if there is none
	Resolved   []netip.Addr          // addresses of the external endpoint, if loadBalancerIP is set
	CASecret   *corev1.Secret        // CA of generated certificates; nil if unknown or not needed
	// History has the revisions, and Known is whether it is reliable.
	History             serving.History
	Known               bool
	InService           *serving.Certificate // the certificate that clients get now, or got last; nil if unknown
	WithoutVerification bool                 // true if CredentialIssuers have no field verification, as Pinniped's
	WithoutTransition   bool                 // true if they have no field caTransition
	Now                 time.Time
	ServerTime          time.Time
}

// NotPermitted reports whether the Secret is in another namespace and the agent may not use it.
func (st *Snapshot) NotPermitted() bool {
	return slices.ContainsFunc(st.Permission, certs.Finding.Refuses)
}

// ServiceType returns the configured type, or the default.
func ServiceType(spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxyServiceType {
	return cmp.Or(spec.Service.Type, configv1alpha1.ServiceTypeLoadBalancer)
}

// Refusal returns an error if the report refuses. done is the prefix of the hint: what the command has changed.
func Refusal(report certs.Report, done string) error {
	errs := report.Errors()
	if len(errs) == 0 {
		return nil
	}
	first := errs[0]
	text := fmt.Sprintf("the certificate is refused: %s", first)
	if more := len(errs) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more, see above)", more)
	}
	hint := done
	if first.Hint != "" {
		hint += first.Hint + "; "
	}
	hint += fmt.Sprintf("run %q for more", "pinniped explain "+string(first.Code))
	if first.CanBeAllowed() {
		hint += fmt.Sprintf(", or pass --allow %s if you accept the consequence", first.Code)
	}
	return ui.WithExitCode(ui.WithHint(errors.New(text), "%s", hint), ui.ExitRefused)
}

// NothingChanged is the prefix of the hint of a command that has changed nothing.
const NothingChanged = "nothing was changed; "
