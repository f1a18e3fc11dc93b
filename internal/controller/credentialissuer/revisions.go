package credentialissuer

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// revisions returns the revision history, with revisions that the ConfigMap lacks restored from the status. known is
// false if the ConfigMap cannot be read and there are none.
func (r *Reconciler) revisions(ctx context.Context, issuer *configv1alpha1.CredentialIssuer) (serving.History, bool) {
	there, found, err := r.ConfigMaps.Get(ctx, r.local(r.Names.RevisionsConfigMap))
	var h serving.History
	if err == nil && found {
		h, err = serving.Read(there.Data)
	}
	h = r.restored(h, issuer)
	h = r.withUses(h)
	return h, err == nil || len(h.Revisions) > 0
}

// restored returns the history with revisions that it lacks restored from the status.
func (r *Reconciler) restored(h serving.History, issuer *configv1alpha1.CredentialIssuer) serving.History {
	var known []byte
	if current := r.Holder.Current(); current != nil {
		known = current.Bundle
	}
	h, _ = h.RestoreFrom(issuer, known)
	return h
}

// revisionsTimeout limits how long a report waits until the revision history is written.
const revisionsTimeout = 5 * time.Second

// ledger is the state of the revision history on the leader.
type ledger struct {
	current   bool                // it includes what the status published when this replica became the leader
	history   serving.History     // the latest, which is stored unless unsaved is set
	unsaved   bool                // writing it failed
	published serving.Published   // the latest that was appended
	chain     []*x509.Certificate // the latest certificate in service
}

// publishedBy returns what a report publishes.
func publishedBy(of report) serving.Published {
	if of.serving == nil {
		return serving.Published{}
	}
	published := serving.Published{Chain: of.serving.Chain(), Change: changeOf(of)}
	if endpoint, bundle, found := serving.Frontend(&of.proxy); found {
		published.Endpoint, published.Bundle = endpoint, bundle
		if of.serving.Source == serving.SourceGenerated {
			// The certificate also covers the load balancer's addresses, which clients do not use.
			published.Names = []string{(&serving.Revision{Endpoint: endpoint}).Host()}
		}
	}
	return published
}

// changeOf returns the spec of a report and its outcome.
func changeOf(of report) serving.Change {
	change := serving.Change{Outcome: serving.OutcomeRefused}
	switch {
	case of.waiting != nil:
		change.Outcome = serving.OutcomePrepared
	case of.proxy.Status == configv1alpha1.StrategySuccess:
		change.Outcome = serving.OutcomeInService
	}
	if proxy := of.issuer.Spec.ImpersonationProxy; proxy != nil {
		change.Spec = &serving.RevisionSpec{
			TLS: proxy.TLS, ExternalEndpoint: proxy.ExternalEndpoint, LoadBalancerIP: proxy.Service.LoadBalancerIP,
			ServiceType: proxy.Service.Type,
		}
	}
	return change
}

// changedBy returns which field manager last changed the proxy's spec, and when. The cache lacks managed fields.
func (r *Reconciler) changedBy(ctx context.Context, issuer *configv1alpha1.CredentialIssuer) (string, time.Time) {
	live, by := &configv1alpha1.CredentialIssuer{}, metav1.ManagedFieldsEntry{}
	if r.Live.Get(ctx, client.ObjectKeyFromObject(issuer), live) != nil {
		return "", time.Time{} // it is for display only
	}
	for _, entry := range live.ManagedFields {
		if entry.Time != nil && entry.FieldsV1 != nil &&
			bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:impersonationProxy"`)) &&
			(by.Time == nil || by.Time.Before(entry.Time)) {
			by = entry
		}
	}
	if by.Time == nil {
		return "", time.Time{}
	}
	return by.Manager, by.Time.UTC()
}

// appendRevision appends what the report publishes to the history, before the status publishes it. It returns the
// history even if that could not be written.
func (r *Reconciler) appendRevision(ctx context.Context, of report) (serving.History, error) {
	ctx, cancel := context.WithTimeout(ctx, revisionsTimeout)
	defer cancel()
	m, published := &r.ledger, publishedBy(of)
	there, found, err := r.ConfigMaps.Get(ctx, r.local(r.Names.RevisionsConfigMap))
	if err == nil && found && m.current && !m.unsaved && samePublished(m.published, published) {
		history, err := serving.Read(there.Data)
		next, full := r.next(history, of.issuer, published)
		if err == nil && full == nil && r.upToDate(there, next) {
			m.history = next
			return next, nil
		}
	}
	if !samePublished(m.published, published) {
		published.Change.By, published.Change.ChangedAt = r.changedBy(ctx, of.issuer)
	}
	for err == nil || apierrors.IsConflict(err) {
		var next serving.History
		if next, err = r.appendOnce(ctx, of.issuer, published); err == nil {
			m.current, m.unsaved, m.published, m.history = true, false, published, next
			return next, nil
		}
	}
	r.reportBrokenClients(ctx, of.issuer, m.history, published.Chain)
	m.history, _ = r.next(m.history, of.issuer, published)
	m.unsaved = true
	return m.history, fmt.Errorf("writing the revision history to ConfigMap %s: %w",
		r.local(r.Names.RevisionsConfigMap), err)
}

