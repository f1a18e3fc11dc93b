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
func (r *run) checkBundle(v verdict) []Finding {
	if len(bytes.TrimSpace(r.Bundle)) == 0 {
		return []Finding{r.bundleEmpty()}
	}
	var found []Finding
	leaf := r.chain[0].Certificate
	warn := func(member numbered, hint, format string, args ...any) {
		found = append(found, finding(BundleMember, hint, "%s %s", member.where(), fmt.Sprintf(format, args...)))
	}
	seen := map[string]int{}
	subjects := map[string]numbered{}
	for _, member := range r.bundle {
		print := Fingerprint(member.Raw)
		if first, twice := seen[print]; twice {
			warn(member, "remove it", "is the same certificate as block %d", first)
			continue
		}
		seen[print] = member.number
		found = append(found, r.checkMember(member, leaf, v)...)
		if r.Now.After(member.NotAfter) {
			continue // the conflict with its namesake disappears when it is removed
		}
		if other, same := subjects[string(member.RawSubject)]; same &&
			!bytes.Equal(other.RawSubjectPublicKeyInfo, member.RawSubjectPublicKeyInfo) {
			found = append(found, r.sameNameFinding(member, other))
		} else if !same {
			subjects[string(member.RawSubject)] = member
		}
	}
	return append(found, r.endsEarly(v)...)
}

// sameNameFinding reports two members with the same name and different keys. Go tries both keys. Other clients choose
// by the key identifiers; without them, they may try only the wrong one and fail.
func (r *run) sameNameFinding(member, other numbered) Finding {
	unclear := slices.ContainsFunc(r.chain, func(c numbered) bool {
		return bytes.Equal(c.RawIssuer, member.RawSubject) && len(c.AuthorityKeyId) == 0 && !selfIssued(c.Certificate)
	})
	if unclear || bytes.Equal(member.SubjectKeyId, other.SubjectKeyId) {
		return finding(
			BundleMember,
			"remove the unneeded one, or have certificates issued with key identifiers",
			"%s has the same name as block %d but another key, and no key identifiers tell them apart: OpenSSL and "+
				"GnuTLS may try only the wrong one",
			member.where(),
			other.number,
		)
	}
	f := finding(
		BundleMember,
		"",
		"%s has the same name as block %d, but another key; that is normal during a CA key change",
		member.where(),
		other.number,
	)
	return f.withSeverity(SeverityInfo)
}

func (r *run) bundleEmpty() Finding {
	f := finding(
		BundleEmpty,
		"if clients should verify with another CA, pass --ca-bundle FILE or put ca.crt into the Secret",
		"no CA bundle will be published: clients verify the certificate with their system roots",
	)
	if r.anchor.unknown {
		f.Message += "; this was not tested, because this machine has no system roots"
	}
	return f
}

func (r *run) checkMember(member numbered, leaf *x509.Certificate, v verdict) []Finding {
	warn := func(hint, format string, args ...any) []Finding {
		return []Finding{finding(BundleMember, hint, "%s %s", member.where(), fmt.Sprintf(format, args...))}
	}
	_, _, hasUsage := extension(member.Certificate, oidKeyUsage)
	root := isCA(member.Certificate)
	switch {
	case !root && member.Equal(leaf):
		hint := "instead, publish the certificate of the CA that issued it"
		if !selfIssued(leaf) {
			return warn(
				hint,
				"is the serving certificate itself (a pin): every renewal will break clients, and OpenSSL does not accept "+
					"the pin, because it is not self-signed",
			)
		}
		return warn(hint, "is the serving certificate itself (a pin): every renewal will break clients")
	case !root:
		return warn("remove it", "is not a CA certificate: it verifies nothing")
	case hasUsage && member.KeyUsage&x509.KeyUsageCertSign == 0:
		return warn(
			"remove it, or have it reissued with keyCertSign",
			"may not sign certificates: its key usage lacks keyCertSign",
		)
	case r.outdatedCA != nil && member.Equal(r.outdatedCA):
		return nil
	case r.Now.After(member.NotAfter):
		return warn("remove it", "expired on %s", date(member.NotAfter))
	case member.NotBefore.After(r.Now):
		return warn("check the clock of its issuer", "is not valid before %s", date(member.NotBefore))
	}
	var found []Finding
	sent := containsCert(r.chain, member.Certificate)
	if !sent { // certificates in tls.crt have been checked already
		found = r.checkWeakSignature(member)
	}
	switch problem := weakKey(member.PublicKey); {
	case problem == "":
	case tooLong(member.PublicKey) && !sent:
		f := finding(WeakKey, "", "%s %s in a chain that a server sends; in the CA bundle, this key does no harm",
			member.where(), problem)
		found = append(found, f.withSeverity(SeverityInfo))
	default:
		f := finding(WeakKey, keyFix, "%s %s", member.where(), problem)
		if !v.uses(member.Certificate) || r.otherwise(member, v.at).err == nil {
			f = f.withSeverity(SeverityWarning)
		}
		found = append(found, f)
	}
	return found
}

// otherwise verifies the chain with all members of the bundle except this one.
func (r *run) otherwise(member numbered, at time.Time) verdict {
	rest := slices.DeleteFunc(slices.Clone(r.bundle), func(m numbered) bool { return m.Equal(member.Certificate) })
	return r.verifyAt(poolOf(rest), poolOf(r.chain[1:]), at)
}

// endsEarly reports the members that expire before the serving certificate. That is a warning if no other member
// verifies the certificate until it expires, else information: the old root is next to the new one during a CA
// rollover.
func (r *run) endsEarly(v verdict) []Finding {
	leaf := r.chain[0].Certificate
	if v.err != nil || r.Now.After(leaf.NotAfter) {
		return nil
	}
	lasts := r.verifyAt(r.anchor.pool, poolOf(r.chain[1:]), leaf.NotAfter.Add(-time.Second)).err == nil
	var early []string
	for _, member := range r.bundle {
		if member.NotAfter.Before(leaf.NotAfter) && v.uses(member.Certificate) && !member.Equal(leaf) &&
			r.Now.Before(member.NotAfter) {
			early = append(early, fmt.Sprintf("%s on %s", member.where(), date(member.NotAfter)))
		}
	}
	if len(early) == 0 {
		return nil
	}
	if lasts {
		f := finding(
			BundleMember,
			"",
			"these certificates expire before the serving certificate, but another one in the bundle verifies the "+
				"serving certificate for its whole lifetime: %s",
			joined(early),
		)
		return []Finding{f.withSeverity(SeverityInfo)}
	}
	return []Finding{finding(BundleMember, "before then, publish the CA's new certificate alongside the old one",
		"these certificates expire before the serving certificate does (on %s): %s", date(leaf.NotAfter), joined(early))}
}
