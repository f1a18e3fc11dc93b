package serving

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The bounds of a History. What is beyond them is dropped, the State first whose time ended first.
const (
	MaxRevisions = 20
	MaxBytes     = 256 << 10
)

// DefaultMemory is for how long a State is remembered after it was advertised last, unless the agent is configured
// otherwise.
const DefaultMemory = 365 * 24 * time.Hour

// State is what clients were told for some time.
type Revision struct {
	ID string
	// Since is when it was first advertised, Until when it was last; a zero Until means that it is advertised now.
	Since, Until time.Time
	// Opened is when the last time began in which it was advertised, Before for how long it was before that.
	Opened time.Time
	Before time.Duration
	// Endpoint is the URL that clients were given.
	Endpoint string
	// Bundle is the CA bundle (PEM) that clients verify with. It is empty where they use their system roots.
	Bundle []byte
	// Names are the DNS names and IP addresses that the certificate in service covered.
	Names []string
	// Retired is when an administrator said that no kubeconfig has it any more; zero if nobody did.
	Retired time.Time
}

// Told is what clients are told at one moment.
type Published struct {
	Endpoint string
	Bundle   []byte
	// Chain is the certificate in service, with its intermediates. It is empty when that is not known.
	Chain []*x509.Certificate
	// Names are the names that clients may use, where these are not all that Chain covers. Without names and chain, it is the
	// endpoint alone.
	Names []string
}

// History is what clients were told, the latest State last.
type History struct {
	Revisions []Revision
	// Chain is the certificate in service, leaf first. It is empty when nothing is served, or it is not known.
	Chain []*x509.Certificate
}

// Ended says whether nobody is to be expected any more who has the State. One that was advertised again since it was
// retired, perhaps in the same second, has not ended.
func (s *Revision) Ended() bool {
	return !s.Until.IsZero() && !s.Until.After(s.Retired) && s.Opened.Before(s.Retired)
}

// For is for how long it was advertised in all. It stands for how many kubeconfigs there are with it.
func (s *Revision) For(now time.Time) time.Duration {
	until := s.Until
	if until.IsZero() {
		until = now
	}
	return s.Before + max(until.Sub(s.Opened), 0)
}

// Host is the name under which clients with the State verify the proxy; empty when the endpoint is no URL.
func (s *Revision) Host() string {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return ""
	}
	return strings.ToLower(at.Hostname())
}

// Observe returns the history when clients are told this from now on. Told without an endpoint means that they are told
// nothing. States that ended longer ago than memory are dropped.
func (h History) Append(told Published, now time.Time, memory time.Duration) History {
	now = now.UTC().Truncate(time.Second) // as it is kept
	next := History{Chain: told.Chain}
	id := ""
	fresh := Revision{Since: now, Opened: now, Endpoint: told.Endpoint, Bundle: told.Bundle, Names: NamesOf(told.Chain)}
	if told.Endpoint != "" {
		if len(told.Names) > 0 {
			fresh.Names = canonical(told.Names)
		}
		if len(fresh.Names) == 0 {
			fresh.Names = []string{fresh.Host()}
		}
		id = fresh.identity()
		fresh.ID = id
	}
	for _, s := range h.Revisions {
		switch {
		case s.ID == id && s.Until.IsZero(): // it goes on
			fresh = s
			continue
		case s.ID == id: // it comes back
			fresh.Since, fresh.Before = s.Since, s.For(now)
			continue
		case s.Until.IsZero():
			s.Until = now
		}
		if now.Sub(s.Until) < memory {
			next.Revisions = append(next.Revisions, s)
		}
	}
	if id != "" {
		next.Revisions = append(next.Revisions, fresh)
	}
	return next.bounded()
}

// bounded drops what ended first, until the history has its permitted size.
func (h History) bounded() History {
	for len(h.Revisions) > MaxRevisions || len(h.Revisions) > 1 && len(h.Encode()) > MaxBytes {
		oldest := 0
		for i, s := range h.Revisions {
			if !s.Until.IsZero() && (h.Revisions[oldest].Until.IsZero() || s.Until.Before(h.Revisions[oldest].Until)) {
				oldest = i
			}
		}
		h.Revisions = slices.Delete(slices.Clone(h.Revisions), oldest, oldest+1)
	}
	return h
}

// With returns the history with a State added that somebody else remembers, such as the status of the CredentialIssuer
// or the record of a rotation. One that is remembered already stays as it is.
func (h History) With(s Revision) History {
	s.ID = s.identity()
	known := slices.ContainsFunc(h.Revisions, func(other Revision) bool {
		return other.ID == s.ID || other.Endpoint == s.Endpoint && certs.SameBundle(other.Bundle, s.Bundle) &&
			len(s.Names) == 1 && slices.Contains(other.Names, s.Names[0])
	})
	if known {
		return h
	}
	h.Revisions = append(slices.Clone(h.Revisions), s)
	return h
}

