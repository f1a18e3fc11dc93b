// Package certs issues certificates, and checks certificates that others issued.
//
// Issuing: NewCA makes a certificate authority, and LoadCA reads one back. The methods IssueServing and IssueClient
// issue certificates.
//
// Checking: Check runs a catalogue of checks on a serving certificate, together with its key, the names that clients
// use and the CA bundle that they verify with. It returns a Report with every finding. Timeline tells what Check will
// find later. Explain describes a code of the catalogue.
//
// The package needs no cluster and reads no clock: times are parameters.
package certs

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Name is a name under which clients reach the endpoint, and where it comes from.
type Name struct {
	// Value is a DNS name or an IP address, without a port.
	Value string `json:"value"`
	// Source is for messages: "spec.impersonationProxy.externalEndpoint".
	Source string `json:"source"`
	// Advisory is true for a name that the endpoint has but that clients do not use, such as the address of a
	// load balancer behind an external endpoint. That it is not covered is information.
	Advisory bool `json:"advisory,omitempty"`
}

// Limits are the sizes up to which data is checked. They are checked before anything is decoded.
type Limits struct {
	LeafBytes          int // the first block of tls.crt
	KeyBytes           int // tls.key
	ChainBytes         int // tls.crt
	BundleBytes        int // a CA bundle
	ChainCertificates  int // blocks in tls.crt
	BundleCertificates int // blocks in a CA bundle
}

// DefaultLimits are far above what real certificates need, and low enough for hostile data to cost little.
func DefaultLimits() Limits {
	return Limits{
		LeafBytes:          36_500,
		KeyBytes:           13_000,
		ChainBytes:         95_000,
		BundleBytes:        330_000,
		ChainCertificates:  20,
		BundleCertificates: 500,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	return Limits{
		LeafBytes:          cmp.Or(l.LeafBytes, d.LeafBytes),
		KeyBytes:           cmp.Or(l.KeyBytes, d.KeyBytes),
		ChainBytes:         cmp.Or(l.ChainBytes, d.ChainBytes),
		BundleBytes:        cmp.Or(l.BundleBytes, d.BundleBytes),
		ChainCertificates:  cmp.Or(l.ChainCertificates, d.ChainCertificates),
		BundleCertificates: cmp.Or(l.BundleCertificates, d.BundleCertificates),
	}
}

// Sources is how messages call the parts of an Input, so that they name what their reader can change: the flags of a
// command, for example. Where a field is empty, messages speak of the keys of a Secret and of the CredentialIssuer's
// spec.
type Sources struct {
	Certificate string // instead of "tls.crt"
	Key         string // instead of "tls.key"
	Bundle      string // instead of "the CA bundle"
	Endpoint    string // instead of "spec.impersonationProxy.externalEndpoint"
}

func (s Sources) withDefaults() Sources {
	return Sources{
		Certificate: cmp.Or(s.Certificate, "tls.crt"),
		Key:         cmp.Or(s.Key, "tls.key"),
		Bundle:      cmp.Or(s.Bundle, "the CA bundle"),
		Endpoint:    cmp.Or(s.Endpoint, "spec.impersonationProxy.externalEndpoint"),
	}
}

// DefaultSkew is how far apart the clocks of a client and of the machine that checks may be.
const DefaultSkew = 5 * time.Minute

// Input is everything that Check checks.
type Input struct {
	// CertPEM and KeyPEM are tls.crt and tls.key.
	CertPEM []byte
	KeyPEM  []byte
	// NoKey is true when the caller does not have the private key, for example because it has seen the chain in a
	// handshake. Check then ignores KeyPEM, says nothing about the private key, and rehearses no handshake.
	NoKey bool
	// SecretType is the type of the Secret that they come from; empty means: not from a Secret.
	SecretType string
	// Bundle is the CA bundle that will be published. When it is empty, clients use their system roots.
	Bundle []byte
	// Endpoint is spec.impersonationProxy.externalEndpoint: HOST or HOST:PORT. Its host counts as one of Names.
	Endpoint string
	// Names is every other name that clients use.
	Names []Name
	// Now is the time at which the certificate must be valid. A zero Now makes Check refuse everything.
	Now time.Time
	// ServerTime is what the API server's clock reads at Now; zero means: not known.
	ServerTime time.Time
	// Skew is how far apart clocks may be; zero means DefaultSkew, negative means none.
	Skew time.Duration
	// ExpiresWithin makes it an error (ExpiresSoon) when the certificate, or what clients cannot verify it without,
	// expires within this time from Now; zero means that only the share of its lifetime counts that is left.
	ExpiresWithin time.Duration
	// Roots stand for the system roots; nil means: those of this machine.
	Roots *x509.CertPool
	// Limits bound what is read; what is zero in it is as in DefaultLimits.
	Limits Limits
	// Sources are how messages call the parts of the input.
	Sources Sources
	// Allow names errors to let through. Codes for which Allowable is false have no effect.
	Allow []Code
}

// Report is what Check found out. The facts about the certificate are filled in as far as it can be read.
type Report struct {
	// Findings are in the order of the catalogue's stations: files, key, certificate, names, chain, bundle, clients.
	Findings []Finding `json:"findings"`

	Subject     string    `json:"subject,omitempty"`
	Issuer      string    `json:"issuer,omitempty"`
	Serial      string    `json:"serial,omitempty"`
	SHA256      string    `json:"sha256,omitempty"`
	NotBefore   time.Time `json:"notBefore,omitzero"`
	NotAfter    time.Time `json:"notAfter,omitzero"`
	DNSNames    []string  `json:"dnsNames,omitempty"`
	IPAddresses []string  `json:"ipAddresses,omitempty"`
	Key         string    `json:"key,omitempty"`

	// Rehearsed is true when handshakes were tried. They are not without the private key, nor when other findings make
	// them fail for certain.
	Rehearsed bool `json:"-"`
	// Leaf is the serving certificate; nil when it cannot be read.
	Leaf *x509.Certificate `json:"-"`
}

// OK is true when nothing refuses the certificate.
func (r Report) OK() bool { return !slices.ContainsFunc(r.Findings, Finding.Refuses) }

// Errors returns the findings that refuse the certificate; an error that was allowed is not among them.
func (r Report) Errors() []Finding { return r.filter(Finding.Refuses) }

// Warnings returns the findings of severity warning and the errors that were allowed.
func (r Report) Warnings() []Finding {
	return r.filter(
		func(f Finding) bool { return f.Severity == SeverityWarning || f.Severity == SeverityError && f.Allowed },
	)
}

// First returns the finding to show where there is room for one: the first that refuses, else the first warning. It is
// false when there is neither.
func (r Report) First() (Finding, bool) {
	for _, some := range [][]Finding{r.Errors(), r.Warnings()} {
		if len(some) > 0 {
			return some[0], true
		}
	}
	return Finding{}, false
}

// Has says whether there is a finding with the code, of any severity, allowed or not.
func (r Report) Has(code Code) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == code })
}

