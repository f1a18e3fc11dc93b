package plan

import (
	"encoding/base64"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// SameBase64 reports whether data is the base64 of a bundle with the same certificates.
func SameBase64(data string, bundle []byte) bool {
	if data == "" {
		return false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
	return err == nil && certs.SameBundle(decoded, bundle)
}

// BundleFor returns the trust bundle for the certificate in secret, which may be nil. source is the bundle source of
// tls.
func BundleFor(
	tls configv1alpha1.ImpersonationProxyTLSSpec, secret *corev1.Secret, source *serving.BundleSource,
) ([]byte, error) {
	if secret == nil {
		secret = &corev1.Secret{}
	}
	return serving.Bundle(tls, secret, source)
}

// Published returns the published trust bundle; empty means the system roots. found is false if none is published or it
// cannot be decoded.
func Published(issuer *configv1alpha1.CredentialIssuer) (bundle []byte, found bool) {
	_, bundle, found = serving.Frontend(serving.Strategy(issuer))
	return bundle, found
}

// Waits reports whether a transition is in progress.
func Waits(issuer *configv1alpha1.CredentialIssuer) bool { return issuer.Status.Transition != nil }

// IsGenerated reports whether a CA bundle is the CA that an agent generates.
func IsGenerated(bundle []byte) bool {
	members, _ := certs.ParseBundle(bundle)
	return len(members) == 1 && members[0].Subject.CommonName == GeneratedCAName
}

// Names returns the names by which clients will reach the proxy after the request, with their sources, the external
// endpoint first.
func Names(req Request, st *Snapshot) []certs.Name {
	wanted := req.On(st.Issuer.Spec.ImpersonationProxy)
	var names []certs.Name
	if host, _, err := certs.ParseEndpoint(wanted.ExternalEndpoint); err == nil {
		names = append(names, certs.Name{Value: host, Source: "spec.impersonationProxy.externalEndpoint"})
	}
	return append(names, serving.ClientNames(wanted, st.serviceFor(&wanted))...)
}
