package migrate

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// typedIssuer returns the CredentialIssuer decoded, or nil if it has no impersonation proxy.
func (s *state) typedIssuer() (*configv1alpha1.CredentialIssuer, error) {
	var typed configv1alpha1.CredentialIssuer
	if err := s.decodeIssuer(&typed); err != nil {
		return nil, fmt.Errorf("reading %s: %w", describe(issuer), err)
	}
	if typed.Spec.ImpersonationProxy == nil {
		return nil, nil
	}
	return &typed, nil
}

func (s *state) decodeIssuer(into any) error {
	encoded, err := json.Marshal(s.issuer)
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, into)
}

// external returns the tls block of an enabled proxy, or nil if the generated certificate is served, which is the same
// for Pinniped and the agent.
func external(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.ImpersonationProxyTLSSpec {
	if issuer == nil || issuer.Spec.ImpersonationProxy.Mode == configv1alpha1.ImpersonationProxyModeDisabled {
		return nil
	}
	if tls := issuer.Spec.ImpersonationProxy.TLS; tls != nil && tls.SecretName != "" {
		return tls
	}
	return nil
}

// secretOf returns the reference to the Secret in the spec.
func secretOf(configured *configv1alpha1.ImpersonationProxyTLSSpec) discovery.Ref {
	ref := discovery.Ref{Resource: core("secrets"), Namespace: namespace, Name: configured.SecretName}
	if other, name, found := strings.Cut(configured.SecretName, "/"); found {
		ref.Namespace, ref.Name = other, name
	}
	return ref
}

// refusedByAgent finds a certificate that Pinniped serves and the agent would refuse, if clients would refuse the
// agent's generated certificate.
func (s *state) refusedByAgent(kubectl) (*result.MigrationFinding, error) {
	typed, err := s.typedIssuer()
	configured := external(typed)
	if err != nil || configured == nil || s.secret == nil {
		return nil, err
	}
	in := serving.ExternalInput{
		Name: types.NamespacedName{Namespace: namespace, Name: configured.SecretName}, Secret: s.secret, Spec: *configured,
		Endpoint: typed.Spec.ImpersonationProxy.ExternalEndpoint, Now: s.now,
	}
	url, bundle, published := serving.Frontend(serving.Strategy(typed))
	if published && in.Endpoint == "" {
		if at, err := plan.ParseEndpoint(url); err == nil {
			in.Names = []certs.Name{{Value: at.Host}}
		}
	}
	judged := serving.External(in)
	var refusal certs.Finding
	uncovered := func(f certs.Finding) bool { return f.Code == certs.NameNotCovered }
	switch at := slices.IndexFunc(judged.Warnings, uncovered); {
	case judged.Refusal != nil:
		refusal = judged.Refusal.Finding
	case at >= 0 && configured.Verification == "": // the agent would serve the generated one, which covers the name
		refusal = judged.Warnings[at]
	default:
		return nil, nil
	}
	// Clients of this certificate do not know the CA of the generated one.
	generated, err := serving.WouldGenerate(nil, "impersonation-proxy", *typed.Spec.ImpersonationProxy, nil, s.now)
	if err != nil {
		return nil, err
	}
	now, history := served(s.secret), serving.History{}
	if published { // Pinniped records no clients: assume that they use every name
		history = history.With(serving.Revision{Endpoint: url, Bundle: bundle, Names: serving.NamesOf(now.Chain)})
	}
	j := serving.Judge(serving.Effect(history, now, serving.Served{Chain: generated.Chain()}, s.now))
	if !j.Refused {
		return nil, nil
	}
	return about(secretOf(configured), result.MigrationCertificateRefused, true,
		"the agent refuses this certificate, which Pinniped serves (%s). The agent would serve its generated "+
			"certificate instead, and clients would stop verifying: %s. Fix the certificate first; see \"pinniped ip-tls "+
			"check\"", serving.Sentence(refusal), serving.Summarize(j)), nil
}

// brokenByPinniped finds clients that verify what the agent serves, and would not verify what Pinniped serves: the
// Secret as it is, or nothing.
func (s *state) brokenByPinniped(kubectl) (*result.MigrationFinding, error) {
	typed, err := s.typedIssuer()
	configured := external(typed)
	if err != nil || configured == nil || typed.Status.Transition != nil { // see transitionPrepared
		return nil, err
	}
	history := s.history.SinceStatus(typed, s.now, serving.DefaultRetention)
	now := serving.Served{}
	if inService := history.InService(typed, s.secret, namespace); inService != nil {
		now.Chain = inService.Chain()
	}
	j := serving.Judge(serving.Effect(history, now, served(s.secret), s.now))
	if !j.Refused {
		return nil, nil
	}
	return about(secretOf(configured), result.MigrationClientsBroken, true,
		"Pinniped would serve this Secret's certificate or none, and break clients that verify the agent's certificate: "+
			"%s. Fix the Secret first; see \"pinniped ip-tls status\" and \"pinniped ip-tls history\"",
		serving.Summarize(j)), nil
}

// served returns what Pinniped serves from a Secret: any certificate with its key, or nothing. It reads no Secret of
// another namespace.
func served(secret *corev1.Secret) serving.Served {
	if secret == nil {
		return serving.Served{Off: true}
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return serving.Served{Off: true}
	}
	chain := make([]*x509.Certificate, 0, len(pair.Certificate))
	for _, raw := range pair.Certificate {
		if cert, err := x509.ParseCertificate(raw); err == nil {
			chain = append(chain, cert)
		}
	}
	return serving.Served{Chain: chain}
}
