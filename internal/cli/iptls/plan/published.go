package plan

import (
	"encoding/base64"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// SameBase64 says whether data is the base64 of a bundle with the same certificates.
func SameBase64(data string, bundle []byte) bool {
	if data == "" {
		return false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	return err == nil && certs.SameBundle(decoded, bundle)
}

// BundleFor returns the trust bundle for the certificate in a Secret, which may be nil. source is what tls takes it from.
func BundleFor(
	tls configv1alpha1.ImpersonationProxyTLSSpec, secret *corev1.Secret, source *serving.BundleSource,
) ([]byte, error) {
	if secret == nil {
		secret = &corev1.Secret{}
	}
	return serving.Bundle(tls, secret, source)
}

// Published returns the trust bundle that clients are to verify the proxy with; empty for their system roots. found is
// false where none is published, or it cannot be read.
func Published(issuer *configv1alpha1.CredentialIssuer) (bundle []byte, found bool) {
	_, bundle, found = serving.Frontend(serving.Strategy(issuer))
	return bundle, found
}

// Waits says whether the agent waits with a certificate until no client breaks.
func Waits(issuer *configv1alpha1.CredentialIssuer) bool { return issuer.Status.Transition != nil }

// IsGenerated says whether a CA bundle is the CA that an agent makes for itself.
func IsGenerated(bundle []byte) bool {
	members, _ := certs.ParseBundle(bundle)
	return len(members) == 1 && members[0].Subject.CommonName == GeneratedCAName
}

// Names returns every name under which clients will reach the proxy when the request is carried out, the external
// endpoint first, each with where it comes from.
func Names(req Request, st *Snapshot) []certs.Name {
	wanted := req.On(st.Issuer.Spec.ImpersonationProxy)
	var names []certs.Name
	if host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint); err == nil {
		names = append(names, certs.Name{Value: host, Source: "spec.impersonationProxy.externalEndpoint"})
	}
	return append(names, serving.ClientNames(wanted, st.serviceFor(&wanted))...)
}
