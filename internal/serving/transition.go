package serving

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ServeAnnotation is the annotation of the CredentialIssuer with which an administrator says that a renewed certificate
// is to be served at once, whoever refuses it. Its value is the SHA-256 of that very certificate.
const ServeAnnotation = "ip-tls.pinniped.dev/serve"

// overlapMargin is for how long before the end of a certificate its successor is served in any case.
const overlapMargin = 24 * time.Hour

// Waiting is a renewed certificate that is not served yet.
type Waiting struct {
	Certificate *Certificate
	Until       time.Time // then it is served in any case
	Broken      Judgement // who would refuse it
}

// Renewal is what decides whether a renewed certificate waits.
type Renewal struct {
	// InService is what clients get now; on a replica that has just started, what they get from the others. nil is
	// nothing.
	InService *Certificate
	// History is what clients were told, and Endpoint the URL that they are told now; "" is none.
	History  History
	Endpoint string
	Spec     configv1alpha1.ImpersonationProxyTLSSpec
	Serve    string // the value of ServeAnnotation
	Now      time.Time
}

// Replaces says whether the certificate of e is another one than that in service, and may have to wait: one in the same
// Secret, and with DualTrust any other.
func (e Evaluation) Replaces(inService *Certificate, spec configv1alpha1.ImpersonationProxyTLSSpec) bool {
	return inService != nil && e.Certificate != nil && inService.SHA256() != e.Certificate.SHA256() &&
		(spec.CATransition == configv1alpha1.CATransitionDualTrust ||
			inService.Source == SourceExternal && inService.Secret == e.Certificate.Secret)
}

// Overlap lets the certificate of a renewal wait if clients would refuse it that accept the one in service. That one is
// served meanwhile, with the CA bundles of both: its clients go on, and new ones are ready for both.
func (e Evaluation) Overlap(in Renewal) Evaluation {
	if !e.Replaces(in.InService, in.Spec) || in.Spec.CATransition == configv1alpha1.CATransitionImmediate ||
		in.Serve == e.Certificate.SHA256() {
		return e
	}
	old, next := in.InService, e.Certificate
	oldChain, nextChain := old.Chain(), next.Chain()
	if len(in.History.Chain) > 0 && in.History.Chain[0].Equal(nextChain[0]) {
		return e // the leading replica serves it already
	}
	during := old.together(next)
	until := during.overlapEnds(in.Now)
	if !in.Now.Before(until) || !old.covers(next, e.wanted) {
		return e
	}
	history := in.History
	if in.Endpoint != "" { // what is in service counts, also where nothing is remembered
		state := Revision{
			Since: oldChain[0].NotBefore, Opened: oldChain[0].NotBefore, Endpoint: in.Endpoint, Bundle: old.Bundle,
			Names: NamesOf(oldChain),
		}
		if len(history.Revisions) == 0 && old.Own != nil {
			state.Bundle = old.Own
		}
		history = history.With(state)
	}
	if after := in.Spec.ActivateAfter; after != nil {
		history.Revisions = slices.DeleteFunc(slices.Clone(history.Revisions), func(s Revision) bool {
			return !s.Until.IsZero() && in.Now.Sub(s.Until) >= after.Duration && in.Now.Sub(s.LastUsed) >= after.Duration
		})
	}
	judged := Judge(Effect(
		history, Evidence{}, Served{Chain: oldChain}, Served{Chain: nextChain}, in.Now,
	))
	if judged.Refused {
		e.Certificate, e.Waiting = during, &Waiting{Certificate: next, Until: until, Broken: judged}
	}
	return e
}

// together returns the certificate as it is served while next waits: with a CA bundle for both.
func (m *Certificate) together(next *Certificate) *Certificate {
	during, own := *m, m.Bundle
	if m.Own != nil {
		own = m.Own
	}
	during.Bundle, during.Own = own, nil
	switch {
	case len(own) == 0: // the system roots: they cannot be told together with others
	case !certs.SameBundle(certs.UnionBundle(own, next.Bundle), own):
		during.Bundle, during.Own = certs.UnionBundle(own, next.Bundle), own
	}
	return &during
}

// overlapEnds returns until when clients that trust its CA bundle accept the certificate, less a margin for what is
// late. It is the zero time if they do not accept it now.
func (m *Certificate) overlapEnds(now time.Time) time.Time {
	chain := m.Chain()
	leaf, end := chain[0], chain[0].NotAfter
	if now.Before(leaf.NotBefore) {
		return time.Time{}
	}
	if len(m.Bundle) > 0 {
		roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
		members, _ := certs.ParseBundle(m.Bundle)
		for _, member := range members {
			roots.AddCert(member)
		}
		for _, intermediate := range chain[1:] {
			intermediates.AddCert(intermediate)
		}
		paths, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if err != nil {
			return time.Time{}
		}
		var latest time.Time
		for _, path := range paths {
			first := slices.MinFunc(path, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
			if first.NotAfter.After(latest) {
				latest = first.NotAfter
			}
		}
		end = latest
	}
	return end.Add(-min(overlapMargin, leaf.NotAfter.Sub(leaf.NotBefore)/10))
}

// covers says whether the certificate covers each of the names that clients use, as far as next does.
func (m *Certificate) covers(next *Certificate, wanted []certs.Name) bool {
	return !slices.ContainsFunc(wanted, func(name certs.Name) bool {
		return !name.Advisory && m.Certificate.Leaf.VerifyHostname(name.Value) != nil &&
			next.Certificate.Leaf.VerifyHostname(name.Value) == nil
	})
}

// maxSentences is how many kinds of clients a message names.
const maxSentences = 3

// Summarize says in one line which clients a change breaks, and why.
func Summarize(j Judgement) string {
	sentences := j.Sentences()
	if more := len(sentences) - maxSentences; more > 0 {
		sentences = append(sentences[:maxSentences], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(sentences, "; ")
}

// Message tells that the certificate waits: until when, what an administrator can do, and who would refuse it. namespace
// is the agent's.
func (w *Waiting) Message(namespace string) string {
	name := w.Certificate.Secret.String()
	if w.Certificate.Secret.Namespace == namespace {
		name = w.Certificate.Secret.Name
	}
	return fmt.Sprintf(
		"the certificate in Secret %s was renewed (SHA-256 %s), and waits until %s, or until nobody is left "+
			"who would refuse it (\"pinniped ip-tls clients\" lists them); the one before it is served meanwhile, with the CA "+
			"bundles of both; to serve it now: \"pinniped ip-tls set --secret %s --allow OldClientsBreak\"; it would be "+
			"refused by: %s",
		name,
		w.Certificate.SHA256(),
		w.Until.UTC().Format(time.RFC3339),
		name,
		Summarize(w.Broken),
	)
}
