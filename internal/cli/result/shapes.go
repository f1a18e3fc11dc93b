package result

import (
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ObjectRef names an object in a namespace: a Secret, a service account.
type ObjectRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Ref returns the name as it is printed.
func Ref(name types.NamespacedName) ObjectRef { return ObjectRef(name) }

// CABundle is what clients verify with: every certificate in it, in its order. Empty means that clients use their
// system roots; where it is absent, the bundle is not known.
type CABundle []CACertificate

// CACertificate is one certificate of a CA bundle.
type CACertificate struct {
	// SHA256 is the fingerprint of the certificate, in full.
	SHA256    string    `json:"sha256"`
	Subject   string    `json:"subject"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`

	name string // for people
}

// BundleOf lists what is in a CA bundle (PEM). It leaves out what cannot be read.
func BundleOf(pem []byte) CABundle {
	bundle := CABundle{}
	members, _ := certs.ParseBundle(pem)
	for _, member := range members {
		bundle = append(bundle, CACertificateOf(member))
	}
	return bundle
}

// CACertificateOf describes one certificate of a CA bundle.
func CACertificateOf(cert *x509.Certificate) CACertificate {
	name := cert.Subject.CommonName
	if name == "" {
		name = cert.Subject.String()
	}
	return CACertificate{
		SHA256: certs.Fingerprint(cert.Raw), Subject: cert.Subject.String(),
		NotBefore: cert.NotBefore.UTC(), NotAfter: cert.NotAfter.UTC(), name: name,
	}
}

// Has says whether the certificate with this fingerprint is in the bundle.
func (b CABundle) Has(sha256 string) bool {
	for _, member := range b {
		if member.SHA256 == sha256 {
			return true
		}
	}
	return false
}

// String says in one line which certificates are in the bundle; empty for an empty one.
func (b CABundle) String() string {
	const most = 3
	var parts []string
	for _, member := range b[:min(len(b), most)] {
		name := member.name
		if name == "" {
			name = member.Subject
		}
		parts = append(parts, fmt.Sprintf("%.60q (SHA-256 %.16s)", name, member.SHA256))
	}
	if more := len(b) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// Source says where something was found.
type Source string

// The sources.
const (
	SourceSecret    Source = "secret"    // a Secret in the cluster
	SourceGenerated Source = "generated" // the agent makes it
	SourceFile      Source = "file"
	SourceEndpoint  Source = "endpoint" // presented in a TLS handshake
	SourceAgent     Source = "agent"    // reported in the status of the CredentialIssuer
	SourceCluster   Source = "cluster"  // what is configured
)

// Enum lists the sources.
func (Source) Enum() []string {
	return []string{
		string(SourceSecret), string(SourceGenerated), string(SourceFile), string(SourceEndpoint), string(SourceAgent),
		string(SourceCluster),
	}
}

// Address is what one address of the endpoint presents.
type Address struct {
	// Address is the IP address and the port.
	Address string `json:"address"`
	// SHA256 is the fingerprint of the certificate that it presents; absent when it presents none.
	SHA256   string     `json:"sha256,omitempty"`
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// Problem says why this is not what it should be, and Code is the code of the check that says so; absent when all is
	// well. There is no code where the certificate is good, and a request is not answered.
	Code    certs.Code `json:"code,omitempty"`
	Problem string     `json:"problem,omitempty"`
	// Skipped is true when there is no route to the address from here, so that nothing is known about it.
	Skipped bool `json:"skipped,omitempty"`
}

// File is one kubeconfig.
type File struct {
	// Path is where it was found; "(current)" for the user's own.
	Path    string      `json:"path"`
	Outcome FileOutcome `json:"outcome"`
	// Reason says why.
	Reason string `json:"reason,omitempty"`
	// Entries are what leads to the endpoint in it.
	Entries []Entry `json:"entries,omitempty"`
	// Added are the certificates that it trusts now, and did not trust before.
	Added []AddedCA `json:"added,omitempty"`
}

// AddedCA is a certificate that an entry of a kubeconfig did not trust before it was rotated.
type AddedCA struct {
	// Server is the URL that the entry leads to.
	Server      string        `json:"server"`
	Certificate CACertificate `json:"certificate"`
}

// Entry is a part of a kubeconfig that leads to the endpoint.
type Entry struct {
	Kind    EntryKind   `json:"kind"`
	Name    string      `json:"name"`
	Outcome FileOutcome `json:"outcome"`
	// Code is the reason in one word, where there is one.
	Code string `json:"code,omitempty"`
	// Reason says why.
	Reason string `json:"reason,omitempty"`
	// Server is where it leads, where a result is about several clusters.
	Server string `json:"server,omitempty"`
}

// EntryKind is the part of a kubeconfig that an Entry is.
type EntryKind string

// The kinds of entries.
const (
	EntryCluster EntryKind = "cluster"
	EntryUser    EntryKind = "user"
	EntryContext EntryKind = "context"
)

// Enum lists the kinds of entries.
func (EntryKind) Enum() []string {
	return []string{string(EntryCluster), string(EntryUser), string(EntryContext)}
}

// FileOutcome is what was done with a kubeconfig or an entry of it, or what was found out about it. That of a file is
// the most important one of its entries.
type FileOutcome string

// The outcomes. The first six say what a command has done, the others what it has found.
const (
	FileRotated   FileOutcome = "rotated"   // it has the new CA bundle now
	FileCurrent   FileOutcome = "current"   // it had the CA bundle already
	FileSkipped   FileOutcome = "skipped"   // it leads to the endpoint, and was left alone
	FileUnrelated FileOutcome = "unrelated" // nothing in it leads to the endpoint
	FileFailed    FileOutcome = "failed"    // it could not be read or written
	FileNotDone   FileOutcome = "notDone"   // the command ended before its turn
	FileWorks     FileOutcome = "works"     // it verifies what is presented
	FileOutdated  FileOutcome = "outdated"  // it works, with another CA bundle than the one that is published
	FileWillBreak FileOutcome = "willBreak" // it does not verify what is configured and not yet presented
	FileBroken    FileOutcome = "broken"    // it does not verify what is presented
	FileNotKnown  FileOutcome = "notKnown"  // it cannot be known
)

// Enum lists the outcomes.
func (FileOutcome) Enum() []string {
	return []string{
		string(FileRotated), string(FileCurrent), string(FileSkipped), string(FileUnrelated), string(FileFailed),
		string(FileNotDone), string(FileWorks), string(FileOutdated), string(FileWillBreak), string(FileBroken),
		string(FileNotKnown),
	}
}

// Outcome is what a command did or found in the end.
type Outcome string

// The outcomes of commands that change the configuration.
const (
	OutcomeConfigured   Outcome = "configured"
	OutcomeUnset        Outcome = "unset"
	OutcomeUndone       Outcome = "undone"
	OutcomeUnchanged    Outcome = "unchanged"
	OutcomeRefused      Outcome = "refused"
	OutcomeNotConverged Outcome = "notConverged"
	OutcomePrepared     Outcome = "prepared" // the old certificate is served, with the trust bundles of both
)

// Enum lists the outcomes.
func (Outcome) Enum() []string {
	return []string{
		string(OutcomeConfigured), string(OutcomeUnset), string(OutcomeUndone), string(OutcomeUnchanged),
		string(OutcomeRefused), string(OutcomeNotConverged), string(OutcomePrepared),
	}
}

// Answer answers a question.
type Answer string

// The answers.
const (
	AnswerYes     Answer = "yes"
	AnswerNo      Answer = "no"
	AnswerUnknown Answer = "unknown"
)

// Enum lists the answers.
func (Answer) Enum() []string {
	return []string{string(AnswerYes), string(AnswerNo), string(AnswerUnknown)}
}
