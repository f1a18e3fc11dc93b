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

// The limits of a History. Above them, Append evicts revisions without clients.
const (
	MaxRevisions = 100
	MaxBytes     = 768 << 10
	// MaxUsedNames limits how many names under a wildcard a Revision keeps.
	MaxUsedNames = 50
)

// ErrFull is returned by Append if the history is above its limits and every revision has clients.
var ErrFull = errors.New("the revision history is full, and all its revisions count as in use: retire those that no " +
	"kubeconfig contains (\"pinniped ip-tls history\")")

// DefaultRetention is how long a revision is assumed to be in use after it was last published or used, unless the agent is
// configured otherwise.
const DefaultRetention = 365 * 24 * time.Hour

// Revision is what was published to clients during some period.
type Revision struct {
	ID string
	// Since is when it was first published, Until when publication ended; zero while it is published.
	Since, Until time.Time
	// Opened is when its latest publication began.
	Opened time.Time
	// FirstUsed and LastUsed are when clients used the proxy while it was published, truncated to the hour. Both are
	// zero for a revision that was never used: it has no clients.
	FirstUsed, LastUsed time.Time
	// Endpoint is the URL of the proxy.
	Endpoint string
	// Bundle is the trust bundle (PEM). It is empty if clients use their system roots.
	Bundle []byte
	// Lost are the fingerprints of the CA certificates in the trust bundle, if the revision was restored from a summary
	// without the certificates.
	Lost []string
	// Names are the DNS names and IP addresses that the certificate in service covered.
	Names []string
	// UsedNames are the names under a wildcard in Names that clients used.
	UsedNames []string
	// Retired is when an administrator retired the revision; zero if it is not retired, or was published again since.
	// The time is for display only: the administrator's clock may be wrong.
	Retired time.Time
	Change
}

// Change is the change of a CredentialIssuer's spec that caused a Revision.
type Change struct {
	// Spec is the spec after the change; nil if unknown.
	Spec *RevisionSpec
	// By is the field manager of the change, ChangedAt its time by the API server's clock.
	By        string
	ChangedAt time.Time
	// Outcome is the result of the change.
	Outcome RevisionOutcome
}

// RevisionSpec is the part of a CredentialIssuer's spec that determines what is published.
type RevisionSpec struct {
	TLS              *configv1alpha1.ImpersonationProxyTLSSpec `json:"tls,omitempty"`
	ExternalEndpoint string                                    `json:"externalEndpoint,omitempty"`
	LoadBalancerIP   string                                    `json:"loadBalancerIP,omitempty"`
	// ServiceType is the type of the Service in front of the proxy; empty if unknown.
	ServiceType configv1alpha1.ImpersonationProxyServiceType `json:"serviceType,omitempty"`
}

// RevisionOutcome is the result of the spec of a Revision.
type RevisionOutcome string

// The values of RevisionOutcome. A revision that was once InService stays so.
const (
	OutcomeInService RevisionOutcome = "InService"
	OutcomePrepared  RevisionOutcome = "Prepared"
	OutcomeRefused   RevisionOutcome = "Refused"
)

// HasClients reports whether clients may have the revision: it was used and is not retired.
func (s *Revision) HasClients() bool { return !s.LastUsed.IsZero() && !s.Ended() }

// Published is what is published to clients at one point in time.
type Published struct {
	Endpoint string
	Bundle   []byte
	// Chain is the certificate in service, with its intermediates. It is empty if unknown.
	Chain []*x509.Certificate
	// Names are the names that clients may use; if empty, all that Chain covers; without Chain, the host of Endpoint.
	Names []string
	// Change is the change that caused it.
	Change Change
}

// History is the list of published revisions, the latest last.
type History struct {
	Revisions []Revision
	// Chain is the certificate in service, or the last one that was, leaf first. It is empty if unknown.
	Chain []*x509.Certificate
}

// Ended reports whether an administrator has retired the Revision.
func (s *Revision) Ended() bool { return !s.Retired.IsZero() }

// Retirement returns the key and value that retire the Revision in the ConfigMap of the history. They apply to this
// publication only, not to a later one.
func (s *Revision) Retirement(at time.Time) (key, value string) {
	return RetiredPrefix + s.ID, moment(s.Opened) + "/" + moment(at)
}

