// Package serving decides which certificate the impersonation proxy serves and which trust bundle it publishes. It is
// pure: it reads no cluster, file or clock. The agent and the CLI share it.
//
// A Revision is what is published during some period: the endpoint, the trust bundle, and the names that the
// certificate in service covers. Kubeconfigs made in that period contain it. The agent appends every Revision to a
// History before it publishes it.
//
// Resolve reads the spec of a CredentialIssuer. External checks the certificate that it names. Evaluate decides whether
// that certificate is served, waits, or is refused. Effect determines which clients verify before and after a change,
// and Judge whether the change breaks any.
package serving

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// transitionMargin is how long before the old certificate expires its successor is served in any case.
const transitionMargin = 24 * time.Hour

// Waiting is a certificate that is not served yet because it would break clients.
type Waiting struct {
	Certificate *Certificate
	Until       time.Time // when it is served in any case
	Broken      Judgement // the clients that it would break
}

// Situation is the input of Evaluate other than the certificate.
type Situation struct {
	// InService is what clients get now, from this replica or from others if it has just started. nil means nothing.
	InService *Certificate
	// Revisions returns the history of published revisions. known is false if the history is unreliable.
	Revisions func() (h History, known bool)
	// Endpoint is the URL that is published now, or "".
	Endpoint string
	TLS      configv1alpha1.ImpersonationProxyTLSSpec
	Now      time.Time
	// Retention is how long a revision is assumed to be in use after it was last published or used.
	Retention time.Duration
	// Leads is true on the leader; the other replicas serve what it serves.
	Leads bool
}

// Evaluate decides what happens to a certificate that can be served: it is served; or it waits, while the certificate
// in service is served with the trust bundles of both (dual trust); or it is refused.
func Evaluate(e Evaluation, in Situation) Evaluation {
	old, next := in.InService, e.Certificate
	switch {
	case old == nil || next == nil:
		return e
	case len(e.tolerated) > 0 && old.serves(e.wanted, in.Now):
		return e.refusedAsWorse()
	case old.Source == SourceGenerated && next.Source == SourceGenerated:
		return e // they have the same CA
	case old.Fallback:
		return e
	}
	sameSecret := old.Source == SourceExternal && next.Source == SourceExternal && old.Secret == next.Secret
	if in.TLS.CATransition == configv1alpha1.CATransitionImmediate ||
		in.TLS.CATransition != configv1alpha1.CATransitionDualTrust && !sameSecret {
		return e
	}
	if old.SHA256() == next.SHA256() && certs.SameBundle(old.own(), next.Bundle) {
		return e
	}
	history, _ := in.Revisions()
	if sameSecret {
		e, next = e.withBundleOf(old, history, in)
	}
	if !in.Leads && len(history.Chain) > 0 && history.Chain[0].Equal(next.Certificate.Leaf) &&
		old.SHA256() != next.SHA256() {
		return e // the leader serves it already
	}
	if old.SHA256() != next.SHA256() {
		e = e.waitIfBroken(in)
	}
	return e.refusedIfFull(history, in)
}

// refusedAsWorse refuses a certificate with tolerated errors in favor of the one in service.
func (e Evaluation) refusedAsWorse() Evaluation {
	refusal := e.tolerated[0]
	refusal.Hint = strings.TrimPrefix(refusal.Hint+"; "+hintWarn, "; ")
	isTolerated := func(warning certs.Finding) bool {
		return slices.ContainsFunc(
			e.tolerated,
			func(f certs.Finding) bool { return f.Code == warning.Code && f.Message == warning.Message },
		)
	}
	return Evaluation{
		Refusal: &Refusal{Finding: refusal}, Further: slices.Clone(e.tolerated[1:]),
		Warnings: slices.DeleteFunc(slices.Clone(e.Warnings), isTolerated),
	}
}

// withBundleOf keeps publishing the trust bundle if ca.crt has disappeared from the Secret. Otherwise new clients would
// verify the certificate with their system roots, and fail.
func (e Evaluation) withBundleOf(old *Certificate, h History, in Situation) (Evaluation, *Certificate) {
	next, current, bundle := e.Certificate, h.Current(), old.own()
	if len(next.Bundle) > 0 || len(bundle) == 0 || in.TLS.CertificateAuthorityData != "" || current == nil ||
		len(current.Fingerprints()) == 0 || current.Spec == nil || !reflect.DeepEqual(current.Spec.TLS, &in.TLS) {
		return e, next
	}
	served := Served{Chain: next.Chain()}
	if served.chain(bundle, in.Now) != "" {
		return e, next
	}
	kept := *next
	kept.Bundle = bundle
	finding := certs.NewFinding(
		certs.BundleEmpty,
		"ca.crt has disappeared from the Secret; the previous trust bundle is "+
			"still published",
	)
	finding.Severity = certs.SeverityWarning
	finding.Hint = `put ca.crt back, or use the system roots: "pinniped ip-tls set --system-roots"`
	e.Certificate, e.Warnings = &kept, append(slices.Clone(e.Warnings), finding)
	return e, &kept
}

// waitIfBroken makes the certificate wait if it would break clients in use.
func (e Evaluation) waitIfBroken(in Situation) Evaluation {
	old, next := in.InService, e.Certificate
	during := old.together(next)
	until := during.transitionEnds(in.Now)
	if !in.Now.Before(until) || !old.covers(next, e.wanted) {
		return e
	}
	if broken := in.Breaks(next); broken.Refused {
		e.Certificate, e.Waiting = during, &Waiting{Certificate: next, Until: until, Broken: broken}
	}
	return e
}

