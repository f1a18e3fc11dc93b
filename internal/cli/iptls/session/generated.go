package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// GatherGenerated gathers what there is to know before the agent serves its own certificate.
func (s *Session) GatherGenerated(ctx context.Context, issuer *configv1alpha1.CredentialIssuer,
	namespace string,
) (*plan.Snapshot, error) {
	st := &plan.Snapshot{Issuer: issuer, WithoutTransition: !s.offered(ctx).transition}
	s.Stamp(st)
	var err error
	if st.GeneratedCA, err = s.generatedCA(ctx, issuer, namespace, st.Now); err != nil {
		return nil, err
	}
	if st.Service, err = s.readService(ctx, issuer, namespace); err != nil {
		return nil, err
	}
	return st, s.remember(ctx, st, namespace)
}

// generatedCA returns the CA that the agent will serve with, as PEM; nil when that is not known.
func (s *Session) generatedCA(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string,
	now time.Time,
) ([]byte, error) {
	objects, _ := discovery.Objects(issuer, namespace)
	name := objects.GeneratedCASecret
	secret, err := ReadSecret(ctx, s.Cluster, objects.Namespace, name)
	if errors.Is(err, discovery.ErrForbidden) {
		s.Progress.Info("Secret %q may not be read, so that the agent's CA is not known before it is advertised", name)
		return nil, nil
	}
	if err != nil {
		return nil, WithCodes(fmt.Errorf("reading the Secret with the agent's CA: %w", err))
	}
	return serving.GeneratedBundle(secret, now), nil
}
