package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// History returns the revision history, completed from the status. found is false if the agent keeps none, as
// Pinniped's.
func (s *Session) History(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string) (
	h serving.History, found bool, err error,
) {
	if objects, published := discovery.Objects(issuer, namespace); published && objects.RevisionsConfigMap != "" {
		kept, err := s.Cluster.ConfigMap(ctx, objects.Namespace, objects.RevisionsConfigMap)
		switch {
		case errors.Is(err, discovery.ErrNotFound):
		case err != nil:
			return h, false, WithCodes(fmt.Errorf("reading the revision history: %w", err))
		default:
			if h, err = serving.Read(kept.Data); err != nil {
				return h, false, fmt.Errorf("ConfigMap %q: %w", kept.Namespace+"/"+kept.Name, err)
			}
			found = true
		}
	}
	h, restored := h.RestoreFrom(issuer, nil)
	return h.SinceStatus(issuer, s.ServerNow(), serving.DefaultRetention), found || restored, nil
}
