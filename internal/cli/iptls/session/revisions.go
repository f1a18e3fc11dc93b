package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// History returns the revision history, completed from the status. found: the agent keeps one, unlike Pinniped's.
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

// Elsewhere maps the endpoints of other revisions to what clients get there.
type Elsewhere map[string][]Met

// AskElsewhere probes other endpoints than at that clients may still use, except those without a route from here.
func (s *Session) AskElsewhere(ctx context.Context, h serving.History, at plan.Endpoint) Elsewhere {
	const most = 20
	all, asked := Elsewhere{}, map[string]bool{}
	var group sync.WaitGroup
	var mu sync.Mutex
	for i := range h.Revisions {
		r := &h.Revisions[i]
		other, err := plan.ParseEndpoint(r.Endpoint)
		if err != nil || !r.HasClients() || asked[r.Endpoint] || len(asked) == most ||
			other.Host == at.Host && other.Port == at.Port {
			continue
		}
		asked[r.Endpoint] = true
		group.Go(func() {
			met, skipped, err := Ask(ctx, s.Network, other)
			if ctx.Err() != nil || err == nil && len(met) == 0 && len(skipped) > 0 {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all[r.Endpoint] = met
		})
	}
	group.Wait()
	return all
}

// ClientStates returns whether the clients of each revision verify the certificates at the endpoint that they use.
func ClientStates(h serving.History, met []Met, elsewhere Elsewhere, now time.Time) []result.ClientState {
	all := make([]result.ClientState, 0, len(h.Revisions))
	for i := range h.Revisions {
		s := &h.Revisions[i]
		state := result.ClientState{
			ID: s.ID, Since: moment(s.Since), Until: moment(s.Until), Retired: moment(s.Retired), Endpoint: s.Endpoint,
			CABundle: result.BundleOf(s.Bundle), Names: s.Names, By: s.By, ChangedAt: moment(s.ChangedAt),
		}
		if s.Spec != nil && s.Spec.TLS != nil {
			state.Secret = s.Spec.TLS.SecretName
		}
		own, another := elsewhere[s.Endpoint]
		if !another {
			own = met
		}
		own = slices.DeleteFunc(slices.Clone(own), func(one Met) bool { return len(one.Chain) == 0 })
		switch {
		case s.Ended():
			state.Outcome = result.ClientsRetired
		case !s.Until.IsZero() && !s.HasClients():
			state.Outcome = result.ClientsUnused
		case another && len(own) == 0:
			state.Outcome, state.Code = result.ClientsRefused, certs.EndpointUnreachable
			state.Message = "they use " + s.Endpoint + ", which does not respond"
		case len(own) == 0:
			state.Outcome = result.ClientsNotKnown
		default:
			meet(&state, s, own, now)
		}
		if state.Refused() && state.Code != certs.EndpointUnreachable {
			names := state.RefusedNames
			if len(names) == 0 {
				names = []string{s.Host()}
			}
			state.RefusedSince = moment(refusedSince(h, s, state.Code, names))
		}
		all = append(all, state)
	}
	return all
}

// meet sets the outcome for the clients of s.
func meet(state *result.ClientState, s *serving.Revision, met []Met, now time.Time) {
	refused, byEndpoint := 0, 0
	for _, client := range s.Clients() {
		worst := serving.Outcome{Client: client}
		for _, one := range met {
			code := client.Meets(serving.Served{Chain: one.Chain}, now)
			if code == "" {
				continue
			}
			worst.After = code
			if client.Name == s.Host() {
				byEndpoint++
			}
		}
		if worst.After == "" {
			continue
		}
		refused++
		state.RefusedNames = append(state.RefusedNames, client.Name)
		if state.Code == "" {
			state.Code, state.Message = worst.After, "they "+worst.Why()
		}
	}
	switch {
	case refused == 0:
		state.Outcome = result.ClientsWork
	case byEndpoint == len(met): // nearly all clients use this name
		state.Outcome, state.RefusedNames = result.ClientsRefused, nil
	default:
		state.Outcome = result.ClientsPartlyRefused
	}
}

// refusedSince returns when the clients of s began to fail: when the first revision after s that shares no CA with it,
// or lacks the names, was published. It is zero if the history does not say.
func refusedSince(h serving.History, s *serving.Revision, code certs.Code, names []string) time.Time {
	var since time.Time
	for i := range h.Revisions {
		later := &h.Revisions[i]
		if later == s || s.Until.IsZero() || later.Opened.Before(s.Until) || !since.IsZero() && later.Opened.After(since) {
			continue
		}
		shares := slices.ContainsFunc(later.Fingerprints(), func(f string) bool {
			return slices.Contains(s.Fingerprints(), f)
		})
		lacks := !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(later.Names, n) })
		if code == certs.BundleDoesNotVerify && !shares || code == certs.NameNotCovered && lacks {
			since = later.Opened
		}
	}
	return since
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

// ClientTable prints the revisions and the outcomes of their clients.
func ClientTable(out io.Writer, style ui.Style, states []result.ClientState) error {
	rows := make([][]string, 0, len(states))
	for i := range states {
		s := &states[i]
		since, until, trusts := "-", "now", cmp.Or(s.CABundle.String(), "(system roots)")
		if s.Since != nil {
			since = s.Since.Format(time.RFC3339)
		}
		if s.Until != nil {
			until = s.Until.Format(time.RFC3339)
		}
		verdict := string(s.Outcome)
		switch s.Outcome {
		case result.ClientsWork:
			verdict = style.Good("✓") + " work"
		case result.ClientsRefused:
			verdict = style.Bad("✗") + " refused: " + string(s.Code)
		case result.ClientsPartlyRefused:
			verdict = style.Caution("!") + " partly refused: " + string(s.Code)
			if s.Code == certs.NameNotCovered {
				verdict += ", " + strings.Join(s.RefusedNames, ", ")
			}
		case result.ClientsRetired, result.ClientsUnused, result.ClientsNotKnown:
			verdict = "• " + verdict
		}
		rows = append(rows, []string{
			s.ID, since, until, cmp.Or(s.By, "-"), cmp.Or(s.Secret, "-"), s.Endpoint, trusts, verdict,
		})
	}
	return ui.Table(out, []string{"revision", "since", "until", "by", "secret", "endpoint", "CA bundle", "clients"}, rows)
}
