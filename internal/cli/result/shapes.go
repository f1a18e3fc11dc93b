package result

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ObjectRef is the namespace and name of an object.
type ObjectRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// CABundle lists the certificates that clients verify with, in order. Empty: the system roots. Absent: unknown.
type CABundle []CACertificate

// CACertificate is one certificate of a CA bundle.
type CACertificate struct {
	SHA256    string    `json:"sha256"`
	Subject   string    `json:"subject"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`

	name string // for people
}

// BundleOf lists the certificates in a CA bundle (PEM), without those that cannot be parsed.
func BundleOf(pem []byte) CABundle {
	bundle := CABundle{}
	members, _ := certs.ParseBundle(pem)
	for _, member := range members {
		bundle = append(bundle, CACertificateOf(member))
	}
	return bundle
}

// CACertificateOf returns the description of a certificate.
func CACertificateOf(cert *x509.Certificate) CACertificate {
	return CACertificate{
		SHA256: certs.Fingerprint(cert.Raw), Subject: cert.Subject.String(),
		NotBefore: cert.NotBefore.UTC(), NotAfter: cert.NotAfter.UTC(), name: cert.Subject.CommonName,
	}
}

// String returns the certificates in the bundle in one line; empty for an empty bundle.
func (b CABundle) String() string {
	const most = 3
	var parts []string
	for _, member := range b[:min(len(b), most)] {
		parts = append(parts, fmt.Sprintf("%.60q (SHA-256 %.16s)", cmp.Or(member.name, member.Subject), member.SHA256))
	}
	if more := len(b) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// Source is where something was found.
type Source string

// The sources.
const (
	SourceSecret    Source = "secret"    // a Secret in the cluster
	SourceGenerated Source = "generated" // the agent generates it
	SourceFile      Source = "file"
	SourceEndpoint  Source = "endpoint" // presented in a TLS handshake
	SourceAgent     Source = "agent"    // reported in the status of the CredentialIssuer
	SourceCluster   Source = "cluster"  // the configuration
)

// Enum lists the sources.
func (Source) Enum() []string {
	return enum(SourceSecret, SourceGenerated, SourceFile, SourceEndpoint, SourceAgent, SourceCluster)
}

// Address is the certificate at one address of the endpoint.
type Address struct {
	Address string `json:"address"` // the IP address and port
	// SHA256 is the fingerprint of the presented certificate; absent if none is presented.
	SHA256   string     `json:"sha256,omitempty"`
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// Code and Problem are what is wrong. Code is absent if the certificate is good, but a request gets no response.
	Code    certs.Code `json:"code,omitempty"`
	Problem string     `json:"problem,omitempty"`
	// Skipped is true if there is no route to the address from here, so that nothing is known about it.
	Skipped bool `json:"skipped,omitempty"`
}

// File is the result for one kubeconfig.
type File struct {
	Path    string      `json:"path"` // its path; "(current)" for the user's own
	Outcome FileOutcome `json:"outcome"`
	Reason  string      `json:"reason,omitempty"`
	Entries []Entry     `json:"entries,omitempty"` // the parts that use the endpoint
	Added   []AddedCA   `json:"added,omitempty"`   // the certificates that it newly trusts
}

// AddedCA is a certificate that an entry of a kubeconfig trusts only since its rotation.
type AddedCA struct {
	Server      string        `json:"server"` // the URL of the entry
	Certificate CACertificate `json:"certificate"`
}

// Entry is a part of a kubeconfig that uses the endpoint.
type Entry struct {
	Kind    EntryKind   `json:"kind"`
	Name    string      `json:"name"`
	Outcome FileOutcome `json:"outcome"`
	Code    string      `json:"code,omitempty"` // the reason in one word, if there is one
	Reason  string      `json:"reason,omitempty"`
	Server  string      `json:"server,omitempty"` // the URL of the entry, in results about several clusters
}

// EntryKind is the kind of an Entry.
type EntryKind string

// The kinds of entries.
const (
	EntryCluster EntryKind = "cluster"
	EntryUser    EntryKind = "user"
	EntryContext EntryKind = "context"
)

// Enum lists the kinds of entries.
func (EntryKind) Enum() []string { return enum(EntryCluster, EntryUser, EntryContext) }

// FileOutcome is the result for a kubeconfig or an entry of it. A file has the most important one of its entries.
type FileOutcome string

// The outcomes. The first six are actions, the others are findings.
const (
	FileRotated   FileOutcome = "rotated"   // it now has the new CA bundle
	FileCurrent   FileOutcome = "current"   // it already had the CA bundle
	FileSkipped   FileOutcome = "skipped"   // it uses the endpoint, and is unchanged
	FileUnrelated FileOutcome = "unrelated" // it does not use the endpoint
	FileFailed    FileOutcome = "failed"    // it could not be read or written
	FileNotDone   FileOutcome = "notDone"   // the command ended before
	FileWorks     FileOutcome = "works"     // it verifies the presented certificate
	FileOutdated  FileOutcome = "outdated"  // it works, but with another CA bundle than the published one
	FileWillBreak FileOutcome = "willBreak" // it does not verify the configured certificate, which is not presented yet
	FileBroken    FileOutcome = "broken"    // it does not verify the presented certificate
	FileNotKnown  FileOutcome = "notKnown"  // it cannot be determined
)

// Enum lists the outcomes.
func (FileOutcome) Enum() []string {
	return enum(FileRotated, FileCurrent, FileSkipped, FileUnrelated, FileFailed, FileNotDone, FileWorks, FileOutdated,
		FileWillBreak, FileBroken, FileNotKnown)
}

// Outcome is the final result of a command.
type Outcome string

// The outcomes of commands that change the configuration.
const (
	OutcomeConfigured   Outcome = "configured"
	OutcomeUnset        Outcome = "unset"
	OutcomeUndone       Outcome = "undone"
	OutcomeUnchanged    Outcome = "unchanged"
	OutcomeRefused      Outcome = "refused"
	OutcomeNotConverged Outcome = "notConverged"
	OutcomePrepared     Outcome = "prepared" // the old certificate is served with dual trust
)

// Enum lists the outcomes.
func (Outcome) Enum() []string {
	return enum(OutcomeConfigured, OutcomeUnset, OutcomeUndone, OutcomeUnchanged, OutcomeRefused, OutcomeNotConverged,
		OutcomePrepared)
}

// Answer is yes, no or unknown.
type Answer string

// The answers.
const (
	AnswerYes     Answer = "yes"
	AnswerNo      Answer = "no"
	AnswerUnknown Answer = "unknown"
)

// Enum lists the answers.
func (Answer) Enum() []string { return enum(AnswerYes, AnswerNo, AnswerUnknown) }
