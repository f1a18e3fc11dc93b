package serving

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The bounds of a History. Append evicts revisions without clients beyond them, and fails when only others are left.
const (
	MaxRevisions = 100
	MaxBytes     = 768 << 10
	// MaxUsedNames bounds how many names under a wildcard a Revision keeps.
	MaxUsedNames = 50
)

// ErrFull is returned by Append when every revision in the history has clients, and there is no room for another.
var ErrFull = errors.New("the revision history is full of revisions in use: " +
	"retire those no kubeconfig uses (\"pinniped ip-tls history\")")

// DefaultMemory is how long a revision is assumed to be in use after it was last published, unless the agent is
// configured otherwise.
const DefaultMemory = 365 * 24 * time.Hour

// Revision is what was published to clients for some time.
type Revision struct {
	ID string
	// Since is when it was first published, Until when it was last; a zero Until means that it is published now.
	Since, Until time.Time
	// Opened is when the last time began in which it was published.
	Opened time.Time
	// FirstUsed and LastUsed are when a client used the proxy while it was published, to the hour. Both are zero for a
	// revision that nobody has used: it has no clients.
	FirstUsed, LastUsed time.Time
	// Endpoint is the URL of the proxy.
	Endpoint string
	// Bundle is the trust bundle (PEM). It is empty where clients use their system roots.
	Bundle []byte
	// Lost are the fingerprints of the CA certificates in the trust bundle, if it is restored from a summary that does
	// not have the certificates themselves.
	Lost []string
	// Names are the DNS names and IP addresses that the certificate in service covered.
	Names []string
	// UsedNames are names under a wildcard of Names that clients used.
	UsedNames []string
	// Retired is when an administrator said that no kubeconfig has it any more; zero if nobody did since it was last
	// published again. It is for people: no decision depends on the clock that it comes from.
	Retired time.Time
	Change
}

// Change is the change of a CredentialIssuer's spec that led to a Revision.
type Change struct {
	// Spec is what the spec said; nil where that is not known.
	Spec *RevisionSpec
	// By is the field manager that changed it, ChangedAt when, by the clock of the API server.
	By        string
	ChangedAt time.Time
	// Outcome is what came of it.
	Outcome RevisionOutcome
}

// RevisionSpec is what of a CredentialIssuer's spec decides what is published.
type RevisionSpec struct {
	TLS              *configv1alpha1.ImpersonationProxyTLSSpec `json:"tls,omitempty"`
	ExternalEndpoint string                                    `json:"externalEndpoint,omitempty"`
	LoadBalancerIP   string                                    `json:"loadBalancerIP,omitempty"`
	// ServiceType is the type of the Service in front of the proxy; empty is not known.
	ServiceType configv1alpha1.ImpersonationProxyServiceType `json:"serviceType,omitempty"`
}

// RevisionOutcome says what came of the spec of a Revision.
type RevisionOutcome string

// The outcomes. One that was once in service stays so.
const (
	OutcomeInService RevisionOutcome = "InService"
	OutcomePrepared  RevisionOutcome = "Prepared"
	OutcomeRefused   RevisionOutcome = "Refused"
)

// HasClients reports whether somebody may have the revision.
func (s *Revision) HasClients() bool { return !s.LastUsed.IsZero() && !s.Ended() }

// Published is what is published to clients at one moment.
type Published struct {
	Endpoint string
	Bundle   []byte
	// Chain is the certificate in service, with its intermediates. It is empty when that is not known.
	Chain []*x509.Certificate
	// Names are the names that clients may use, where these are not all that Chain covers. Without names and chain, it
	// is the endpoint alone.
	Names []string
	// Change is the one that led to it.
	Change Change
}

// History is what was published, the latest Revision last.
type History struct {
	Revisions []Revision
	// Chain is the certificate that is or was last in service, leaf first. It is empty when it is not known.
	Chain []*x509.Certificate
}

// Ended says whether an administrator has said that no kubeconfig has the Revision any more.
func (s *Revision) Ended() bool { return !s.Retired.IsZero() }

