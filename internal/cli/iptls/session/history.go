package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// History returns the revision history, completed from the status. found is false if the agent keeps none, as
// Pinniped's.
func (s *Session) History(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string) (
	h serving.History, found bool, err error,
) {
	kept, h, err := s.keptHistory(ctx, issuer, namespace)
	if err != nil && !errors.Is(err, discovery.ErrNotFound) {
		return h, false, err
	}
	h, restored := h.RestoreFrom(issuer, nil)
	return h.SinceStatus(issuer, s.ServerNow(), serving.DefaultRetention), kept != nil || restored, nil
}

// keptHistory reads the ConfigMap with the revision history; kept is nil if the agent keeps none.
func (s *Session) keptHistory(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string) (
	kept *corev1.ConfigMap, h serving.History, err error,
) {
	objects, published := discovery.Objects(issuer, namespace)
	if !published || objects.RevisionsConfigMap == "" {
		return nil, h, nil
	}
	if kept, err = s.Cluster.ConfigMap(ctx, objects.Namespace, objects.RevisionsConfigMap); err != nil {
		return nil, h, WithCodes(fmt.Errorf("reading the revision history: %w", err))
	}
	if h, err = serving.Read(kept.Data); err != nil {
		return nil, h, fmt.Errorf("ConfigMap %q: %w", kept.Namespace+"/"+kept.Name, err)
	}
	return kept, h, nil
}

// Retire marks revisions as having no clients. It ignores unknown ones, and the published one unless a transition is in
// progress. It returns the IDs of the retired revisions.
func (s *Session) Retire(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string, ids []string) (
	[]string, error,
) {
	for {
		kept, history, err := s.keptHistory(ctx, issuer, namespace)
		if err != nil || kept == nil {
			return nil, err
		}
		at, data := s.ServerNow(), map[string]string{}
		var past []string
		for i := range history.Revisions {
			r := &history.Revisions[i]
			// Apply removes fields that are left out, so repeat earlier retirements.
			if when, found := kept.Data[serving.RetiredPrefix+r.ID]; found {
				data[serving.RetiredPrefix+r.ID] = when
			}
			if slices.Contains(ids, r.ID) && (!r.Until.IsZero() || r.Outcome == serving.OutcomePrepared) && !r.Ended() {
				past = append(past, r.ID)
				if at.Before(r.Until) {
					at = r.Until
				}
			}
		}
		if len(past) == 0 {
			return nil, nil
		}
		for _, id := range past {
			key, value := history.Find(id).Retirement(at)
			data[key] = value
		}
		_, err = s.Cluster.ApplyConfigMap(ctx, kept.Namespace, kept.Name,
			map[string]any{"metadata": map[string]any{"resourceVersion": kept.ResourceVersion}, "data": data},
			discovery.ApplyOptions{FieldManager: plan.FieldManager, Force: true})
		switch {
		case errors.Is(err, discovery.ErrConflict):
			continue // the agent has appended a revision
		case err != nil:
			return nil, WithCodes(fmt.Errorf("retiring revisions: %w", err))
		}
		return past, nil
	}
}
