package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// anchors are the trust anchors of clients.
type anchors struct {
	name    string // for messages
	pool    *x509.CertPool
	members []numbered // nil for the system roots
	system  bool
	unknown bool // nothing to verify with: no system roots on this machine, or an unreadable bundle
}

// does returns the name with "do" or "does", for sentences like "the system roots do not verify it".
func (a anchors) does() string {
	if a.system {
		return a.name + " do"
	}
	return a.name + " does"
}

// anchors returns the trust anchors of clients; an empty bundle means the system roots.
func (r *run) anchors() anchors {
	if len(bytes.TrimSpace(r.Bundle)) > 0 {
		// An unreadable bundle has its own findings; there is nothing to verify with.
		return anchors{
			name: "the CA bundle that will be published", pool: poolOf(r.bundle), members: r.bundle,
			unknown: len(r.bundle) == 0,
		}
	}
	a := anchors{name: "the system roots", system: true, pool: r.Roots}
	if a.pool == nil {
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			a.unknown = true
			pool = x509.NewCertPool()
		}
		a.pool = pool
	}
	return a
}

func poolOf(members []numbered) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, member := range members {
		if !tooCostly(member.Certificate) {
			pool.AddCert(member.Certificate)
		}
	}
	return pool
}

// verdict is the result of a verification.
type verdict struct {
	err    error
	at     time.Time // the time at which certificates had to be valid
	chains [][]*x509.Certificate
}

func (v verdict) uses(cert *x509.Certificate) bool {
	return slices.ContainsFunc(v.chains, func(chain []*x509.Certificate) bool {
		return slices.ContainsFunc(chain, cert.Equal)
	})
}

// verify verifies the chain as clients do, with the intermediates in tls.crt only.
func (r *run) verify() verdict {
	var last verdict
	for _, at := range moments(r.Now, r.Skew, r.chain[0].Certificate, r.chain, r.anchor.members) {
		if last = r.verifyAt(r.anchor.pool, poolOf(r.chain[1:]), at); last.err == nil {
			return last
		}
	}
	return last
}

func (r *run) verifyAt(roots, intermediates *x509.CertPool, at time.Time) verdict {
	usage := x509.ExtKeyUsageServerAuth
	if r.found.has(NoServerAuth) {
		usage = x509.ExtKeyUsageAny // already reported; find other problems
	}
	leaf := r.chain[0].Certificate
	if tooCostly(leaf) {
		return verdict{err: errors.New("its key is too large to be checked"), at: at}
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{usage},
	})
	return verdict{err: err, at: at, chains: chains}
}

// top returns the last certificate of the path in tls.crt.
func (r *run) top() numbered { return r.path[len(r.path)-1] }

// anchored reports whether the signatures lead from tls.crt to a certificate in the bundle, regardless of dates and
// other errors: from the certificates above the serving certificate or, if above is false, from the other CAs.
func (r *run) anchored(above bool) bool {
	in := related(r.chain)
	for i, cert := range r.chain {
		if in[i] == above && (above || isCA(cert.Certificate)) &&
			slices.ContainsFunc(r.anchor.members, func(member numbered) bool {
				return cert.Equal(member.Certificate) || signedBy(cert.Certificate, member.Certificate)
			}) {
			return true
		}
	}
	return false
}

// checkIncomplete reports a missing certificate between tls.crt and the trust anchors. An unknown issuer may be a
// missing intermediate or an untrusted root, and a certificate does not say which. It is reported here if it probably
// is an intermediate, and otherwise as BundleDoesNotVerify, so that there is one finding for each cause.
func (r *run) checkIncomplete(v verdict) {
	top := r.top()
	if v.err == nil {
		r.onlyInBundle(v)
		return
	}
	if selfIssued(top.Certificate) || r.anchor.unknown || r.anchored(true) {
		return
	}
	if r.anchor.system {
		var unknown x509.UnknownAuthorityError
		if len(r.path) > 1 || !errors.As(v.err, &unknown) {
			return // there is an intermediate whose root is not a system root
		}
	} else if !r.anchored(false) {
		return // an intermediate is missing if tls.crt has a CA that clients trust, but no path to it
	}
	r.noteAnchor(ChainIncomplete, r.completeFix(),
		"clients cannot verify the serving certificate: the issuer of %s, %s, is neither in %s nor in %s",
		top.where(), issuer(top.Certificate), r.Sources.Certificate, r.anchor.name)
}