// Breaks returns which clients would break if next were served now.
func (in Situation) Breaks(next *Certificate) Judgement {
	history, known := in.Revisions()
	now := Served{Chain: history.Chain}
	if old := in.InService; old != nil {
		now.Chain = old.Chain()
		if in.Endpoint != "" { // clients of the certificate in service count even without a history
			revision := Revision{
				Since: now.Chain[0].NotBefore, Opened: now.Chain[0].NotBefore, Endpoint: in.Endpoint, Bundle: old.Bundle,
				Names: NamesOf(now.Chain),
			}
			if old.Source == SourceGenerated {
				revision.Names = []string{revision.Host()} // its other names are addresses that are not published
			}
			if len(history.Revisions) == 0 {
				revision.Bundle = old.own()
			}
			if !known { // earlier clients may have only the CA that verifies it
				revision.Bundle = verifying(revision.Bundle, now, in.Now)
			}
			history = history.With(revision)
		}
	}
	if after := in.TLS.ActivateAfter; after != nil {
		history.Revisions = slices.DeleteFunc(slices.Clone(history.Revisions), func(s Revision) bool {
			return !s.Until.IsZero() && in.Now.Sub(s.Until) >= after.Duration && in.Now.Sub(s.LastUsed) >= after.Duration
		})
	}
	return Judge(Effect(history, now, Served{Chain: next.Chain()}, in.Now))
}

// verifying returns the members of a trust bundle each of which verifies what is served on its own.
func verifying(bundle []byte, served Served, at time.Time) []byte {
	members, _ := certs.ParseBundle(bundle)
	var all []byte
	for _, member := range members {
		one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: member.Raw})
		if served.chain(one, at) == "" {
			all = append(all, one...)
		}
	}
	return all
}

// refusedIfFull refuses a change that does not fit into the history, because its clients could not be recorded.
func (e Evaluation) refusedIfFull(h History, in Situation) Evaluation {
	current, publish := h.Current(), e.Certificate
	if in.Endpoint == "" || current == nil || certs.SameBundle(current.Bundle, publish.Bundle) {
		return e
	}
	published := Published{Endpoint: in.Endpoint, Bundle: publish.Bundle, Chain: publish.Chain()}
	_, err := h.Append(published, in.Now, in.Retention)
	if !errors.Is(err, ErrFull) {
		return e
	}
	return Evaluation{
		Warnings: e.Warnings, Further: e.Further, wanted: e.wanted,
		Refusal: &Refusal{Finding: certs.Finding{
			Code: configv1alpha1.CodeRevisionsNotKept, Severity: certs.SeverityError, Message: err.Error(),
		}},
	}
}

// own returns the trust bundle that came with the certificate.
func (m *Certificate) own() []byte {
	if m.Own != nil {
		return m.Own
	}
	return m.Bundle
}

// together returns the certificate as it is served while next waits: with the trust bundles of both.
func (m *Certificate) together(next *Certificate) *Certificate {
	during, own := *m, m.own()
	during.Bundle, during.Own = own, nil
	switch {
	case len(own) == 0: // system roots cannot be published together with others
	case !certs.SameBundle(certs.UnionBundle(own, next.Bundle), own):
		during.Bundle, during.Own = certs.UnionBundle(own, next.Bundle), own
	}
	return &during
}

// transitionEnds returns until when clients that trust the published bundle accept the certificate, less a margin. It
// returns the zero time if they do not accept it now.
func (m *Certificate) transitionEnds(now time.Time) time.Time {
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
	return end.Add(-min(transitionMargin, leaf.NotAfter.Sub(leaf.NotBefore)/10))
}

// covers reports whether the certificate covers every name that clients use and next covers.
func (m *Certificate) covers(next *Certificate, wanted []certs.Name) bool {
	return !slices.ContainsFunc(wanted, func(name certs.Name) bool {
		return !name.Advisory && m.Certificate.Leaf.VerifyHostname(name.Value) != nil &&
			next.Certificate.Leaf.VerifyHostname(name.Value) == nil
	})
}

// maxSentences is how many groups of clients a message lists.
const maxSentences = 3

// Summarize says in one line which clients a change breaks and why.
func Summarize(j Judgement) string {
	sentences := j.Sentences()
	if more := len(sentences) - maxSentences; more > 0 {
		sentences = append(sentences[:maxSentences], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(sentences, "; ")
}

// Message says until when the certificate waits, how to serve it now, and which clients do not verify it. namespace is
// the agent's.
func (w *Waiting) Message(namespace string) string {
	what, command := "the generated certificate", "unset"
	if w.Certificate.Source == SourceExternal {
		name := w.Certificate.Secret.String()
		if w.Certificate.Secret.Namespace == namespace {
			name = w.Certificate.Secret.Name
		}
		what, command = "the certificate in Secret "+name, "set --secret "+name
	}
	return fmt.Sprintf(
		"%s (SHA-256 %s) waits until %s, or until every client in use verifies it (\"pinniped ip-tls history\" lists them); "+
			"meanwhile, the agent serves the old certificate and publishes both trust bundles; to serve the new certificate "+
			"now: \"pinniped ip-tls %s --allow OldClientsBreak\"; clients that do not verify it: %s",
		what,
		w.Certificate.SHA256(),
		w.Until.UTC().Format(time.RFC3339),
		command,
		Summarize(w.Broken),
	)
}