// Current returns the State that is advertised now, or nil.
func (h History) Current() *Revision {
	for i := range h.Revisions {
		if h.Revisions[i].Until.IsZero() {
			return &h.Revisions[i]
		}
	}
	return nil
}

// Find returns the State with an ID, or with the only ID that begins like that; nil when there is none or more than one.
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

// identity is the same for States that clients cannot tell apart.
func (s *Revision) identity() string {
	names := slices.Clone(s.Names)
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{s.Endpoint}, slices.Concat(
		fingerprints(s.Bundle), []string{""}, names)...), "\n")))
	return hex.EncodeToString(sum[:5])
}

// Fingerprints are the SHA-256 fingerprints of the certificates in the CA bundle, sorted; none for the system roots.
func (s *Revision) Fingerprints() []string { return fingerprints(s.Bundle) }

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

// The keys of the ConfigMap in which a History is kept. The agent writes the first. An administrator's retirement of a
// State is a key of its own, the prefix and the ID of the State, with the time of the retirement (RFC 3339), so that two
// writers never overwrite each other.
const (
	RevisionsKey  = "revisions.json"
	RetiredPrefix = "retired."
)

// Read returns the History in the data of its ConfigMap. Without any, it is empty.
func Read(data map[string]string) (History, error) {
	content, found := data[RevisionsKey]
	if !found {
		return History{}, nil
	}
	h, err := Decode([]byte(content))
	if err != nil {
		return History{}, err
	}
	for i := range h.Revisions {
		if at, err := time.Parse(time.RFC3339, data[RetiredPrefix+h.Revisions[i].ID]); err == nil {
			h.Revisions[i].Retired = at
		}
	}
	return h, nil
}

// document is the form in which a History is kept. Equal bundles stand in it once.
type document struct {
	Version int               `json:"version"`
	States  []documentState   `json:"states"`
	Bundles map[string]string `json:"bundles,omitempty"`
	Serving string            `json:"serving,omitempty"`
}

type documentState struct {
	ID       string    `json:"id"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until,omitzero"`
	Opened   time.Time `json:"opened"`
	Before   int64     `json:"beforeSeconds,omitempty"`
	Endpoint string    `json:"endpoint"`
	Bundle   string    `json:"bundle,omitempty"`
	Names    []string  `json:"names,omitempty"`
}

const documentVersion = 1

// Encode returns the history as it is kept. Retirements are kept beside it: see RetiredPrefix.
func (h History) Encode() []byte {
	doc := document{Version: documentVersion, States: []documentState{}, Bundles: map[string]string{}}
	for _, s := range h.Revisions {
		key := ""
		if len(bytes.TrimSpace(s.Bundle)) > 0 {
			sum := sha256.Sum256(s.Bundle)
			key = hex.EncodeToString(sum[:8])
			doc.Bundles[key] = string(s.Bundle)
		}
		doc.States = append(doc.States, documentState{
			ID: s.ID, Since: s.Since, Until: s.Until, Opened: s.Opened, Before: int64(s.Before / time.Second),
			Endpoint: s.Endpoint, Bundle: key, Names: s.Names,
		})
	}
	for _, cert := range h.Chain {
		doc.Serving += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	encoded, err := json.Marshal(doc)
	if err != nil {
		panic(err) // it holds only text and times
	}
	return encoded
}

// Decode reads what Encode has written. Fields that a later version has added are not looked at.
func Decode(content []byte) (History, error) {
	var doc document
	if err := json.Unmarshal(content, &doc); err != nil {
		return History{}, fmt.Errorf("reading what clients were told: %w", err)
	}
	if doc.Version != documentVersion {
		return History{}, fmt.Errorf("reading what clients were told: its version is %d, and this program knows version %d",
			doc.Version, documentVersion)
	}
	var h History
	for _, s := range doc.States {
		bundle, known := doc.Bundles[s.Bundle]
		if s.Bundle != "" && !known {
			return History{}, fmt.Errorf("reading what clients were told: state %q has no CA bundle", s.ID)
		}
		h.Revisions = append(h.Revisions, Revision{
			ID: s.ID, Since: s.Since, Until: s.Until, Opened: s.Opened, Before: time.Duration(s.Before) * time.Second,
			Endpoint: s.Endpoint, Bundle: []byte(bundle), Names: s.Names,
		})
	}
	h.Chain, _ = certs.ParseBundle([]byte(doc.Serving))
	return h, nil
}