// InUse reports whether any revision has clients.
func (h History) InUse() bool {
	return slices.ContainsFunc(h.Revisions, func(s Revision) bool { return s.HasClients() })
}

// Host is the name for which clients with the Revision verify the proxy; empty if the endpoint is not a valid URL.
func (s *Revision) Host() string {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return ""
	}
	return strings.ToLower(at.Hostname())
}

// Append returns the history after published has been published at now; an empty endpoint means that nothing is. It
// drops revisions that were last published and used longer ago than retention. If it returns ErrFull, the returned
// history exceeds its limits.
func (h History) Append(published Published, now time.Time, retention time.Duration) (History, error) {
	now = now.UTC().Truncate(time.Second) // the stored precision
	next := History{Chain: published.Chain}
	if len(next.Chain) == 0 {
		next.Chain = h.Chain // its clients still count while nothing is served
	}
	id, unknown := "", "" // the IDs with the spec, and without one
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
		case s.Until.IsZero() && (s.ID == id || s.Spec == nil && s.ID == unknown): // it stays published
			if s.Spec == nil {
				s.Change, s.ID = published.Change, id
			}
			if s.Outcome != OutcomeInService {
				s.Outcome = published.Change.Outcome
			}
			s.Bundle, s.Lost = published.Bundle, nil
			if s.Ended() && s.Outcome != OutcomePrepared { // kubeconfigs can be made with it again
				s.Opened = laterOf(now, s.Opened.Add(time.Second))
				s.FirstUsed, s.LastUsed, s.UsedNames, s.Retired = time.Time{}, time.Time{}, nil, time.Time{}
			}
			fresh = s
			continue
		case s.ID == id: // it is published again
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

// bounded evicts revisions until the history is within its limits: first those that were never used, then retired ones,
// the earliest to end first. It never evicts one with clients.
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

// size returns the size of the stored history in bytes, or an upper bound if that is within the limit.
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

// useInterval is the precision of recorded uses.
const useInterval = time.Hour

// Used records that a client used the proxy by this name (which may be empty) while the revision with this ID was
// published. changed is false if the history has that already.
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

// underWildcard reports whether a wildcard of the revision covers this name and the name is not recorded yet.
func (s *Revision) underWildcard(name string) bool {
	if name == "" || slices.Contains(s.Names, name) || slices.Contains(s.UsedNames, name) {
		return false
	}
	_, parent, found := strings.Cut(name, ".")
	return found && slices.Contains(s.Names, "*."+parent)
}

func sameCase(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// Restore adds the revisions in summary that the history lacks because it was lost or replaced by an old copy. It
// reassembles their trust bundles from the certificates in the history and in known (PEM). If any is missing, the
// bundle stays in Revision.Lost.
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
		} else if s.Until.IsZero() { // the history began again then
			s.Until = next.Revisions[at].Opened
		}
		next.Revisions, changed = slices.Insert(next.Revisions, at, s), true
	}
	return next, changed
}

// certificates returns the CA certificates in the history and in known (PEM), by fingerprint.
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

// With returns the history with a Revision from another source, such as the status of the CredentialIssuer. Unless
// LastUsed is set, it counts as used. A revision that the history already has stays unchanged.
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

// assumed returns the assumed time of use of a revision: that of its publication, or 1970 if unknown.
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

// Find returns the Revision with this ID or unambiguous prefix of an ID; nil if there is none.
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

// identity hashes what clients can see of a revision, and its spec.
func (s *Revision) identity() string {
	names := slices.Clone(s.Names)
	slices.Sort(names)
	parts := slices.Concat([]string{s.Endpoint}, s.Fingerprints(), []string{""}, names)
	if s.Spec != nil {
		spec := *s.Spec
		if spec.TLS != nil { // how it replaces the previous one does not matter
			spec.TLS = spec.TLS.DeepCopy()
			spec.TLS.CATransition, spec.TLS.ActivateAfter = "", nil
		}
		encoded, _ := json.Marshal(spec) // cannot fail: only text
		parts = append(parts, string(encoded))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return hex.EncodeToString(sum[:5])
}

// Fingerprints returns the SHA-256 fingerprints of the trust bundle, sorted; none for the system roots.
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

// NamesOf returns the DNS names and IP addresses that a certificate covers, in canonical form.
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

// canonical returns names in lower case without a trailing dot, sorted and deduplicated.
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
