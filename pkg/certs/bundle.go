package certs

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// checkBundle checks the members of the CA bundle. A bad member is only a warning here: if the certificate does not
// verify without it, checkVerifies reports the error.
func (r *run) checkBundle(v verdict) {
	if len(bytes.TrimSpace(r.Bundle)) == 0 {
		r.bundleEmpty()
		return
	}
	leaf := r.chain[0].Certificate
	seen := map[string]int{}
	subjects := map[string]numbered{}
	for _, member := range r.bundle {
		print := Fingerprint(member.Raw)
		if first, twice := seen[print]; twice {
			r.note(BundleMember, "remove it", "%s is the same certificate as block %d", member.where(), first)
			continue
		}
		seen[print] = member.number
		r.checkMember(member, leaf, v)
		if r.Now.After(member.NotAfter) {
			continue // the conflict with its namesake disappears when it is removed
		}
		if other, same := subjects[string(member.RawSubject)]; same &&
			!bytes.Equal(other.RawSubjectPublicKeyInfo, member.RawSubjectPublicKeyInfo) {
			r.sameName(member, other)
		} else if !same {
			subjects[string(member.RawSubject)] = member
		}
	}
	r.endsEarly(v)
}

// sameName reports two members with the same name and different keys. Go tries both keys. Other clients choose by the
// key identifiers; without them, they may try only the wrong one and fail.
func (r *run) sameName(member, other numbered) {
	unclear := slices.ContainsFunc(r.chain, func(c numbered) bool {
		return bytes.Equal(c.RawIssuer, member.RawSubject) && len(c.AuthorityKeyId) == 0 && !selfIssued(c.Certificate)
	})
	if unclear || bytes.Equal(member.SubjectKeyId, other.SubjectKeyId) {
		r.note(
			BundleMember,
			"remove the unneeded one, or have certificates issued with key identifiers",
			"%s has the same name as block %d but another key, and no key identifiers tell them apart: OpenSSL and "+
				"GnuTLS may try only the wrong one", member.where(), other.number,
		)
		return
	}
	r.inform(BundleMember, "",
		"%s has the same name as block %d, but another key; that is normal during a CA key change",
		member.where(), other.number)
}

func (r *run) bundleEmpty() {
	untested := ""
	if r.anchor.unknown {
		untested = "; this was not tested, because this machine has no system roots"
	}
	r.note(BundleEmpty, "if clients should verify with another CA, pass --ca-bundle FILE or put ca.crt into the Secret",
		"no CA bundle will be published: clients verify the certificate with their system roots%s", untested)
}

func (r *run) checkMember(member numbered, leaf *x509.Certificate, v verdict) {
	note := func(hint, problem string) { r.note(BundleMember, hint, "%s %s", member.where(), problem) }
	_, _, hasUsage := extension(member.Certificate, oidKeyUsage)
	root := isCA(member.Certificate)
	switch {
	case !root && member.Equal(leaf):
		pin := "is the serving certificate itself (a pin): every renewal will break clients"
		if !selfIssued(leaf) {
			pin += ", and OpenSSL does not accept the pin, because it is not self-signed"
		}
		note("instead, publish the certificate of the CA that issued it", pin)
		return
	case !root:
		note("remove it", "is not a CA certificate: it verifies nothing")
		return
	case hasUsage && member.KeyUsage&x509.KeyUsageCertSign == 0:
		note("remove it, or have it reissued with keyCertSign",
			"may not sign certificates: its key usage lacks keyCertSign")
		return
	case r.outdatedCA != nil && member.Equal(r.outdatedCA):
		return
	case r.Now.After(member.NotAfter):
		note("remove it", "expired on "+date(member.NotAfter))
		return
	case member.NotBefore.After(r.Now):
		note("check the clock of its issuer", "is not valid before "+date(member.NotBefore))
		return
	}
	sent := containsCert(r.chain, member.Certificate)
	if !sent { // certificates in tls.crt have been checked already
		r.found.addAll(r.checkWeakSignature(member))
	}
	switch problem := weakKey(member.PublicKey); {
	case problem == "":
	case tooLong(member.PublicKey) && !sent:
		r.inform(WeakKey, "", "%s %s in a chain that a server sends; in the CA bundle, this key does no harm",
			member.where(), problem)
	case !v.uses(member.Certificate) || r.otherwise(member, v.at).err == nil:
		r.warn(WeakKey, keyFix, "%s %s", member.where(), problem)
	default:
		r.note(WeakKey, keyFix, "%s %s", member.where(), problem)
	}
}

// otherwise verifies the chain with all members of the bundle except this one.
func (r *run) otherwise(member numbered, at time.Time) verdict {
	rest := slices.DeleteFunc(slices.Clone(r.bundle), func(m numbered) bool { return m.Equal(member.Certificate) })
	return r.verifyAt(poolOf(rest), poolOf(r.chain[1:]), at)
}

// endsEarly reports the members that expire before the serving certificate. That is a warning if no other member
// verifies the certificate until it expires, else information: the old root is next to the new one during a CA
// rollover.
func (r *run) endsEarly(v verdict) {
	leaf := r.chain[0].Certificate
	if v.err != nil || r.Now.After(leaf.NotAfter) {
		return
	}
	lasts := r.verifyAt(r.anchor.pool, poolOf(r.chain[1:]), leaf.NotAfter.Add(-time.Second)).err == nil
	var early []string
	for _, member := range r.bundle {
		if member.NotAfter.Before(leaf.NotAfter) && v.uses(member.Certificate) && !member.Equal(leaf) &&
			r.Now.Before(member.NotAfter) {
			early = append(early, fmt.Sprintf("%s on %s", member.where(), date(member.NotAfter)))
		}
	}
	switch {
	case len(early) == 0:
	case lasts:
		r.inform(
			BundleMember, "",
			"these certificates expire before the serving certificate, but another one in the bundle verifies the "+
				"serving certificate for its whole lifetime: %s", joined(early),
		)
	default:
		r.note(BundleMember, "before then, publish the CA's new certificate alongside the old one",
			"these certificates expire before the serving certificate does (on %s): %s", date(leaf.NotAfter), joined(early))
	}
}
