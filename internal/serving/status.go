package serving

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Strategy returns the strategy of the impersonation proxy in the status of a CredentialIssuer, or nil.
func Strategy(issuer *configv1alpha1.CredentialIssuer) *configv1alpha1.CredentialIssuerStrategy {
	for i := range issuer.Status.Strategies {
		if issuer.Status.Strategies[i].Type == configv1alpha1.StrategyImpersonationProxy {
			return &issuer.Status.Strategies[i]
		}
	}
	return nil
}

// Frontend returns the endpoint and the trust bundle that a strategy publishes. The bundle is empty if clients use
// their system roots. found is false if nothing is published or the bundle is not base64.
func Frontend(strategy *configv1alpha1.CredentialIssuerStrategy) (endpoint string, bundle []byte, found bool) {
	if strategy == nil || strategy.Frontend == nil || strategy.Frontend.ImpersonationProxyInfo == nil {
		return "", nil, false
	}
	info := strategy.Frontend.ImpersonationProxyInfo
	bundle, err := base64.StdEncoding.DecodeString(info.CertificateAuthorityData)
	return info.Endpoint, bundle, err == nil
}

// RestoreFrom restores the revisions that the status of the CredentialIssuer lists and the history lacks. known are
// additional CA certificates (PEM). See Restore.
func (h History) RestoreFrom(issuer *configv1alpha1.CredentialIssuer, known []byte) (History, bool) {
	var summary []Revision
	for _, s := range issuer.Status.Revisions {
		revision := Revision{ID: s.ID, Since: s.Since.UTC(), Endpoint: s.Endpoint, Lost: s.CABundle, Names: s.Names}
		if s.Until != nil {
			revision.Until = s.Until.UTC()
		}
		if s.LastUsed != nil {
			revision.LastUsed = s.LastUsed.UTC()
		}
		summary = append(summary, revision)
	}
	_, published, _ := Frontend(Strategy(issuer))
	return h.Restore(summary, slices.Concat(known, []byte{'\n'}, published))
}

// SinceStatus adds what the status of the CredentialIssuer publishes, if that is not the current revision: another
// version wrote the status, or the history is empty.
func (h History) SinceStatus(issuer *configv1alpha1.CredentialIssuer, now time.Time, retention time.Duration) History {
	strategy := Strategy(issuer)
	endpoint, bundle, found := Frontend(strategy)
	open := h.Current()
	if !found || endpoint == "" ||
		open != nil && open.Endpoint == endpoint && certs.SameBundle(open.Bundle, bundle) {
		return h
	}
	published, since := Published{Endpoint: endpoint, Bundle: bundle}, strategy.LastUpdateTime.Time
	if inService := issuer.Status.ServingCertificate; inService != nil &&
		inService.Source == configv1alpha1.ServingCertificateSecret {
		published.Names = slices.Concat(inService.DNSNames, inService.IPAddresses)
	}
	for _, s := range h.Revisions { // another writer's status may be older than the history
		for _, at := range []time.Time{s.Opened, s.Until} {
			if at.After(since) {
				since = at
			}
		}
	}
	if since.IsZero() || since.After(now) {
		since = now
	}
	chain := h.Chain
	h, _ = h.Append(published, since, retention) // ErrFull is reported at the next publication
	h.Chain = chain
	if current := h.Current(); current != nil {
		h, _ = h.Used(current.ID, "", now) // the version that published it did not record uses
	}
	return h
}

// InService returns the certificate that clients get, or got last, according to the history and the status of the
// CredentialIssuer; nil if unknown. It has no key. secret is the Secret that it may come from, or nil; namespace is the
// agent's.
func (h History) InService(
	issuer *configv1alpha1.CredentialIssuer, secret *corev1.Secret, namespace string,
) *Certificate {
	chain, status := h.Chain, issuer.Status.ServingCertificate
	is := func(chain []*x509.Certificate) bool {
		return len(chain) > 0 && (status == nil || strings.EqualFold(certs.Fingerprint(chain[0].Raw), status.SHA256))
	}
	if !is(chain) && secret != nil && status != nil {
		chain, _ = certs.ParseBundle(secret.Data[corev1.TLSCertKey])
	}
	if !is(chain) {
		return nil
	}
	c := &Certificate{Certificate: tls.Certificate{Leaf: chain[0]}, Source: SourceExternal}
	for _, cert := range chain {
		c.Certificate.Certificate = append(c.Certificate.Certificate, cert.Raw)
	}
	if status != nil {
		c.Secret, _ = delegation.SecretName(status.SecretName, namespace)
	}
	_, bundle, found := Frontend(Strategy(issuer))
	if n := len(h.Revisions); !found && n > 0 {
		bundle = h.Revisions[n-1].Bundle
	}
	if c.Bundle = bundle; status != nil && status.Source == configv1alpha1.ServingCertificateGenerated {
		c.Source = SourceGenerated
	}
	return c
}
