package credentialissuer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// maxEvent bounds an event's message, in bytes, as the events API does.
const maxEvent = 1024

// reasonServed is the reason of the event that tells that another certificate is served.
const reasonServed = "ServingCertificateChanged"

// told is what the latest events said. The watch may show the previous status once more; then nothing is told twice.
type told struct {
	served           string
	status           configv1alpha1.StrategyStatus
	reason           configv1alpha1.StrategyReason
	strategy, secret string
	waits            string // the certificate that waits
}

// tell makes events of what has changed in the status: at most one about the strategy, which is nil when it has not
// changed, and one about the certificate. The leader calls it after it has written the status. So there is one event for
// each transition, also when another replica becomes the leader.
func (r *Reconciler) tell(
	issuer *configv1alpha1.CredentialIssuer,
	strategy *configv1alpha1.CredentialIssuerStrategy,
	served *configv1alpha1.ServingCertificateStatus,
) {
	last := r.lastTold
	if had := issuer.Status.ServingCertificate; served != nil && (had == nil || !sameServed(had, served)) &&
		(last.served != served.SHA256 || last.secret != served.SecretName) {
		r.lastTold.served, r.lastTold.secret = served.SHA256, served.SecretName
		r.Events.Event(
			issuer,
			corev1.EventTypeNormal,
			reasonServed,
			clip(fmt.Sprintf("serves the certificate of Secret %q (SHA-256 %s), valid until %s",
				served.SecretName, served.SHA256, served.NotAfter.UTC().Format(time.RFC3339))),
		)
	}
	if strategy == nil ||
		last.status == strategy.Status && last.reason == strategy.Reason && last.strategy == strategy.Message {
		return
	}
	r.lastTold.status, r.lastTold.reason, r.lastTold.strategy = strategy.Status, strategy.Reason, strategy.Message
	kind, reason := corev1.EventTypeWarning, string(strategy.Reason)
	if strategy.Status == configv1alpha1.StrategySuccess || strategy.Reason == configv1alpha1.ReasonDisabled {
		kind = corev1.EventTypeNormal
	} else if refusal := r.Holder.Evaluation().Refusal; refusal != nil && len(strategy.Findings) > 0 &&
		strategy.Findings[0].Code == string(refusal.Finding.Code) {
		reason = strategy.Findings[0].Code
	}
	r.Events.Event(issuer, kind, reason, clip(strategy.Message))
}

// tellWaiting makes one event of a renewed certificate that waits (nil for none). The status may tell of it already.
func (r *Reconciler) tellWaiting(issuer *configv1alpha1.CredentialIssuer, waiting *serving.Waiting) {
	sha256 := ""
	if waiting != nil {
		sha256 = waiting.Certificate.SHA256()
	}
	told := sha256 == r.lastTold.waits || slices.ContainsFunc(
		reportedProxy(issuer).Findings,
		func(f configv1alpha1.StrategyFinding) bool {
			return f.Code == configv1alpha1.CodeRenewalWaits && strings.Contains(f.Message, sha256)
		},
	)
	r.lastTold.waits = sha256
	if waiting != nil && !told {
		r.Events.Event(issuer, corev1.EventTypeWarning, configv1alpha1.CodeRenewalWaits, clip(waiting.Message(r.Namespace)))
	}
}

// clip shortens text to what an event may say. Findings have the same bound.
func clip(text string) string {
	if len(text) <= maxEvent {
		return text
	}
	return strings.ToValidUTF8(text[:maxEvent-len("…")], "") + "…"
}
