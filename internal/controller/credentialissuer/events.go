package credentialissuer

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// maxEvent is the maximum length of an event's message in bytes, as in the events API.
const maxEvent = 1024

// reasonServed is the reason of the event for a change of the serving certificate.
const reasonServed = "ServingCertificateChanged"

// announced is the content of the latest events, so that none is repeated if the watch delivers an old status.
type announced struct {
	served           string
	status           configv1alpha1.StrategyStatus
	reason           configv1alpha1.StrategyReason
	strategy, secret string
	waits, ended     string // the waiting certificate, and the one whose transition ended last
}

// recordChanges records events for changes of the status: at most one about the strategy, which is nil if unchanged,
// and one about the certificate. The leader calls it after it has written the status, so there is one event for each
// transition, even if the leader changes.
func (r *Reconciler) recordChanges(
	issuer *configv1alpha1.CredentialIssuer,
	strategy *configv1alpha1.CredentialIssuerStrategy,
	served *configv1alpha1.ServingCertificateStatus,
) {
	last := r.lastAnnounced
	if had := issuer.Status.ServingCertificate; served != nil && (had == nil || !sameServed(had, served)) &&
		(last.served != served.SHA256 || last.secret != served.SecretName) {
		r.lastAnnounced.served, r.lastAnnounced.secret = served.SHA256, served.SecretName
		r.Events.Event(
			issuer,
			corev1.EventTypeNormal,
			reasonServed,
			clip(fmt.Sprintf("the proxy serves the certificate in Secret %q (SHA-256 %s), valid until %s",
				served.SecretName, served.SHA256, served.NotAfter.UTC().Format(time.RFC3339))),
		)
	}
	if strategy == nil ||
		last.status == strategy.Status && last.reason == strategy.Reason && last.strategy == strategy.Message {
		return
	}
	r.lastAnnounced.status, r.lastAnnounced.reason, r.lastAnnounced.strategy = strategy.Status, strategy.Reason, strategy.Message
	kind, reason := corev1.EventTypeWarning, string(strategy.Reason)
	if strategy.Status == configv1alpha1.StrategySuccess || strategy.Reason == configv1alpha1.ReasonDisabled {
		kind = corev1.EventTypeNormal
	} else if refusal := r.Holder.Evaluation().Refusal; refusal != nil && len(strategy.Findings) > 0 &&
		strategy.Findings[0].Code == string(refusal.Finding.Code) {
		reason = strategy.Findings[0].Code
	}
	r.Events.Event(issuer, kind, reason, clip(strategy.Message))
}

// reasonTransitionEnded is the reason of the event for the end of a transition.
const reasonTransitionEnded = "TransitionEnded"

// announceTransition records an event when a transition begins or ends. waiting is nil if there is none.
func (r *Reconciler) announceTransition(
	issuer *configv1alpha1.CredentialIssuer, waiting *serving.Waiting, served *configv1alpha1.ServingCertificateStatus,
) {
	before, sha256 := r.lastAnnounced.waits, ""
	if had := issuer.Status.Transition; before == "" && had != nil && had.SHA256 != r.lastAnnounced.ended {
		before = had.SHA256
	}
	if waiting != nil {
		sha256 = waiting.Certificate.SHA256()
	}
	r.lastAnnounced.waits = sha256
	if before != "" && before != sha256 {
		outcome := "the certificate is no longer configured"
		if served != nil && served.SHA256 == before {
			outcome = "the certificate is served, and its trust bundle is the only one published"
		}
		r.lastAnnounced.ended = before
		r.Events.Event(issuer, corev1.EventTypeNormal, reasonTransitionEnded,
			fmt.Sprintf("the transition to certificate SHA-256 %s ended: %s", before, outcome))
	}
	if sha256 != "" && before != sha256 {
		r.lastAnnounced.ended = ""
		r.Events.Event(
			issuer,
			corev1.EventTypeWarning,
			configv1alpha1.CodeTransitionPrepared,
			clip(waiting.Message(r.Namespace)),
		)
	}
}

// clip truncates text to the maximum length of an event. Findings have the same limit.
func clip(text string) string { return logs.Truncate(text, maxEvent) }
