package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// checkStrict reports what Python 3.13 and later and OpenSSL with -x509_strict reject, and what Go accepts but all
// OpenSSL or GnuTLS clients reject. Of several verified chains, the one with the fewest problems counts.
func (r *run) checkStrict(v verdict) {
	chains := v.chains
	if len(chains) == 0 {
		plain := make([]*x509.Certificate, len(r.path))
		for i, cert := range r.path {
			plain[i] = cert.Certificate
		}
		chains = [][]*x509.Certificate{plain}
	}
	if r.anchor.system && v.err == nil {
		// Clients accept the roots of their own system regardless of their form.
		chains = slices.Clone(chains)
		for i, chain := range chains {
			chains[i] = chain[:max(len(chain)-1, 1)]
		}
	}
	var best []Finding
	for i, chain := range chains {
		if found := strictFindings(chain); i == 0 || len(found) < len(best) {
			best = found
		}
	}
	r.found.addAll(best)
	r.partialChain(v)
	r.firstIssuer(v)
	if len(r.chain) > gnuTLSMost {
		r.note(
			StrictClients,
			"remove the unneeded ones, or have the certificate issued by a CA nearer to the root",
			"%s holds %d certificates: GnuTLS refuses a server that sends more than %d",
			r.Sources.Certificate, len(r.chain), gnuTLSMost,
		)
	}
}

func strictFindings(chain []*x509.Certificate) []Finding {
	var found []Finding
	for i, cert := range chain {
		var parent *x509.Certificate
		if i+1 < len(chain) {
			parent = chain[i+1]
		}
		if problems := slices.Concat(strictProblems(cert, parent), misfits(cert, i == 0)); len(problems) > 0 {
			found = append(found, finding(StrictClients, reissueFix,
				"%s %s: Python 3.13 and later and OpenSSL in strict mode refuse it", subject(cert), strings.Join(problems, ", ")))
		}
		lenientRemarks(chain, i, func(hint, format string, args ...any) {
			found = append(found, finding(StrictClients, hint, "%s %s", subject(cert), fmt.Sprintf(format, args...)))
		})
	}
	return found
}

func strictProblems(cert, parent *x509.Certificate) []string {
	var problems []string
	if len(cert.AuthorityKeyId) == 0 && !selfIssued(cert) {
		problems = append(problems, "has no authority key identifier")
	}
	isCA := cert.IsCA || cert.Version < 3 && parent == nil
	if isCA {
		if cert.Version < 3 {
			return append(problems, fmt.Sprintf("is a CA certificate of version %d, without extensions", cert.Version))
		}
		if len(cert.SubjectKeyId) == 0 {
			problems = append(problems, "is a CA without subject key identifier")
		}
		if _, _, ok := extension(cert, oidKeyUsage); !ok {
			problems = append(problems, "is a CA without key usage")
		}
		if critical, _, ok := extension(cert, oidBasicConstraints); ok && !critical {
			problems = append(problems, "is a CA whose basic constraints are not marked critical")
		}
	}
	if critical, _, ok := extension(cert, oidSubjectAltName); ok && !critical && cert.Subject.String() == "" {
		problems = append(problems, "has an empty subject and alternative names that are not marked critical")
	}
	return problems
}

// misfits lists contradictions within a certificate. Another check reports an issuer that is not a CA.
func misfits(cert *x509.Certificate, isLeaf bool) []string {
	var problems []string
	certSign := cert.KeyUsage&x509.KeyUsageCertSign != 0
	limited := cert.BasicConstraintsValid && (cert.MaxPathLen > 0 || cert.MaxPathLenZero)
	empty := func(name []byte) bool { return len(name) <= len("\x30\x00") }
	switch {
	case isLeaf && !cert.IsCA && certSign:
		problems = append(problems, "has the key usage keyCertSign, but is not a CA")
	case isLeaf && !cert.IsCA && limited:
		problems = append(problems, "has a path length, but is not a CA")
	case cert.IsCA && limited && !certSign:
		problems = append(problems, "has a path length, but not the key usage keyCertSign")
	}
	if empty(cert.RawIssuer) {
		problems = append(problems, "has an empty issuer")
	}
	if cert.IsCA && empty(cert.RawSubject) {
		problems = append(problems, "is a CA with an empty subject")
	}
	return problems
}

// partialChain warns if the bundle contains an intermediate without its root.
func (r *run) partialChain(v verdict) {
	if v.err != nil || r.anchor.system || containsCert(r.bundle, r.chain[0].Certificate) {
		return
	}
	roots := slices.DeleteFunc(
		slices.Clone(r.bundle),
		func(m numbered) bool { return !selfIssued(m.Certificate) && !signedBy(m.Certificate, m.Certificate) },
	)
	all := slices.Concat(r.chain[1:], r.bundle)
	if r.verifyAt(poolOf(roots), poolOf(all), v.at).err == nil {
		return
	}
	r.note(
		StrictClients,
		"publish the root CA as well",
		"the CA bundle verifies the certificate only through an intermediate CA: programs built on OpenSSL, such as curl "+
			"and "+
			"Python, need the root too",
	)
}