// noteAnchor adds a finding, which is final if it is about a published CA bundle. One about system roots is not, because
// clients may have other roots than this machine.
func (r *run) noteAnchor(code Code, hint, format string, args ...any) {
	f := finding(code, hint, format, args...)
	f.final = !r.anchor.system
	r.found.add(f)
}

// completeFix is the hint for an unknown issuer.
func (r *run) completeFix() string {
	return fmt.Sprintf(
		"if that issuer is an intermediate CA, append its certificate to %s, after the one that it signed (many CAs "+
			"provide the complete file as fullchain); if it is the root CA, clients need its certificate in the CA bundle",
		r.Sources.Certificate,
	)
}

// onlyInBundle warns if clients have an intermediate only from the bundle.
func (r *run) onlyInBundle(v verdict) {
	roots := slices.DeleteFunc(slices.Clone(r.anchor.members), func(m numbered) bool { return !selfIssued(m.Certificate) })
	if r.anchor.system || len(roots) == 0 || containsCert(r.bundle, r.chain[0].Certificate) {
		return
	}
	if r.verifyAt(poolOf(roots), poolOf(r.chain[1:]), v.at).err == nil ||
		r.verifyAt(poolOf(roots), poolOf(slices.Concat(r.chain[1:], r.anchor.members)), v.at).err != nil {
		return
	}
	r.warn(
		ChainIncomplete,
		fmt.Sprintf(
			"append the missing intermediate CA certificates to %s, each after the certificate that it signed; many CAs provide the complete file as fullchain",
			r.Sources.Certificate,
		),
		"the issuer of %s, %s, is in the CA bundle but not in %s: clients that trust only the root cannot verify the "+
			"certificate", r.top().where(), issuer(r.top().Certificate), r.Sources.Certificate,
	)
}

// encodedDifferently finds the issuer whose name has the same text in another string type, which Go does not match.
func encodedDifferently(members []numbered, child *x509.Certificate) *numbered {
	for i, member := range members {
		if member.Subject.String() == child.Issuer.String() && !bytes.Equal(member.RawSubject, child.RawIssuer) {
			return &members[i]
		}
	}
	return nil
}

// checkVerifies says why clients do not trust the certificate.
func (r *run) checkVerifies(v verdict) {
	if v.err == nil || r.anchor.unknown {
		return
	}
	if r.found.has(ChainIncomplete) || r.found.has(IntermediateInvalid, WeakSignature, WeakKey) && r.anchored(true) {
		return // the cause is already reported
	}
	if r.outdated(v) {
		return
	}
	why, hint := r.whyNot(v)
	var invalid x509.CertificateInvalidError
	if errors.As(v.err, &invalid) && invalid.Reason == x509.Expired && containsCert(r.bundle, invalid.Cert) {
		r.outdatedCA = invalid.Cert
	}
	r.noteAnchor(BundleDoesNotVerify, hint, "%s not verify the serving certificate: %s", r.anchor.does(), why)
}

// outdated reports whether verification fails because the serving certificate has expired or is never valid, which the
// checks of dates report. Problems of a CA's dates become visible with a new certificate.
func (r *run) outdated(v verdict) bool {
	var invalid x509.CertificateInvalidError
	return errors.As(v.err, &invalid) && invalid.Reason == x509.Expired &&
		(r.found.has(Expired) || r.chain[0].Equal(invalid.Cert))
}