// appendOnce writes the history with what is published. It returns a conflict if the ConfigMap changes concurrently.
func (r *Reconciler) appendOnce(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, published serving.Published,
) (serving.History, error) {
	m, name, now := &r.ledger, r.local(r.Names.RevisionsConfigMap), r.Clock.Now()
	there := &corev1.ConfigMap{}
	if err := client.IgnoreNotFound(r.Live.Get(ctx, name, there)); err != nil {
		return serving.History{}, err
	}
	history, err := serving.Read(there.Data)
	switch {
	case err != nil:
		return serving.History{}, err
	case m.current && (m.unsaved || there.Data[serving.RevisionsKey] == ""):
		history = m.history // also if the ConfigMap was deleted
	case !m.current:
		live := &configv1alpha1.CredentialIssuer{} // the cache may lack what the last leader wrote
		if r.Live.Get(ctx, client.ObjectKeyFromObject(issuer), live) != nil {
			live = issuer
		}
		history = history.SinceStatus(live, now, r.RevisionRetention)
	}
	r.reportBrokenClients(ctx, issuer, history, published.Chain)
	next, err := r.next(history, issuer, published)
	if err != nil {
		return serving.History{}, err
	}
	if r.upToDate(there, next) || len(next.Revisions) == 0 && there.Name == "" {
		return next, nil
	}
	content := corev1ac.ConfigMap(name.Name, name.Namespace).WithLabels(r.Labels).
		WithData(map[string]string{serving.RevisionsKey: string(next.Encode())})
	if there.ResourceVersion != "" {
		content.WithResourceVersion(there.ResourceVersion)
	}
	if err := r.Client.Apply(ctx, content, client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return serving.History{}, err
	}
	log.FromContext(ctx).V(2).Info("Wrote the revision history", "configMap", name, "revisions", len(next.Revisions))
	return next, nil
}

// next returns the history with this publication, and with what the status and the replicas know.
func (r *Reconciler) next(
	h serving.History, issuer *configv1alpha1.CredentialIssuer, published serving.Published,
) (serving.History, error) {
	h = r.restored(h, issuer)
	h, err := h.Append(published, r.Clock.Now(), r.RevisionRetention)
	return r.withUses(h), err
}

// withUses returns the history with the uses that all replicas have recorded.
func (r *Reconciler) withUses(h serving.History) serving.History {
	if r.Usage != nil {
		h = addUses(h, r.Usage.report())
	}
	for _, replica := range r.Replicas.Live() {
		h = addUses(h, replica.Used)
	}
	return h
}

// upToDate reports whether the ConfigMap has this history and the labels.
func (r *Reconciler) upToDate(there *corev1.ConfigMap, next serving.History) bool {
	for key, value := range r.Labels {
		if there.Labels[key] != value {
			return false
		}
	}
	return there.Data[serving.RevisionsKey] == string(next.Encode())
}

func samePublished(a, b serving.Published) bool {
	if a.Endpoint != b.Endpoint || !bytes.Equal(a.Bundle, b.Bundle) || len(a.Chain) != len(b.Chain) ||
		a.Change.Outcome != b.Change.Outcome || !equality.Semantic.DeepEqual(a.Change.Spec, b.Change.Spec) {
		return false
	}
	for i := range a.Chain {
		if !a.Chain[i].Equal(b.Chain[i]) {
			return false
		}
	}
	return true
}

// reportBrokenClients records an event and a log message if a new certificate breaks clients. The agent serves such a
// certificate only if an administrator has chosen to, or if the old one expires.
func (r *Reconciler) reportBrokenClients(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, h serving.History, chain []*x509.Certificate,
) {
	before := serving.Served{Chain: h.Chain}
	if len(r.ledger.chain) > 0 {
		before.Chain = r.ledger.chain
	}
	if len(chain) == 0 || len(before.Chain) > 0 && before.Chain[0].Equal(chain[0]) {
		return
	}
	r.ledger.chain = chain
	judged := serving.Judge(serving.Effect(h, before, serving.Served{Chain: chain}, r.Clock.Now()))
	if len(judged.Broken) == 0 {
		return
	}
	problem := string(certs.OldClientsBreak) + ": " + serving.Summarize(judged) +
		" (\"pinniped kubeconfig rotate\" writes the published CA bundle into kubeconfigs)"
	logs.Warn(ctx, "Activated a certificate that clients with existing kubeconfigs do not verify",
		"sha256", certs.Fingerprint(chain[0].Raw), "problem", problem)
	r.Events.Event(issuer, corev1.EventTypeWarning, string(certs.OldClientsBreak), clip(problem))
}

// apiTime converts a time to an API time, nil for the zero time.
func apiTime(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	kept := metav1.NewTime(at).Rfc3339Copy()
	return &kept
}

// revisionsStatus summarizes the revision history without retired revisions.
func revisionsStatus(h serving.History) []configv1alpha1.RevisionStatus {
	var all []configv1alpha1.RevisionStatus
	for i := range h.Revisions {
		s := &h.Revisions[i]
		if s.Ended() && !s.Until.IsZero() {
			continue
		}
		state := configv1alpha1.RevisionStatus{
			ID: s.ID, Since: metav1.NewTime(s.Since).Rfc3339Copy(), Endpoint: s.Endpoint, CABundle: s.Fingerprints(),
			Names: s.Names,
		}
		state.Until, state.LastUsed = apiTime(s.Until), apiTime(s.LastUsed)
		all = append(all, state)
	}
	return all
}
