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

// Snapshot is what was found in the cluster.
type Snapshot struct {
	Issuer     *configv1alpha1.CredentialIssuer
	Secret     *corev1.Secret        // nil when there is none
	Source     *serving.BundleSource // that the wanted configuration takes the CA bundle from
	Permission []certs.Finding       // about a Secret of another namespace; the Secret is read only if none of them refuses
	Service    *corev1.Service       // in front of the proxy; nil when there is none
	Resolved   []netip.Addr          // addresses of the external endpoint; only asked for when there is a loadBalancerIP
	CASecret   *corev1.Secret        // of the CA of generated certificates; nil when it is not known or not needed
	// History is what was published until now, Known whether it can be relied on.
	History serving.History
	Known   bool
	// InService is what clients get now, or got last; nil where that is not known.
	InService *serving.Certificate
	// WithoutVerification is true where CredentialIssuers have no field verification, as Pinniped's have none.
	WithoutVerification bool
	// WithoutTransition is true where they have no field caTransition.
	WithoutTransition bool
	Now               time.Time
	ServerTime        time.Time
}

// NotPermitted says whether the Secret is of another namespace and may not be used.
func (st *Snapshot) NotPermitted() bool {
	return slices.ContainsFunc(st.Permission, certs.Finding.Refuses)
}

// ServiceType is the configured type, or the default.
func ServiceType(spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxyServiceType {
	if spec.Service.Type == "" {
		return configv1alpha1.ServiceTypeLoadBalancer
	}
	return spec.Service.Type
}
