package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/trust"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// remember fills in what clients were told until now, and what they meet.
func (s *Session) remember(ctx context.Context, st *plan.Snapshot, namespace string) error {
	history, found, err := s.Memory(ctx, st.Issuer, namespace)
	if err != nil {
		return err
	}
	history = plan.Remembered(history, st.Issuer)
	st.History, st.InService = &history, InService(st.Issuer, history, found, st.Secret)
	return nil
}

// Memory returns what the agent remembers of what clients were told; found is false for an agent without a memory, such
// as Pinniped's.
func (s *Session) Memory(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string) (
	history trust.History, found bool, err error,
) {
	objects, published := discovery.Objects(issuer, namespace)
	if !published || objects.HandedOutConfigMap == "" {
		return trust.History{}, false, nil
	}
	kept, err := s.Cluster.ConfigMap(ctx, objects.Namespace, objects.HandedOutConfigMap)
	switch {
	case errors.Is(err, discovery.ErrNotFound):
		return trust.History{}, false, nil
	case err != nil:
		return trust.History{}, false, WithCodes(fmt.Errorf("reading what clients were told until now: %w", err))
	}
	if history, err = trust.Read(kept.Data); err != nil {
		return trust.History{}, false, fmt.Errorf("ConfigMap %q: %w", kept.Namespace+"/"+kept.Name, err)
	}
	return history, true, nil
}

// InService returns what clients meet, as the agent remembers and reports it. remembers is false where it has no memory.
// secret may be the one in service; it may be nil.
func InService(issuer *configv1alpha1.CredentialIssuer, history trust.History, remembers bool,
	secret *corev1.Secret,
) trust.Serving {
	strategy, serving := plan.ProxyStrategy(issuer), issuer.Status.ServingCertificate
	_, advertised := plan.Advertised(issuer)
	switch {
	case strategy != nil && strategy.Reason == configv1alpha1.ReasonDisabled, !advertised && !remembers:
		return trust.Serving{Off: true}
	case remembers && len(history.Chain) == 0 && serving == nil:
		return trust.Serving{Off: true}
	case len(history.Chain) > 0 &&
		(serving == nil || strings.EqualFold(certs.Fingerprint(history.Chain[0].Raw), serving.SHA256)):
		return trust.Serving{Chain: history.Chain}
	}
	if secret != nil && serving != nil {
		chain, _ := certs.ParseBundle(secret.Data[corev1.TLSCertKey])
		if len(chain) > 0 && strings.EqualFold(certs.Fingerprint(chain[0].Raw), serving.SHA256) {
			return trust.Serving{Chain: chain}
		}
	}
	return trust.Serving{}
}