// firstIssuer warns if a certificate has two issuers in tls.crt (one key, cross-signed by two CAs), and only the later
// one leads to a trusted root. Go tries both; other clients try only the first.
func (r *run) firstIssuer(v verdict) {
	if v.err != nil || r.found.has(IntermediateInvalid, WeakKey, WeakSignature) {
		return // already reported for one of the two
	}
	valid := func(cert *x509.Certificate) bool { return !v.at.Before(cert.NotBefore) && !v.at.After(cert.NotAfter) }
	way := []numbered{r.chain[0]}
	var first, second numbered
	for current := r.chain[0]; !selfIssued(current.Certificate); current = way[len(way)-1] {
		issuers := slices.DeleteFunc(slices.Clone(r.chain), func(c numbered) bool {
			return containsCert(way, c.Certificate) || !signedBy(current.Certificate, c.Certificate)
		})
		if len(issuers) == 0 {
			break
		}
		at := max(0, slices.IndexFunc(issuers, func(c numbered) bool { return valid(c.Certificate) }))
		for _, other := range issuers {
			if first.Certificate == nil && !other.Equal(issuers[at].Certificate) && v.uses(other.Certificate) {
				first, second = issuers[at], other
			}
		}
		way = append(way, issuers[at])
	}
	if first.Certificate == nil || r.verifyAt(r.anchor.pool, poolOf(way[1:]), v.at).err == nil {
		return
	}
	r.note(
		StrictClients,
		fmt.Sprintf("put block %d in front of block %d, or leave block %d out", second.number, first.number, first.number),
		"%s comes before block %d, which has the same name and key: programs built on OpenSSL or GnuTLS, such as curl and "+
			"Python, use only the first one, which is issued by %s, so they find no CA that they trust",
		first.where(), second.number, issuer(first.Certificate),
	)
}

// clients rehearses handshakes in memory, unless a finding would make them fail.
func (r *run) clients() {
	if !r.paired || r.anchor.unknown {
		return
	}
	if r.found.has(NotACertificate, WeakKey, WeakSignature, NoServerAuth, KeyUsage, NotYetValid, Expired, NoNames,
		ChainIncomplete, IntermediateInvalid, BundleDoesNotVerify, KeyMismatch, KeyUnreadable, BadSerial) {
		return
	}
	r.report.Rehearsed = true
	pair, err := tls.X509KeyPair(r.CertPEM, r.KeyPEM)
	if err != nil {
		r.found.add(finding(HandshakeFailed, "create the certificate and the key again, both with the same tool",
			"Go's TLS library does not accept %s and %s together", r.Sources.Certificate, r.Sources.Key).asFinal())
		return
	}
	v := r.verify()
	for _, name := range r.rehearsalNames() {
		for _, version := range []uint16{tls.VersionTLS13, tls.VersionTLS12} {
			if err := rehearse(pair, r.anchor.pool, name, version, v.at); err != nil {
				r.found.add(finding(
					HandshakeFailed,
					"",
					"a %s client that verifies with %s could not connect to %s: %s",
					tls.VersionName(version),
					r.anchor.name,
					quote(name),
					quote(strings.TrimPrefix(err.Error(), "tls: ")),
				))
				return
			}
		}
	}
}

// rehearsalNames returns the names to rehearse: those that clients use and the certificate covers, else one of its own.
func (r *run) rehearsalNames() []string {
	const most = 4 // all names have been checked already
	leaf := r.chain[0].Certificate
	var names []string
	if host, _, err := ParseEndpoint(r.Endpoint); err == nil && covers(leaf, host) {
		names = append(names, host)
	}
	for _, name := range r.Names {
		if len(names) < most && covers(leaf, name.Value) && !slices.Contains(names, name.Value) {
			names = append(names, name.Value)
		}
	}
	if len(names) > 0 {
		return names
	}
	for _, dns := range leaf.DNSNames {
		// No client uses a name that ends in a dot.
		if name := strings.Replace(dns, "*", "rehearsal", 1); covers(leaf, name) && !strings.HasSuffix(name, ".") {
			return []string{name}
		}
	}
	for _, ip := range leaf.IPAddresses {
		return []string{ip.String()}
	}
	return nil
}

// rehearse performs a handshake between a server with pair and a client that trusts roots.
func rehearse(pair tls.Certificate, roots *x509.CertPool, name string, version uint16, at time.Time) error {
	if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		name = addr.Unmap().WithZone("").String()
	} else if name, err = asciiName(name); err != nil {
		return err
	}
	clock := func() time.Time { return at }
	serverConn, clientConn := net.Pipe()
	defer serverConn.Close() //nolint:errcheck // in memory
	served := make(chan error, 1)
	go func() {
		server := tls.Server(serverConn, &tls.Config{
			Certificates: []tls.Certificate{pair}, MinVersion: version, MaxVersion: version, Time: clock,
			SessionTicketsDisabled: true,
		})
		served <- server.HandshakeContext(context.Background())
	}()
	client := tls.Client(clientConn, &tls.Config{
		RootCAs: roots, ServerName: strings.TrimSuffix(name, "."), MinVersion: version, MaxVersion: version, Time: clock,
	})
	err := client.HandshakeContext(context.Background())
	_ = clientConn.Close() // ends a server that still waits for the client
	if serverErr := <-served; err == nil && serverErr != nil && !errors.Is(serverErr, net.ErrClosed) {
		return serverErr
	}
	return err
}