func (r Report) filter(keep func(Finding) bool) []Finding {
	var kept []Finding
	for _, f := range r.Findings {
		if keep(f) {
			kept = append(kept, f)
		}
	}
	return kept
}

// Check checks a serving certificate in the way it would be put in front of a cluster: chain, key, names and the CA
// bundle that clients will be given. It reads no clock, opens no connection and never panics; sizes are limited before
// anything is decoded, and no message holds key material. It may be called on every change of a Secret.
func Check(in Input) Report {
	run := newRun(in)
	run.files()
	if len(run.chain) > 0 {
		run.certificate()
		run.names()
		run.chains()
		run.clients()
	}
	run.report.Findings = run.found.result()
	return run.report
}

// run is one run of the catalogue.
type run struct {
	Input
	report Report
	found  *findings

	chain  []numbered // tls.crt; the serving certificate is chain[0], also when it stands elsewhere in the file
	bundle []numbered
	anchor anchors // what clients will verify with
	paired bool    // tls.key belongs to chain[0]
	// unreadable is true when a block of the chain or of the bundle could not be read, so that a certificate may only seem
	// to be missing.
	unreadable bool
	path       []numbered
	// outdatedCA is the expired member of the bundle that keeps the certificate from being verified: it has been named.
	outdatedCA *x509.Certificate
}

func newRun(in Input) *run {
	in.Limits, in.Sources = in.Limits.withDefaults(), in.Sources.withDefaults()
	if in.NoKey {
		in.KeyPEM = nil
	}
	switch {
	case in.Skew == 0:
		in.Skew = DefaultSkew
	case in.Skew < 0:
		in.Skew = 0
	}
	return &run{Input: in, found: newFindings(in.Allow)}
}

// files reads what there is to read: tls.crt, tls.key, the bundle.
func (r *run) files() {
	var list []Finding
	r.bundle, list = parseBundle(r.Bundle, r.Limits, r.Sources.Bundle)
	bundleFindings := list

	if incomplete := checkComplete(r.Input); len(incomplete) > 0 {
		r.found.addAll(incomplete)
	}
	if len(bytes.TrimSpace(r.CertPEM)) > 0 {
		r.chain, list = readChain(r.CertPEM, r.Limits, r.Sources.Certificate)
		if exchanged(r.CertPEM, r.KeyPEM, r.Limits) {
			for i := range list {
				list[i].Hint = fmt.Sprintf(
					"%s and %s hold each other's content: exchange them",
					r.Sources.Certificate,
					r.Sources.Key,
				)
			}
		}
		r.found.addAll(list)
	}
	if len(bytes.TrimSpace(r.KeyPEM)) > 0 {
		key, list := readKey(r.KeyPEM, r.Limits, r.Sources)
		r.found.addAll(list)
		if key != nil && len(r.chain) > 0 {
			place, list := checkKeyPair(key, r.chain, r.bundle, r.Sources.Key)
			r.paired = place == 0
			r.lead(place, list)
		}
	} else if r.NoKey && len(r.chain) > 0 {
		place, list := checkFirst(r.chain)
		r.lead(place, list)
	}
	r.unreadable = r.found.has(NotACertificate, BadSerial) || slices.ContainsFunc(bundleFindings, func(f Finding) bool {
		return f.Severity == SeverityError
	})
	r.found.addAll(bundleFindings)
	if len(r.chain) > 0 {
		r.facts()
	}
}

