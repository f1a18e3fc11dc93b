package plan

import (
	"encoding/base64"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// AdvertisedBundle returns the bundle that the agent will advertise: the spec's, else the Secret's.
func AdvertisedBundle(tls configv1alpha1.ImpersonationProxyTLSSpec, secret *corev1.Secret) ([]byte, error) {
	if tls.CertificateAuthorityData == "" {
		if secret == nil {
			return nil, nil
		}
		return secret.Data[CABundleKey], nil
	}
	bundle, err := base64.StdEncoding.DecodeString(strings.TrimSpace(tls.CertificateAuthorityData))
	if err != nil {
		return nil, fmt.Errorf("%s is not base64", FieldBundle)
	}
	return bundle, nil
}

// SameBase64 says whether data is the base64 of a bundle with the same certificates.
func SameBase64(data string, bundle []byte) bool {
	if data == "" {
		return false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	return err == nil && certs.SameBundle(decoded, bundle)
}

// ProxyStrategy returns what the agent reports about the impersonation proxy; nil when it has not yet.
func ProxyStrategy(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.CredentialIssuerStrategy {
	for i := range issuer.Status.Strategies {
		if issuer.Status.Strategies[i].Type == configv1alpha1.StrategyImpersonationProxy {
			return &issuer.Status.Strategies[i]
		}
	}
	return nil
}

// ProxyInfo returns the endpoint and the bundle that are advertised; nil when none are.
func ProxyInfo(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.ImpersonationProxyInfo {
	if strategy := ProxyStrategy(issuer); strategy != nil && strategy.Frontend != nil {
		return strategy.Frontend.ImpersonationProxyInfo
	}
	return nil
}

// Advertised returns the CA bundle that clients are told to verify the proxy with; empty for their system roots. found
// is false where none is advertised, or it cannot be read.
func Advertised(issuer *configv1alpha1.CredentialIssuer) (bundle []byte, found bool) {
	info := ProxyInfo(issuer)
	if info == nil {
		return nil, false
	}
	bundle, err := base64.StdEncoding.DecodeString(info.CertificateAuthorityData)
	return bundle, err == nil
}

// IsGenerated says whether a CA bundle is the CA that an agent makes for itself.
func IsGenerated(bundle []byte) bool {
	members, _ := certs.ParseBundle(bundle)
	return len(members) == 1 && members[0].Subject.CommonName == GeneratedCAName
}

// Names returns every name under which clients will reach the proxy when the request is carried out, the external
// endpoint first, each with where it comes from.
func Names(req Request, st *Snapshot) []certs.Name {
	wanted := *st.Issuer.Spec.ImpersonationProxy
	if req.Endpoint != nil {
		wanted.ExternalEndpoint = *req.Endpoint
	}
	var names []certs.Name
	if host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint); err == nil {
		names = append(names, certs.Name{Value: host, Source: "spec.impersonationProxy.externalEndpoint"})
	}
	return append(names, clientNames(st, wanted)...)
}

// clientNames returns every name that clients use besides the external endpoint, each with where it comes from.
func clientNames(st *Snapshot, wanted configv1alpha1.ImpersonationProxySpec) []certs.Name {
	service := st.Service
	current := st.Issuer.Spec.ImpersonationProxy
	another := ServiceType(&wanted) != ServiceType(current)
	moving := another || wanted.Service.LoadBalancerIP != current.Service.LoadBalancerIP
	if another || moving && ServiceType(&wanted) == configv1alpha1.ServiceTypeLoadBalancer {
		service = nil // its addresses will change
	}
	return append(serving.ClientNames(wanted, service), advertisedName(st, wanted, moving)...)
}

// advertisedName returns the name that kubeconfigs have so far, if these can go on working.
func advertisedName(st *Snapshot, wanted configv1alpha1.ImpersonationProxySpec, moving bool) []certs.Name {
	info := ProxyInfo(st.Issuer)
	if info == nil {
		return nil
	}
	replaced := wanted.ExternalEndpoint != st.Issuer.Spec.ImpersonationProxy.ExternalEndpoint || moving
	// The agent also serves its own certificate while it refuses the external one that the spec names.
	bundle, _ := Advertised(st.Issuer)
	if replaced && (st.Issuer.Spec.ImpersonationProxy.TLS == nil || IsGenerated(bundle)) {
		return nil // those kubeconfigs trust the generated CA, and must be made anew anyway
	}
	at, err := ParseAdvertised(info.Endpoint)
	if err != nil {
		return nil
	}
	return []certs.Name{{Value: at.Host, Source: "advertised in status.strategies"}}
}
