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
	SecretName string          // empty: the agent's generated certificate
	Secret     *corev1.Secret  // nil when there is none
	Permission []certs.Finding // about a Secret of another namespace; the Secret is read only if none of them refuses
	Service    *corev1.Service // in front of the proxy; nil when there is none
	Resolved   []netip.Addr    // addresses of the external endpoint; only asked for when there is a loadBalancerIP
	// GeneratedCA is the CA of the agent's generated certificate, as PEM. It is nil when it is not known or not needed.
	GeneratedCA []byte
	// History is what clients were told until now. Nil means: what the status advertises.
	History *serving.History
	// InService is what clients meet now.
	InService serving.Served
	// Evidence is what an administrator shows or says about the kubeconfigs that are there.
	Evidence serving.Evidence
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
