package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// remember fills in what clients were told until now, and what they meet.
func (s *Session) remember(ctx context.Context, st *plan.Snapshot, namespace string) error {
	history, found, err := s.Memory(ctx, st.Issuer, namespace)
	if err != nil {
		return err
	}
	history = plan.Remembered(history, st.Issuer)
	st.History, st.InService = &history, plan.InService(st.Issuer, history, found, st.Secret)
	return nil
}

// Memory returns what the agent remembers of what clients were told; found is false for an agent without a memory, such
// as Pinniped's.
func (s *Session) Memory(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string) (
	history serving.History, found bool, err error,
) {
	objects, published := discovery.Objects(issuer, namespace)
	if !published || objects.RevisionsConfigMap == "" {
		return serving.History{}, false, nil
	}
	kept, err := s.Cluster.ConfigMap(ctx, objects.Namespace, objects.RevisionsConfigMap)
	switch {
	case errors.Is(err, discovery.ErrNotFound):
		return serving.History{}, false, nil
	case err != nil:
		return serving.History{}, false, WithCodes(fmt.Errorf("reading what clients were told until now: %w", err))
	}
	if history, err = serving.Read(kept.Data); err != nil {
		return serving.History{}, false, fmt.Errorf("ConfigMap %q: %w", kept.Namespace+"/"+kept.Name, err)
	}
	return history, true, nil
}
