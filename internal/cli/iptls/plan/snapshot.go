package plan

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
	History serving.History
	Known   bool
	// InService is the certificate that clients get now, or got last; nil if unknown.
	InService *serving.Certificate
	// WithoutVerification is true if CredentialIssuers have no field verification, as Pinniped's.
	WithoutVerification bool
	// WithoutTransition is true if they have no field caTransition.
	WithoutTransition bool
	Now               time.Time
	ServerTime        time.Time
}

// NotPermitted reports whether the Secret is in another namespace and the agent may not use it.
func (st *Snapshot) NotPermitted() bool {
	return slices.ContainsFunc(st.Permission, certs.Finding.Refuses)
}

// ServiceType returns the configured type, or the default.
func ServiceType(spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxyServiceType {
	if spec.Service.Type == "" {
		return configv1alpha1.ServiceTypeLoadBalancer
	}
	return spec.Service.Type
}
