package plan

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// HistoryAnnotation is the annotation in which the commands note what they have changed.
const HistoryAnnotation = "ip-tls.pinniped.dev/history"

const (
	historyVersion = 1
	// maxHistory is how many changes are kept.
	maxHistory = 10
	// maxUserName is how much of a user's name is kept.
	maxUserName = 200
)

// Change is one change by a command.
type Change struct {
	At      time.Time `json:"at"`
	Command string    `json:"command"`
	// By is the name of the user, as the API server saw it; empty when it did not tell.
	By string `json:"by,omitempty"`
	// Left is what the command left, with the hash of a CA bundle in its place, and CABundle describes that bundle.
	Left     Target               `json:"left"`
	CABundle string               `json:"caBundle,omitempty"`
	Outcome  result.ChangeOutcome `json:"outcome"`
}

// Same says whether two notes are of the same change.
func (c *Change) Same(other *Change) bool {
	return c.At.Equal(other.At) && c.Command == other.Command && c.By == other.By && reflect.DeepEqual(c.Left, other.Left)
}

// History is the last changes, the newest first.
type History struct {
	Version int      `json:"version"`
	Changes []Change `json:"changes"`
}

// NewChange returns the note of a change to the wanted configuration.
func NewChange(command, by string, at time.Time, wanted configv1alpha1.ImpersonationProxySpec) Change {
	change := Change{
		At: at.UTC().Truncate(time.Second), Command: command, By: by[:min(len(by), maxUserName)],
		Left: TargetOf(&wanted).Digested(), Outcome: result.ChangeUnknown,
	}
	if wanted.TLS != nil {
		change.CABundle = DescribeBundle(wanted.TLS.CertificateAuthorityData)
	}
	return change
}

// ReadHistory returns the changes that are noted in issuer; none when nothing was.
func ReadHistory(issuer *configv1alpha1.CredentialIssuer) (History, error) {
	history := History{Version: historyVersion}
	text := issuer.Annotations[HistoryAnnotation]
	if text == "" {
		return history, nil
	}
	err := DecodeRecord(text, &history)
	if err == nil && history.Version != historyVersion {
		err = fmt.Errorf("its version is %d, and this program knows version %d", history.Version, historyVersion)
	}
	if err != nil {
		return History{Version: historyVersion}, fmt.Errorf("reading annotation %q of CredentialIssuer %q: %w",
			HistoryAnnotation, issuer.Name, err)
	}
	return history, nil
}

// With returns the history with a change in front; the oldest ones are dropped.
func (h History) With(change Change) History {
	h.Changes = append([]Change{change}, h.Changes[:min(len(h.Changes), maxHistory-1)]...)
	return h
}

// Newest returns the last change, or nil.
func (h History) Newest() *Change {
	if len(h.Changes) == 0 {
		return nil
	}
	return &h.Changes[0]
}

// WasInEffect says whether the configuration that issuer has now was in effect. What a command has noted counts; where
// none has, the status tells.
func WasInEffect(issuer *configv1alpha1.CredentialIssuer) bool {
	now := TargetOf(issuer.Spec.ImpersonationProxy).Digested()
	history, err := ReadHistory(issuer)
	if err == nil {
		i := slices.IndexFunc(history.Changes, func(c Change) bool { return reflect.DeepEqual(c.Left, now) })
		if i >= 0 && history.Changes[i].Outcome != result.ChangeUnknown {
			return history.Changes[i].Outcome == result.ChangeInEffect
		}
	}
	return InEffect(issuer)
}

// InEffect says whether the agent reports that it does what the spec asks for. A proxy that is off, or of which the
// agent reports nothing, shows nothing to the contrary.
func InEffect(issuer *configv1alpha1.CredentialIssuer) bool {
	strategy, tls := ProxyStrategy(issuer), issuer.Spec.ImpersonationProxy.TLS
	if seen := issuer.Status.ObservedGeneration; seen != 0 && seen < issuer.Generation {
		return false // not yet
	}
	switch serving := issuer.Status.ServingCertificate; {
	case strategy == nil, strategy.Reason == configv1alpha1.ReasonDisabled:
		return true
	case strategy.Status != configv1alpha1.StrategySuccess:
		return ServesGenerated(tls)
	case serving == nil: // another program's agent
		return true
	case ServesGenerated(tls):
		return serving.Source == configv1alpha1.ServingCertificateGenerated
	default:
		return serving.Source == configv1alpha1.ServingCertificateSecret && serving.SecretName == tls.SecretName
	}
}