// lead puts the certificate at place in front, as that is the one which was meant, and adds what was found about
// that. What follows is then said of the right certificate; the file's order is refused already.
func (r *run) lead(place int, list []Finding) {
	if place > 0 {
		leaf := r.chain[place]
		r.chain = append([]numbered{leaf}, slices.Delete(slices.Clone(r.chain), place, place+1)...)
	}
	r.found.addAll(list)
}

func (r *run) facts() {
	leaf := r.chain[0].Certificate
	r.report.Leaf = leaf
	r.report.Subject = clip(leaf.Subject.String(), maxMessage)
	r.report.Issuer = clip(leaf.Issuer.String(), maxMessage)
	r.report.Serial = clip(leaf.SerialNumber.Text(16), maxName)
	r.report.SHA256 = Fingerprint(leaf.Raw)
	r.report.NotBefore = writable(leaf.NotBefore)
	r.report.NotAfter = writable(leaf.NotAfter)
	r.report.DNSNames = slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			r.report.IPAddresses = append(r.report.IPAddresses, addr.String())
		}
	}
	r.report.Key = describeKey(leaf.PublicKey)
}

// checkComplete says what an issuer has not filled in yet.
func checkComplete(in Input) []Finding {
	var list []Finding
	if t := in.SecretType; t != "" && t != "kubernetes.io/tls" && t != "Opaque" {
		list = append(
			list,
			finding(
				SecretIncomplete,
				"make a Secret of type kubernetes.io/tls: kubectl create secret tls NAME --namespace=NAMESPACE --cert=FILE "+
					"--key=FILE",
				"the Secret is of type %s; kubernetes.io/tls or Opaque is needed",
				quote(t),
			),
		)
	}
	noCert := len(bytes.TrimSpace(in.CertPEM)) == 0
	noKey := len(bytes.TrimSpace(in.KeyPEM)) == 0 && !in.NoKey
	missing, are := in.Sources.Certificate, "is"
	switch {
	case noCert && noKey:
		missing, are = missing+" and "+in.Sources.Key, "are"
	case noKey:
		missing = in.Sources.Key
	case !noCert:
		return list
	}
	hint := "wait until the issuer has filled the Secret; if none does, write the PEM data yourself"
	if in.SecretType == "Opaque" {
		// An issuer at work leaves a Secret of type kubernetes.io/tls, with empty keys. This one a person has made.
		hint = fmt.Sprintf("put the PEM data there, under the keys %s and %s", in.Sources.Certificate, in.Sources.Key)
	}
	f := finding(SecretIncomplete, hint, "%s %s missing or empty", missing, are)
	f.Pending = true
	return append(list, f)
}

// exchanged says whether each of the two files holds what belongs into the other one.
func exchanged(cert, key []byte, limits Limits) bool {
	if len(cert) > limits.ChainBytes || len(key) > limits.KeyBytes {
		return false
	}
	first := func(data []byte) string {
		if blocks := readPEM(data).blocks; len(blocks) > 0 {
			return blocks[0].label
		}
		return ""
	}
	return strings.HasSuffix(first(cert), "PRIVATE KEY") && first(key) == "CERTIFICATE"
}

// readChain reads tls.crt. The chain is empty when the serving certificate itself cannot be read.
func readChain(data []byte, limits Limits, name string) ([]numbered, []Finding) {
	if len(data) > limits.ChainBytes {
		return nil, []Finding{tooLarge(name, len(data), limits.ChainBytes, chainSize)}
	}
	chain, list := parseCertificates(data, partChain, name, limits.ChainCertificates)
	if len(chain) > 0 && !leads(data, chain[0].number) {
		return nil, list // the serving certificate is lost; what follows it says nothing
	}
	if len(chain) > 0 {
		if size := len(encodeCertificate(chain[0].Raw)); size > limits.LeafBytes {
			return nil, append(list, tooLarge("the serving certificate in "+name, size, limits.LeafBytes, leafSize))
		}
	}
	return chain, list
}

// leads says whether block number n is the first that was meant as a certificate: a private key or its parameters in
// front of it are wrong there, but TLS libraries pass over them.
func leads(data []byte, n int) bool {
	for _, block := range readPEM(data).blocks[:n-1] {
		if !strings.HasSuffix(block.label, "PRIVATE KEY") && !strings.HasSuffix(block.label, "PARAMETERS") {
			return false
		}
	}
	return true
}
