// Package certs issues certificates, and checks certificates that others have issued.
//
// Issuing: NewCA creates a certificate authority, and LoadCA loads one. IssueServing and IssueClient issue
// certificates.
//
// Checking: Check runs a catalogue of checks on a serving certificate with its key, the names that clients use, and
// their CA bundle. It returns a Report with all findings. Timeline returns what Check will find later. Explain explains
// a code of the catalogue.
//
// The package accesses no cluster and no clock: times are parameters.
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

// Name is a name that clients use for the endpoint, and its source.
type Name struct {
	// Value is a DNS name or an IP address, without a port.
	Value string `json:"value"`
	// Source is for messages, such as "spec.impersonationProxy.externalEndpoint".
	Source string `json:"source"`
	// Advisory is true for a name of the endpoint that clients do not use, such as the address of a load balancer
	// behind an external endpoint. If the certificate does not cover it, that is only information.
	Advisory bool `json:"advisory,omitempty"`
}

// The maximum sizes of the input, which are checked before anything is decoded. They are far above what real
// certificates need, but low enough that hostile data costs little.
const (
	maxLeafBytes          = 36_500 // the first block of tls.crt
	maxKeyBytes           = 13_000 // tls.key
	maxChainBytes         = 95_000 // tls.crt
	maxBundleBytes        = 330_000
	maxChainCertificates  = 20 // blocks in tls.crt
	maxBundleCertificates = 500
)

// Sources are the names of the parts of an Input in messages, so that these name what their reader can change, such as
// the flags of a command. Empty fields default to the keys of a Secret and the CredentialIssuer's spec.
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

// DefaultSkew is the default tolerance between the clocks of clients and this machine.
const DefaultSkew = 5 * time.Minute

// Input is the input of Check.
type Input struct {
	// CertPEM and KeyPEM are tls.crt and tls.key.
	CertPEM []byte
	KeyPEM  []byte
	// NoKey is true if the caller does not have the private key, for example because the chain is from a handshake.
	// Check then ignores KeyPEM, skips the checks of the private key, and rehearses no handshake.
	NoKey bool
	// SecretType is the type of the Secret that they are from; empty if they are not from a Secret.
	SecretType string
	// Bundle is the CA bundle that will be published. If it is empty, clients use their system roots.
	Bundle []byte
	// Endpoint is spec.impersonationProxy.externalEndpoint: HOST or HOST:PORT. Its host is one of the names to cover.
	Endpoint string
	// Names are all other names that clients use.
	Names []Name
	// Now is the time at which the certificate must be valid. Check refuses everything if it is zero.
	Now time.Time
	// ServerTime is the API server's clock at Now; zero if unknown.
	ServerTime time.Time
	// Skew is the tolerance between clocks; zero means DefaultSkew, negative means none.
	Skew time.Duration
	// ExpiresWithin makes it an error (ExpiresSoon) if the certificate, or a CA that clients need, expires within this
	// time from Now. If it is zero, only the remaining share of the lifetime counts.
	ExpiresWithin time.Duration
	// Roots replace the system roots; nil means those of this machine.
	Roots *x509.CertPool
	// Sources are the names of the parts of the input in messages.
	Sources Sources
	// Allow lists errors that do not refuse the certificate. Codes for which Allowable is false have no effect.
	Allow []Code
}

// Report is the result of Check. The facts about the certificate are set if it can be parsed.
type Report struct {
	// Findings are in the order of the catalogue: files, key, certificate, names, chain, bundle, clients.
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

	// Rehearsed is true if handshakes were rehearsed. They are not without the private key, or if other findings would
	// make them fail.
	Rehearsed bool `json:"-"`
	// Leaf is the serving certificate; nil if it cannot be parsed.
	Leaf *x509.Certificate `json:"-"`
}

// OK reports whether no finding refuses the certificate.
func (r Report) OK() bool { return !slices.ContainsFunc(r.Findings, Finding.Refuses) }

// Errors returns the findings that refuse the certificate, without errors that were allowed.
func (r Report) Errors() []Finding { return r.filter(Finding.Refuses) }

// Warnings returns the warnings and the errors that were allowed.
func (r Report) Warnings() []Finding {
	return r.filter(
		func(f Finding) bool { return f.Severity == SeverityWarning || f.Severity == SeverityError && f.Allowed },
	)
}

// First returns the most important finding: the first that refuses, else the first warning. It returns false if there
// is neither.
func (r Report) First() (Finding, bool) {
	for _, some := range [][]Finding{r.Errors(), r.Warnings()} {
		if len(some) > 0 {
			return some[0], true
		}
	}
	return Finding{}, false
}

// Has reports whether there is a finding with this code, of any severity, allowed or not.
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

// Check checks a serving certificate together with its chain, key, names and the CA bundle of clients. It reads no
// clock, opens no connection and never panics. It limits sizes before it decodes anything, and no message contains key
// material. It is fast enough to run on every change of a Secret.
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