// whyNot finds the cause of a verification error.
func (r *run) whyNot(v verdict) (why, hint string) {
	top := r.top()
	hint = "publish the certificate of the CA that issued it"
	var invalid x509.CertificateInvalidError
	if errors.As(v.err, &invalid) && invalid.Cert != nil {
		where := subject(invalid.Cert)
		switch {
		case invalid.Reason == x509.Expired && v.at.After(invalid.Cert.NotAfter):
			return where + " expired on " + date(invalid.Cert.NotAfter),
				"publish the CA's renewed certificate in its place, or have the certificate issued by another CA"
		case invalid.Reason == x509.Expired:
			return where + " is not valid before " + date(invalid.Cert.NotBefore),
				"wait until then, or publish a CA certificate that is valid now"
		case invalid.Reason == x509.IncompatibleUsage:
			return where + " is not for TLS servers (extended key usage)",
				"use a CA that may issue certificates for servers"
		case invalid.Reason == x509.TooManyIntermediates:
			return where + " allows fewer CAs below it than there are (path length)",
				"use a CA with a larger path length, or fewer intermediates"
		case invalid.Reason == x509.CANotAuthorizedForThisName:
			if why := r.constrained(); why != "" {
				return why, constraintsFix
			}
			return "a CA above it may not issue for the certificate's names (name constraints): " + quote(invalid.Detail),
				constraintsFix
		case invalid.Reason == x509.NoValidChains:
			return "a CA above it requires certificate policies that the certificate lacks (policy constraints)",
				"have it issued with the policies that the CA demands"
		default:
			return quote(strings.TrimPrefix(v.err.Error(), "x509: ")), hint
		}
	}
	issuers := slices.DeleteFunc(slices.Clone(r.anchor.members), func(m numbered) bool {
		return !bytes.Equal(m.RawSubject, top.RawIssuer)
	})
	for _, cert := range slices.Concat(r.path, issuers) {
		if problem := unhandled(cert.Certificate); problem != "" {
			return subject(cert.Certificate) + " " + problem,
				"have it reissued without the extension, or with it not marked critical"
		}
	}
	if r.anchor.system {
		hint = "publish the certificate of the CA that issued it, with --ca-bundle FILE or as ca.crt in the Secret"
		return fmt.Sprintf("they do not include %s", issuer(top.Certificate)), hint
	}
	if len(issuers) > 0 {
		member := issuers[0]
		where := member.where()
		switch {
		case member.Version == 3 && !member.IsCA:
			return where + " is not a CA certificate (CA:FALSE)", hint
		case member.KeyUsage != 0 && member.KeyUsage&x509.KeyUsageCertSign == 0:
			return where + " may not sign certificates: its key usage lacks keyCertSign", "have the CA certificate issued " +
				"again with keyCertSign"
		case !signedBy(top.Certificate, member.Certificate):
			return fmt.Sprintf("%s has the name of the issuer, but another key: it did not sign %s", where, top.where()),
				"publish the CA certificate that signed it; the CA may have been recreated under the same name"
		}
	}
	if member := encodedDifferently(r.anchor.members, top.Certificate); member != nil {
		return fmt.Sprintf(
				"%s has the issuer's name in another encoding, so Go programs such as kubectl do not recognize it",
				member.where(),
			),
			"have the certificate reissued, with the issuer's name copied byte by byte"
	}
	if len(r.path) == 1 && !selfIssued(top.Certificate) {
		return fmt.Sprintf(
				"%s is issued by %s, which is neither in %s nor in that bundle",
				top.where(),
				issuer(top.Certificate),
				r.Sources.Certificate,
			),
			r.completeFix()
	}
	return fmt.Sprintf("%s is issued by %s, which is not in that bundle", top.where(), issuer(top.Certificate)), hint
}

// constrained describes the first CA above the serving certificate whose name constraints exclude one of its names.
func (r *run) constrained() string {
	for _, ca := range slices.Concat(r.path[1:], r.anchor.members) {
		if !bytes.Equal(ca.RawSubject, r.top().RawIssuer) && !containsCert(r.path[1:], ca.Certificate) {
			continue
		}
		if problems := constraintProblems(ca.Certificate, r.chain[0].Certificate); len(problems) > 0 {
			return ca.where() + " " + problems[0]
		}
	}
	return ""
}
