package credentialissuer

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	"github.com/pinniped-toolkit/pinniped/internal/trust"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// handedOut returns what clients were told, as far as this replica can read that.
func (r *Reconciler) handedOut(ctx context.Context) trust.History {
	there, found, err := r.ConfigMaps.Get(ctx, r.local(r.Names.HandedOutConfigMap))
	if err != nil || !found {
		return trust.History{} // the leader tells it where it cannot be read
	}
	history, _ := trust.Read(there.Data)
	return history
}

// memoryTimeout bounds how long a report waits for the API server to take what is to be remembered.
const memoryTimeout = 5 * time.Second

// memory is what the goroutine that writes reports knows of what clients were told, while this replica leads.
type memory struct {
	current bool                // what the status advertised when this replica began to lead is remembered
	history trust.History       // as it was last; written, unless unsaved
	unsaved bool                // writing it failed
	told    trust.Told          // the latest that is remembered
	chain   []*x509.Certificate // the latest certificate that was in service
}

// toldBy returns what a report tells clients.
func toldBy(of report) trust.Told {
	if of.serving == nil {
		return trust.Told{}
	}
	told := trust.Told{Chain: of.serving.Chain()}
	if endpoint, bundle, found := frontendInfo(of.proxy); found {
		told.Endpoint, told.Bundle = endpoint, bundle
		if of.serving.Source == servingcert.SourceGenerated {
			// The agent puts the load balancer's addresses into it as well, which no client was told.
			told.Names = []string{(&trust.State{Endpoint: endpoint}).Host()}
		}
	}
	return told
}

// toldBefore returns what the status of a CredentialIssuer tells clients, and since when.
func toldBefore(issuer *configv1alpha1.CredentialIssuer) (told trust.Told, since time.Time) {
	strategy := reportedProxy(issuer)
	endpoint, bundle, found := frontendInfo(strategy)
	if !found {
		return trust.Told{}, time.Time{} // no client could use it
	}
	told = trust.Told{Endpoint: endpoint, Bundle: bundle}
	if serving := issuer.Status.ServingCertificate; serving != nil &&
		serving.Source == configv1alpha1.ServingCertificateSecret {
		told.Names = slices.Concat(serving.DNSNames, serving.IPAddresses)
	}
	return told, strategy.LastUpdateTime.Time
}

