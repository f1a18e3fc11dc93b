package certs

import (
	"bytes"
	"crypto/fips140"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// chains checks tls.crt as a chain, the members of the CA bundle, and that the bundle verifies the chain.
func (r *run) chains() {
	r.path = buildPath(r.chain)
	r.anchor = r.anchors()
	if !r.found.has(ChainOrder) { // the key has already shown that the first certificate is wrong
		r.checkOrder()
	}
	v := r.verify()
	guess := v.err != nil && r.unreadable // what seems to be missing may be what could not be read
	if !guess {
		r.checkIncomplete(v)
	}
	r.checkExtra(guess || r.found.has(ChainIncomplete))
	r.intermediates(v)
	if !guess {
		r.checkVerifies(v)
	}
	r.issuersLast(v)
	r.checkOutlives(v)
	r.checkBundle(v)
	r.checkStrict(v)
}

// maxVerifiableRSA limits the cost of hostile keys. No library creates or accepts larger ones.
const maxVerifiableRSA = 16384

// tooCostly reports whether a certificate's key is so large that signatures by it are not checked.
func tooCostly(cert *x509.Certificate) bool {
	key, ok := cert.PublicKey.(*rsa.PublicKey)
	return ok && key.N.BitLen() > maxVerifiableRSA
}

// signedBy reports whether parent's key signed child, and child names parent as its issuer. Whether parent may issue
// certificates is checked by intermediateProblems.
func signedBy(child, parent *x509.Certificate) bool {
	if !bytes.Equal(child.RawIssuer, parent.RawSubject) || tooCostly(parent) {
		return false
	}
	var err error
	fips140.WithoutEnforcement(func() { // it panics for SHA-1; this only determines who signed
		err = parent.CheckSignature(child.SignatureAlgorithm, child.RawTBSCertificate, child.Signature)
	})
	var insecure x509.InsecureAlgorithmError
	if errors.As(err, &insecure) || errors.Is(err, x509.ErrUnsupportedAlgorithm) {
		// The signature cannot be verified, which another check reports. Compare the key identifiers instead.
		return len(child.AuthorityKeyId) == 0 || len(parent.SubjectKeyId) == 0 ||
			bytes.Equal(child.AuthorityKeyId, parent.SubjectKeyId)
	}
	return err == nil
}

// buildPath follows the signatures from the serving certificate upwards through tls.crt.
func buildPath(chain []numbered) []numbered {
	path := []numbered{chain[0]}
	for current := chain[0]; !selfIssued(current.Certificate); {
		next := slices.IndexFunc(chain, func(candidate numbered) bool {
			return !containsCert(path, candidate.Certificate) && signedBy(current.Certificate, candidate.Certificate)
		})
		if next < 0 {
			break
		}
		current = chain[next]
		path = append(path, current)
	}
	return path
}

func containsCert(group []numbered, cert *x509.Certificate) bool {
	return slices.ContainsFunc(group, func(n numbered) bool { return bytes.Equal(n.Raw, cert.Raw) })
}

// related reports which certificates of the chain are above the serving certificate on any path. Certificates that are
// cross-signed for old clients have several.
func related(chain []numbered) []bool {
	in := make([]bool, len(chain))
	in[0] = true
	for grown := true; grown; {
		grown = false
		for i, candidate := range chain {
			if in[i] {
				continue
			}
			for j, child := range chain {
				if in[j] && !selfIssued(child.Certificate) && signedBy(child.Certificate, candidate.Certificate) {
					in[i], grown = true, true
					break
				}
			}
		}
	}
	return in
}

// checkOrder requires each certificate to have signed an earlier one. It ignores roots, which clients skip anywhere;
// see checkExtra.
func (r *run) checkOrder() {
	chain, path := r.chain, r.path
	in := related(chain)
	for i := 1; i < len(chain); i++ {
		if !in[i] || containsCert(chain[:i], chain[i].Certificate) || selfIssued(chain[i].Certificate) {
			continue // unrelated, a duplicate or a root: see checkExtra
		}
		signedEarlier := slices.ContainsFunc(chain[:i], func(child numbered) bool {
			return signedBy(child.Certificate, chain[i].Certificate)
		})
		if signedEarlier {
			continue
		}
		order := make([]string, len(path))
		for k, cert := range path {
			order[k] = fmt.Sprintf("block %d", cert.number)
		}
		r.note(ChainOrder, "write them in this order: "+joined(order),
			"%s is out of place: each certificate must have signed the one before it", chain[i].where())
		return
	}
}

// checkExtra reports superfluous certificates in tls.crt. If the chain is incomplete, an unrelated CA is not reported,
// because it may be above the missing one.
func (r *run) checkExtra(incomplete bool) {
	const fix = "remove it; it wastes bytes in every handshake"
	in := related(r.chain)
	for i := 1; i < len(r.chain); i++ {
		cert := r.chain[i]
		switch {
		case containsCert(r.chain[:i], cert.Certificate):
			r.note(ChainExtra, fix, "%s is a duplicate", cert.where())
		case !in[i] && incomplete && isCA(cert.Certificate):
		case !in[i]:
			r.note(ChainExtra, fix, "%s has signed none of the certificates in the serving certificate's chain", cert.where())
		case selfIssued(cert.Certificate):
			r.note(ChainExtra, "remove it; clients already have the root in their CA bundle", "%s is a root", cert.where())
		}
	}
}

// checkOutlives warns if the certificate stops being verifiable before it expires.
func (r *run) checkOutlives(v verdict) {
	leaf := r.chain[0].Certificate
	const fix = "renew the CA's certificate in time, or have the serving certificate issued with a shorter lifetime"
	if v.err == nil {
		end := leaf.NotAfter.Add(-time.Second)
		if r.verifyAt(r.anchor.pool, poolOf(r.chain[1:]), end).err == nil {
			return
		}
		if issuer := bottleneck(v.chains); issuer != nil {
			r.note(
				OutlivesIssuer, fix,
				"the serving certificate is valid until %s, but its issuer %s only until %s; from then on, clients refuse the "+
					"serving certificate", date(leaf.NotAfter), subject(issuer), date(issuer.NotAfter),
			)
		}
		return
	}
	for _, issuer := range r.path[1:] {
		if issuer.NotAfter.Before(leaf.NotAfter) {
			r.note(OutlivesIssuer, fix, "the serving certificate is valid until %s, but %s only until %s",
				date(leaf.NotAfter), issuer.where(), date(issuer.NotAfter))
			return
		}
	}
}

// bottleneck returns the issuer that expires first in the chain that is valid longest.
func bottleneck(chains [][]*x509.Certificate) *x509.Certificate {
	var longest *x509.Certificate
	for _, chain := range chains {
		if len(chain) < 2 {
			continue
		}
		first := chain[1]
		for _, cert := range chain[2:] {
			if cert.NotAfter.Before(first.NotAfter) {
				first = cert
			}
		}
		if longest == nil || first.NotAfter.After(longest.NotAfter) {
			longest = first
		}
	}
	return longest
}