// Retirement returns what an administrator adds to the ConfigMap of the history to retire the Revision. It holds for
// this publication only: one that is published again later counts again.
func (s *Revision) Retirement(at time.Time) (key, value string) {
	return RetiredPrefix + s.ID, moment(s.Opened) + "/" + moment(at)
}

// InUse reports whether a revision has clients.
func (h History) InUse() bool {
	return slices.ContainsFunc(h.Revisions, func(s Revision) bool { return s.HasClients() })
}

// Host is the name under which clients with the Revision verify the proxy; empty when the endpoint is no URL.
func (s *Revision) Host() string {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return ""
	}
	return strings.ToLower(at.Hostname())
}

// Append returns the history when this is published from now on. Published without an endpoint means that nothing is.
// Revisions that were last published or used longer ago than retention are dropped. The error is ErrFull; the history
// is then beyond its bounds.
func (h History) Append(published Published, now time.Time, retention time.Duration) (History, error) {
	now = now.UTC().Truncate(time.Second) // as it is kept
	next := History{Chain: published.Chain}
	if len(next.Chain) == 0 {
		next.Chain = h.Chain // who verified it counts, also while nothing is served
	}
	id, unknown := "", "" // with the spec that led to it, and where that is not known
	fresh := Revision{
		Since: now, Opened: now, Endpoint: published.Endpoint, Bundle: published.Bundle, Names: NamesOf(published.Chain),
		Change: published.Change,
	}
	if published.Endpoint != "" {
		if len(published.Names) > 0 {
			fresh.Names = canonical(published.Names)
		}
		if len(fresh.Names) == 0 {
			fresh.Names = []string{fresh.Host()}
		}
		id = fresh.identity()
		fresh.ID = id
		unknown = (&Revision{Endpoint: fresh.Endpoint, Bundle: fresh.Bundle, Names: fresh.Names}).identity()
	}
	for _, s := range h.Revisions {
		switch {
		case s.Until.IsZero() && (s.ID == id || s.Spec == nil && s.ID == unknown): // it goes on
			if s.Spec == nil {
				s.Change, s.ID = published.Change, id
			}
			if s.Outcome != OutcomeInService {
				s.Outcome = published.Change.Outcome
			}
			s.Bundle, s.Lost = published.Bundle, nil
			if s.Ended() && s.Outcome != OutcomePrepared { // kubeconfigs are made with it again
				s.Opened = laterOf(now, s.Opened.Add(time.Second))
				s.FirstUsed, s.LastUsed, s.UsedNames, s.Retired = time.Time{}, time.Time{}, nil, time.Time{}
			}
			fresh = s
			continue
		case s.ID == id: // it comes back
			fresh.Since = s.Since
			fresh.FirstUsed, fresh.LastUsed, fresh.UsedNames = s.FirstUsed, s.LastUsed, s.UsedNames
			if s.Ended() {
				fresh.FirstUsed, fresh.LastUsed, fresh.UsedNames = time.Time{}, time.Time{}, nil
			}
			continue
		case s.Until.IsZero():
			s.Until = now
		}
		if now.Sub(s.Until) < retention || !s.LastUsed.IsZero() && now.Sub(s.LastUsed) < retention {
			next.Revisions = append(next.Revisions, s)
		}
	}
	if id != "" {
		next.Revisions = append(next.Revisions, fresh)
	}
	return next.bounded()
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// bounded evicts revisions until the history has its permitted size: first those that nobody used, then those that an
// administrator has retired, in each case the one first that ended first. One with clients is never evicted.
func (h History) bounded() (History, error) {
	for len(h.Revisions) > MaxRevisions || len(h.Revisions) > 1 && h.size() > MaxBytes {
		evicted := -1
		for i := range h.Revisions {
			s := &h.Revisions[i]
			if s.Until.IsZero() || s.HasClients() {
				continue
			}
			if evicted < 0 || s.LastUsed.IsZero() && !h.Revisions[evicted].LastUsed.IsZero() ||
				s.LastUsed.IsZero() == h.Revisions[evicted].LastUsed.IsZero() && s.Until.Before(h.Revisions[evicted].Until) {
				evicted = i
			}
		}
		if evicted < 0 {
			return h, ErrFull
		}
		h.Revisions = slices.Delete(slices.Clone(h.Revisions), evicted, evicted+1)
	}
	return h, nil
}

// size returns how many bytes the history has as it is kept, or an upper bound if that is within the limit.
func (h History) size() int {
	size, seen := 0, map[string]bool{}
	for _, cert := range h.Chain {
		size += 2*len(cert.Raw) + 100
	}
	for i := range h.Revisions {
		s := &h.Revisions[i]
		size += 1200 + len(s.Endpoint) + 70*len(s.Lost) + 70*bytes.Count(s.Bundle, []byte("-----BEGIN"))
		for _, name := range slices.Concat(s.Names, s.UsedNames) {
			size += len(name) + 3
		}
		texts := []string{string(s.Bundle)}
		if s.Spec != nil && s.Spec.TLS != nil {
			texts = append(texts, s.Spec.TLS.CertificateAuthorityData)
		}
		for _, text := range texts {
			if !seen[text] {
				seen[text] = true
				size += len(text)
			}
		}
	}
	if size <= MaxBytes {
		return size
	}
	return len(h.Encode())
}

// useInterval is how coarsely uses are kept.
const useInterval = time.Hour

// Used returns the history when a client has used the proxy by a name while the revision with this ID was published.
// The name may be empty. changed is false where the history says so already.
func (h History) Used(id, name string, at time.Time) (next History, changed bool) {
	at = at.UTC().Truncate(useInterval)
	for i := range h.Revisions {
		s := h.Revisions[i]
		if s.ID != id {
			continue
		}
		if s.FirstUsed.IsZero() {
			s.FirstUsed, changed = at, true
		}
		if at.After(s.LastUsed) {
			s.LastUsed, changed = at, true
		}
		if name = sameCase(name); s.underWildcard(name) && len(s.UsedNames) < MaxUsedNames {
			s.UsedNames, changed = canonical(append(slices.Clone(s.UsedNames), name)), true
		}
		if changed {
			h.Revisions = slices.Clone(h.Revisions)
			h.Revisions[i] = s
		}
		return h, changed
	}
	return h, false
}

// underWildcard reports whether a client that uses the name is not yet one of the revision, and would be covered.
func (s *Revision) underWildcard(name string) bool {
	if name == "" || slices.Contains(s.Names, name) || slices.Contains(s.UsedNames, name) {
		return false
	}
	_, parent, found := strings.Cut(name, ".")
	return found && slices.Contains(s.Names, "*."+parent)
}

func sameCase(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// Restore returns the history with revisions that a summary of it lists and it lacks: it was lost, or an old copy was
// put back. A trust bundle is put together from the certificates in the history and in known, as far as they are
// there. Where something is missing, the revision counts as used.
func (h History) Restore(summary []Revision, known []byte) (History, bool) {
	certificates := h.certificates(known)
	next, changed := History{Chain: h.Chain, Revisions: slices.Clone(h.Revisions)}, false
	for _, s := range summary {
		if i := slices.IndexFunc(next.Revisions, func(have Revision) bool { return have.ID == s.ID }); i >= 0 {
			if have := &next.Revisions[i]; have.LastUsed.Before(s.LastUsed) {
				have.LastUsed, changed = s.LastUsed, true
				if have.FirstUsed.IsZero() {
					have.FirstUsed = s.LastUsed
				}
			}
			continue
		}
		var bundle []byte
		for _, fingerprint := range s.Lost {
			if cert := certificates[fingerprint]; cert != nil {
				bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
			} else {
				bundle = nil
				break
			}
		}
		if len(bundle) > 0 {
			s.Bundle, s.Lost = bundle, nil
		}
		s.Opened = s.Since
		if !s.LastUsed.IsZero() {
			s.FirstUsed = s.LastUsed
		}
		at := slices.IndexFunc(next.Revisions, func(have Revision) bool { return have.Until.IsZero() })
		if at < 0 {
			at = len(next.Revisions)
		} else if s.Until.IsZero() { // the history goes on since
			s.Until = next.Revisions[at].Opened
		}
		next.Revisions, changed = slices.Insert(next.Revisions, at, s), true
	}
	return next, changed
}

// certificates returns the CA certificates in the history and in known, by their fingerprints.
func (h History) certificates(known []byte) map[string]*x509.Certificate {
	all := map[string]*x509.Certificate{}
	add := func(bundle []byte) {
		members, _ := certs.ParseBundle(bundle)
		for _, member := range members {
			all[certs.Fingerprint(member.Raw)] = member
		}
	}
	add(known)
	for i := range h.Revisions {
		add(h.Revisions[i].Bundle)
	}
	return all
}

// With returns the history with a Revision added that somebody else knows of, such as the status of the
// CredentialIssuer. Unless it says otherwise, it counts as used. One that is there already stays as it is.
func (h History) With(s Revision) History {
	s.ID = s.identity()
	known := slices.ContainsFunc(h.Revisions, func(other Revision) bool {
		return other.ID == s.ID || other.Endpoint == s.Endpoint && certs.SameBundle(other.Bundle, s.Bundle) &&
			(slices.Equal(other.Names, s.Names) || len(s.Names) == 1 && slices.Contains(other.Names, s.Names[0]))
	})
	if known {
		return h
	}
	if s.LastUsed.IsZero() {
		s.FirstUsed, s.LastUsed = assumed(s.Since), assumed(s.Since)
	}
	h.Revisions = append(slices.Clone(h.Revisions), s)
	return h
}

// assumed is a time of use where only the time of publication is known, if that.
func assumed(since time.Time) time.Time {
	if since.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return since
}

// Current returns the Revision that is published now, or nil.
func (h History) Current() *Revision {
	for i := range h.Revisions {
		if h.Revisions[i].Until.IsZero() {
			return &h.Revisions[i]
		}
	}
	return nil
}

// Find returns the Revision with an ID, or with the only ID that begins like that; nil when there is none or more
// than one.
func (h History) Find(id string) *Revision {
	var found *Revision
	for i := range h.Revisions {
		if h.Revisions[i].ID == id {
			return &h.Revisions[i]
		}
		if id != "" && strings.HasPrefix(h.Revisions[i].ID, id) {
			if found != nil {
				return nil
			}
			found = &h.Revisions[i]
		}
	}
	return found
}

// identity is the same for revisions that clients cannot tell apart, and that the same spec led to.
func (s *Revision) identity() string {
	names := slices.Clone(s.Names)
	slices.Sort(names)
	parts := slices.Concat([]string{s.Endpoint}, s.Fingerprints(), []string{""}, names)
	if s.Spec != nil {
		spec := *s.Spec
		if spec.TLS != nil { // how it replaces another one does not matter
			spec.TLS = spec.TLS.DeepCopy()
			spec.TLS.CATransition, spec.TLS.ActivateAfter = "", nil
		}
		encoded, _ := json.Marshal(spec) // it holds only text
		parts = append(parts, string(encoded))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:5])
}

// Fingerprints are the SHA-256 fingerprints of the certificates in the CA bundle, sorted; none for the system roots.
func (s *Revision) Fingerprints() []string {
	if len(s.Lost) > 0 {
		return s.Lost
	}
	return fingerprints(s.Bundle)
}

func fingerprints(bundle []byte) []string {
	members, _ := certs.ParseBundle(bundle)
	all := make([]string, 0, len(members))
	for _, member := range members {
		all = append(all, certs.Fingerprint(member.Raw))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// NamesOf returns the DNS names and IP addresses that a certificate covers, as clients spell them.
func NamesOf(chain []*x509.Certificate) []string {
	if len(chain) == 0 {
		return nil
	}
	names := slices.Clone(chain[0].DNSNames)
	for _, ip := range chain[0].IPAddresses {
		names = append(names, ip.String())
	}
	return canonical(names)
}

// canonical returns names as clients spell them, sorted, each once.
func canonical(names []string) []string {
	all := make([]string, 0, len(names))
	for _, name := range names {
		if address, err := netip.ParseAddr(name); err == nil {
			all = append(all, address.Unmap().String())
		} else {
			all = append(all, strings.ToLower(strings.TrimSuffix(name, ".")))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
