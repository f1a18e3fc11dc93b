package session

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// Retire marks revisions as having no clients. It ignores unknown ones, and the published one unless a transition is in
// progress. It returns the IDs of the retired revisions.
func (s *Session) Retire(ctx context.Context, issuer *configv1alpha1.CredentialIssuer, namespace string, ids []string) (
	[]string, error,
) {
	objects, published := discovery.Objects(issuer, namespace)
	if !published || objects.RevisionsConfigMap == "" {
		return nil, nil
	}
	for {
		kept, err := s.Cluster.ConfigMap(ctx, objects.Namespace, objects.RevisionsConfigMap)
		if err != nil {
			return nil, WithCodes(fmt.Errorf("reading the revision history: %w", err))
		}
		history, err := serving.Read(kept.Data)
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %q: %w", kept.Namespace+"/"+kept.Name, err)
		}
		at := s.ServerNow()
		var past []string
		for i := range history.Revisions {
			r := &history.Revisions[i]
			for _, id := range ids {
				if r.ID == id && (!r.Until.IsZero() || r.Outcome == serving.OutcomePrepared) && !r.Ended() {
					past = append(past, id)
					if at.Before(r.Until) {
						at = r.Until
					}
				}
			}
		}
		if len(past) == 0 {
			return nil, nil
		}
		_, err = s.Cluster.ApplyConfigMap(ctx, kept.Namespace, kept.Name, retired(kept, history, at, past...),
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

// retired returns the fields to apply. They include earlier retirements of known revisions, because apply removes
// fields that are left out.
func retired(kept *corev1.ConfigMap, history serving.History, at time.Time, ids ...string) map[string]any {
	data := map[string]string{}
	for i := range history.Revisions {
		key := serving.RetiredPrefix + history.Revisions[i].ID
		if when, found := kept.Data[key]; found {
			data[key] = when
		}
	}
	for _, id := range ids {
		if revision := history.Find(id); revision != nil {
			key, value := revision.Retirement(at)
			data[key] = value
		}
	}
	return map[string]any{"metadata": map[string]any{"resourceVersion": kept.ResourceVersion}, "data": data}
}