// sinceStatus returns the history with what the status of the CredentialIssuer advertises, if that is not what was
// remembered last: another program has written the status, or nothing was remembered yet.
func sinceStatus(
	h trust.History, issuer *configv1alpha1.CredentialIssuer, now time.Time, memory time.Duration,
) trust.History {
	told, since := toldBefore(issuer)
	open := h.Current()
	if told.Endpoint == "" || open != nil && open.Endpoint == told.Endpoint && certs.SameBundle(open.Bundle, told.Bundle) {
		return h
	}
	for _, s := range h.States { // the time of the status may be that of an older entry
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
	h = h.Observe(told, since, memory)
	h.Chain = chain
	return h
}

// rememberHandedOut remembers what the report tells clients, before the status does. It returns what they were told, also
// when that could not be written.
func (r *Reconciler) rememberHandedOut(ctx context.Context, of report) (trust.History, error) {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	m, told := &r.memory, toldBy(of)
	there, found, err := r.ConfigMaps.Get(ctx, r.local(r.Names.HandedOutConfigMap))
	if err == nil && found && m.current && !m.unsaved && sameTold(m.told, told) {
		history, err := trust.Read(there.Data)
		next := history.Observe(told, r.Clock.Now(), r.Memory)
		if err == nil && r.remembers(there, next) {
			m.history = next
			return next, nil
		}
	}
	for err == nil || apierrors.IsConflict(err) {
		var next trust.History
		if next, err = r.rememberOnce(ctx, of.issuer, told); err == nil {
			m.current, m.unsaved, m.told, m.history = true, false, told, next
			return next, nil
		}
	}
	r.tellOldClients(ctx, of.issuer, m.history, told.Chain)
	m.history, m.unsaved = m.history.Observe(told, r.Clock.Now(), r.Memory), true
	return m.history, fmt.Errorf("remembering what clients are told, in ConfigMap %s: %w",
		r.local(r.Names.HandedOutConfigMap), err)
}

// rememberOnce writes what is to be remembered, unless the ConfigMap changes meanwhile.
func (r *Reconciler) rememberOnce(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, told trust.Told,
) (trust.History, error) {
	m, name, now := &r.memory, r.local(r.Names.HandedOutConfigMap), r.Clock.Now()
	there := &corev1.ConfigMap{}
	if err := client.IgnoreNotFound(r.Live.Get(ctx, name, there)); err != nil {
		return trust.History{}, err
	}
	history, err := trust.Read(there.Data)
	switch {
	case err != nil:
		return trust.History{}, err
	case m.current && (m.unsaved || there.Data[trust.StatesKey] == ""):
		history = m.history // also where somebody has deleted it
	case !m.current:
		live := &configv1alpha1.CredentialIssuer{} // the informer may not have what the last leader wrote
		if r.Live.Get(ctx, client.ObjectKeyFromObject(issuer), live) != nil {
			live = issuer
		}
		history = sinceStatus(history, live, now, r.Memory)
	}
	r.tellOldClients(ctx, issuer, history, told.Chain)
	next := history.Observe(told, now, r.Memory)
	if r.remembers(there, next) || len(next.States) == 0 && there.Name == "" {
		return next, nil
	}
	content := corev1ac.ConfigMap(name.Name, name.Namespace).WithLabels(r.Labels).
		WithData(map[string]string{trust.StatesKey: string(next.Encode())})
	if there.ResourceVersion != "" {
		content.WithResourceVersion(there.ResourceVersion)
	}
	if err := r.Client.Apply(ctx, content, client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
		return trust.History{}, err
	}
	log.FromContext(ctx).V(2).Info("Remembered what clients are told", "configMap", name, "states", len(next.States))
	return next, nil
}

// remembers says whether the ConfigMap is as it should be.
func (r *Reconciler) remembers(there *corev1.ConfigMap, next trust.History) bool {
	for key, value := range r.Labels {
		if there.Labels[key] != value {
			return false
		}
	}
	return there.Data[trust.StatesKey] == string(next.Encode())
}

func sameTold(a, b trust.Told) bool {
	if a.Endpoint != b.Endpoint || !bytes.Equal(a.Bundle, b.Bundle) || len(a.Chain) != len(b.Chain) {
		return false
	}
	for i := range a.Chain {
		if !a.Chain[i].Equal(b.Chain[i]) {
			return false
		}
	}
	return true
}

// tellOldClients tells, by an event and in the log, whom the certificate that is in service now locks out. The agent
// does not refuse such a certificate where somebody has decided for it.
func (r *Reconciler) tellOldClients(
	ctx context.Context, issuer *configv1alpha1.CredentialIssuer, h trust.History, chain []*x509.Certificate,
) {
	before := trust.Serving{Chain: h.Chain}
	if len(r.memory.chain) > 0 {
		before.Chain = r.memory.chain
	}
	if len(chain) == 0 || len(before.Chain) > 0 && before.Chain[0].Equal(chain[0]) {
		return
	}
	r.memory.chain = chain
	judged := trust.Judge(trust.Effect(h, trust.Evidence{}, before, trust.Serving{Chain: chain}, r.Clock.Now()))
	if len(judged.Lost) == 0 {
		return
	}
	problem := string(certs.OldClientsBreak) + ": " + servingcert.Lost(judged) +
		" (\"pinniped kubeconfig rotate\" puts the CA bundle that is advertised now into kubeconfigs)"
	logs.Warn(ctx, "Put a certificate into service that kubeconfigs handed out before do not accept",
		"sha256", certs.Fingerprint(chain[0].Raw), "problem", problem)
	r.Events.Event(issuer, corev1.EventTypeWarning, string(certs.OldClientsBreak), clip(problem))
}

// handedOutStatus sums up for the status what clients were told. What an administrator has retired is left out.
func handedOutStatus(h trust.History) []configv1alpha1.HandedOutState {
	var all []configv1alpha1.HandedOutState
	for i := range h.States {
		s := &h.States[i]
		if s.Ended() {
			continue
		}
		state := configv1alpha1.HandedOutState{
			ID: s.ID, Since: metav1.NewTime(s.Since).Rfc3339Copy(), Endpoint: s.Endpoint, CABundle: s.Fingerprints(),
			Names: s.Names,
		}
		if !s.Until.IsZero() {
			until := metav1.NewTime(s.Until).Rfc3339Copy()
			state.Until = &until
		}
		all = append(all, state)
	}
	return all
}