// run is the state of one call of Check.
type run struct {
	Input
	report Report
	found  *findings

	chain  []numbered // tls.crt; chain[0] is the serving certificate, even if it is not first in the file
	bundle []numbered
	anchor anchors // the roots of clients
	paired bool    // tls.key belongs to chain[0]
	// unreadable is true if a certificate of the chain or the bundle could not be parsed, so that it only seems to be
	// missing.
	unreadable bool
	path       []numbered
	// outdatedCA is the expired member of the bundle because of which the certificate does not verify, once reported.
	outdatedCA *x509.Certificate
}

// note adds a finding with the usual severity of its code.
func (r *run) note(code Code, hint, format string, args ...any) {
	r.found.add(finding(code, hint, format, args...))
}

func (r *run) warn(code Code, hint, format string, args ...any) {
	r.found.add(finding(code, hint, format, args...).withSeverity(SeverityWarning))
}

func (r *run) inform(code Code, hint, format string, args ...any) {
	r.found.add(finding(code, hint, format, args...).withSeverity(SeverityInfo))
}

func newRun(in Input) *run {
	in.Sources = in.Sources.withDefaults()
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

// files parses tls.crt, tls.key and the bundle.
func (r *run) files() {
	var list []Finding
	r.bundle, list = parseBundle(r.Bundle, r.Sources.Bundle)
	bundleFindings := list

	r.checkComplete()
	if len(bytes.TrimSpace(r.CertPEM)) > 0 {
		r.chain, list = readChain(r.CertPEM, r.Sources.Certificate)
		if exchanged(r.CertPEM, r.KeyPEM) {
			for i := range list {
				list[i].Hint = fmt.Sprintf(
					"%s and %s hold each other's content: swap them",
					r.Sources.Certificate,
					r.Sources.Key,
				)
			}
		}
		r.found.addAll(list)
	}
	if len(bytes.TrimSpace(r.KeyPEM)) > 0 {
		key, list := readKey(r.KeyPEM, r.Sources)
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

// lead moves the certificate at place to the front and adds the findings about it, so that further findings are about
// the right certificate. A wrong order is an error anyway.
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

// checkComplete reports what an issuer has not filled in yet.
func (r *run) checkComplete() {
	if t := r.SecretType; t != "" && t != "kubernetes.io/tls" && t != "Opaque" {
		r.note(
			SecretIncomplete,
			"use type kubernetes.io/tls: kubectl create secret tls NAME --namespace=NAMESPACE --cert=FILE "+
				"--key=FILE",
			"the Secret's type is %s, not kubernetes.io/tls or Opaque", quote(t),
		)
	}
	noCert := len(bytes.TrimSpace(r.CertPEM)) == 0
	noKey := len(bytes.TrimSpace(r.KeyPEM)) == 0 && !r.NoKey
	missing, are := r.Sources.Certificate, "is"
	switch {
	case noCert && noKey:
		missing, are = missing+" and "+r.Sources.Key, "are"
	case noKey:
		missing = r.Sources.Key
	case !noCert:
		return
	}
	hint := "wait until the issuer has filled the Secret; if there is no issuer, write the PEM data yourself"
	if r.SecretType == "Opaque" {
		// An issuer in progress leaves a Secret of type kubernetes.io/tls with empty keys. This one was created
		// manually.
		hint = fmt.Sprintf("put the PEM data there, under the keys %s and %s", r.Sources.Certificate, r.Sources.Key)
	}
	f := finding(SecretIncomplete, hint, "%s %s missing or empty", missing, are)
	f.Pending = true
	r.found.add(f)
}

// exchanged reports whether each of the two files contains what belongs in the other.
func exchanged(cert, key []byte) bool {
	if len(cert) > maxChainBytes || len(key) > maxKeyBytes {
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

// readChain parses tls.crt. The chain is empty if the serving certificate cannot be parsed.
func readChain(data []byte, name string) ([]numbered, []Finding) {
	if len(data) > maxChainBytes {
		return nil, []Finding{tooLarge(name, len(data), maxChainBytes, chainSize)}
	}
	chain, list := parseCertificates(data, partChain, name, maxChainCertificates)
	if len(chain) > 0 && !leads(data, chain[0].number) {
		return nil, list // the serving certificate is unreadable, so the rest is inconclusive
	}
	if len(chain) > 0 {
		if size := len(encodeCertificate(chain[0].Raw)); size > maxLeafBytes {
			return nil, append(list, tooLarge("the serving certificate in "+name, size, maxLeafBytes, leafSize))
		}
	}
	return chain, list
}

// leads reports whether block number n is the first one that is not a private key or parameters, which TLS libraries
// skip.
func leads(data []byte, n int) bool {
	for _, block := range readPEM(data).blocks[:n-1] {
		if !strings.HasSuffix(block.label, "PRIVATE KEY") && !strings.HasSuffix(block.label, "PARAMETERS") {
			return false
		}
	}
	return true
}
