package serving

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The keys of the ConfigMap that stores a History. The agent writes RevisionsKey. When an administrator retires a
// Revision, the CLI adds the key RetiredPrefix+ID, so the two writers never overwrite each other. Its value is
// Revision.Opened and the time of retirement (RFC 3339, "OPENED/AT").
const (
	RevisionsKey  = "revisions.json"
	RetiredPrefix = "retired."
)

// Read returns the History in the data of its ConfigMap, or an empty one if there is none.
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
		opened, at, _ := strings.Cut(data[RetiredPrefix+h.Revisions[i].ID], "/")
		if opened == moment(h.Revisions[i].Opened) {
			h.Revisions[i].Retired, _ = time.Parse(time.RFC3339, at)
		}
	}
	return h, nil
}

// document is the stored form of a History. It holds each certificate once, under its fingerprint.
type document struct {
	Version      int                `json:"version"`
	Revisions    []documentRevision `json:"revisions"`
	Certificates map[string][]byte  `json:"certificates,omitempty"`
	Serving      []string           `json:"serving,omitempty"`
	// Data holds the certificateAuthorityData of specs, each once, under its SHA-256.
	Data map[string]string `json:"certificateAuthorityData,omitempty"`
}

type documentRevision struct {
	ID        string    `json:"id"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until,omitzero"`
	Opened    time.Time `json:"opened"`
	FirstUsed time.Time `json:"firstUsed,omitzero"`
	LastUsed  time.Time `json:"lastUsed,omitzero"`
	Endpoint  string    `json:"endpoint"`
	Bundle    []string  `json:"trustBundle,omitempty"`
	Lost      []string  `json:"lostTrustBundle,omitempty"`
	Names     []string  `json:"names,omitempty"`
	UsedNames []string  `json:"usedNames,omitempty"`

	Spec      *RevisionSpec   `json:"spec,omitempty"` // certificateAuthorityData is replaced by a key of document.Data
	By        string          `json:"by,omitempty"`
	ChangedAt time.Time       `json:"changedAt,omitzero"`
	Outcome   RevisionOutcome `json:"outcome,omitempty"`
}

const documentVersion = 2

// Encode returns the stored form of the history. Retirements are stored separately: see RetiredPrefix.
func (h History) Encode() []byte {
	doc := document{
		Version:      documentVersion,
		Revisions:    []documentRevision{},
		Certificates: map[string][]byte{},
		Data:         map[string]string{},
	}
	keep := func(members []*x509.Certificate) []string {
		var ids []string
		for _, member := range members {
			id := certs.Fingerprint(member.Raw)
			doc.Certificates[id] = member.Raw
			ids = append(ids, id)
		}
		return ids
	}
	for _, s := range h.Revisions {
		members, _ := certs.ParseBundle(s.Bundle)
		doc.Revisions = append(doc.Revisions, documentRevision{
			ID: s.ID, Since: s.Since, Until: s.Until, Opened: s.Opened,
			FirstUsed: s.FirstUsed, LastUsed: s.LastUsed, Endpoint: s.Endpoint, Bundle: keep(members), Lost: s.Lost,
			Names: s.Names, UsedNames: s.UsedNames,
			By: s.By, ChangedAt: s.ChangedAt, Outcome: s.Outcome,
			Spec: s.Spec.withData(func(data string) string {
				sum := sha256.Sum256([]byte(data))
				id := hex.EncodeToString(sum[:])
				doc.Data[id] = data
				return id
			}),
		})
	}
	doc.Serving = keep(h.Chain)
	encoded, err := json.Marshal(doc)
	if err != nil {
		panic(err) // unreachable: only text and times
	}
	return encoded
}

// withData returns a copy of the spec with certificateAuthorityData replaced, if it has any.
func (s *RevisionSpec) withData(replace func(string) string) *RevisionSpec {
	if s == nil || s.TLS == nil || s.TLS.CertificateAuthorityData == "" {
		return s
	}
	with := *s
	with.TLS = s.TLS.DeepCopy()
	with.TLS.CertificateAuthorityData = replace(s.TLS.CertificateAuthorityData)
	return &with
}

// Decode reads what Encode has written. It ignores fields that a later version has added.
func Decode(content []byte) (History, error) {
	var doc document
	if err := json.Unmarshal(content, &doc); err != nil {
		return History{}, fmt.Errorf("reading the revision history: %w", err)
	}
	if doc.Version != documentVersion {
		return History{}, fmt.Errorf("reading the revision history: its version is %d; this program needs %d",
			doc.Version, documentVersion)
	}
	var h History
	for _, s := range doc.Revisions {
		var bundle []byte
		for _, id := range s.Bundle {
			if doc.Certificates[id] == nil {
				return History{}, fmt.Errorf("reading the revision history: revision %q lacks a certificate", s.ID)
			}
			bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: doc.Certificates[id]})...)
		}
		h.Revisions = append(h.Revisions, Revision{
			ID: s.ID, Since: s.Since, Until: s.Until, Opened: s.Opened,
			FirstUsed: s.FirstUsed, LastUsed: s.LastUsed, Endpoint: s.Endpoint, Bundle: bundle, Lost: s.Lost,
			Names: s.Names, UsedNames: s.UsedNames,
			Change: Change{
				By: s.By, ChangedAt: s.ChangedAt, Outcome: s.Outcome,
				Spec: s.Spec.withData(func(id string) string { return doc.Data[id] }),
			},
		})
	}
	for _, id := range doc.Serving {
		cert, err := x509.ParseCertificate(doc.Certificates[id])
		if err != nil {
			return History{}, fmt.Errorf("reading the revision history: the certificate in service: %w", err)
		}
		h.Chain = append(h.Chain, cert)
	}
	return h, nil
}
