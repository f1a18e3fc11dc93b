package certs

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"
)

// certificate checks the serving certificate on its own.
func (r *run) certificate() {
	leaf := r.chain[0]
	r.checkCAKey()
	r.found.addAll(checkWeakKey(leaf))
	// ECDSA is not reported: clients that support only RSA are rare.
	if _, ok := leaf.PublicKey.(ed25519.PublicKey); ok {
		r.note(RSAOnlyClients, "use an ECDSA or RSA key if clients other than kubectl connect",
			"%s has an Ed25519 key: kubectl and current OpenSSL accept that; browsers, Windows and RSA-only clients "+
				"do not", leaf.where())
	}
	r.found.addAll(r.checkWeakSignature(leaf))
	if leaf.IsCA {
		r.note(
			LeafIsCA,
			`create one with CA:FALSE: openssl req -x509 ... -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth -addext keyUsage=digitalSignature`,
			"the serving certificate, %s, is a CA certificate (CA:TRUE): an attacker who has its key can issue certificates "+
				"that clients of this cluster trust",
			leaf.where(),
		)
	}
	r.checkServerAuth(leaf)
	if _, _, present := extension(leaf.Certificate, oidKeyUsage); present &&
		leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		r.note(KeyUsage, "have it issued with the key usage digitalSignature",
			"%s may not sign: its key usage is %s, without digitalSignature, which TLS 1.3 needs",
			leaf.where(), keyUsageNames(leaf.KeyUsage))
	}
	if mustStaple(leaf.Certificate) {
		r.note(MustStaple, "have it issued without the TLS feature status_request (OCSP must-staple)",
			"%s demands a stapled OCSP response, which the impersonation proxy does not send: strict clients refuse the "+
				"connection", leaf.where())
	}
	r.found.addAll(r.sooner(checkDates(leaf.Certificate, r.Now, r.ServerTime, r.Skew)))
}

// Extensions.
const (
	oidKeyUsage         = "2.5.29.15"
	oidSubjectAltName   = "2.5.29.17"
	oidBasicConstraints = "2.5.29.19"
	oidNameConstraints  = "2.5.29.30"
	oidAuthorityKeyID   = "2.5.29.35"
	oidExtKeyUsage      = "2.5.29.37"
	oidMustStaple       = "1.3.6.1.5.5.7.1.24"
)

// extension returns the critical flag and the value of an extension.
func extension(cert *x509.Certificate, id string) (critical bool, value []byte, ok bool) {
	for _, e := range cert.Extensions {
		if e.Id.String() == id {
			return e.Critical, e.Value, true
		}
	}
	return false, nil, false
}

// selfIssued reports whether the certificate is its own issuer.
func selfIssued(cert *x509.Certificate) bool {
	if string(cert.RawSubject) != string(cert.RawIssuer) {
		return false
	}
	// After a key rollover, a CA signs its new key with the old one under the same name; the key identifiers differ.
	return len(cert.AuthorityKeyId) == 0 || len(cert.SubjectKeyId) == 0 ||
		string(cert.AuthorityKeyId) == string(cert.SubjectKeyId)
}

// checkWeakSignature checks the signature algorithm. Clients do not verify the signature of a certificate that they
// trust directly: that is a warning only, and for a root it is not reported.
func (r *run) checkWeakSignature(cert numbered) []Finding {
	trusted := selfIssued(cert.Certificate) || containsCert(r.bundle, cert.Certificate)
	if selfIssued(cert.Certificate) && !cert.Equal(r.chain[0].Certificate) {
		return nil
	}
	const fix = "have it reissued with a signature that uses SHA-256, SHA-384, SHA-512 or Ed25519"
	what := ""
	switch cert.SignatureAlgorithm {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.DSAWithSHA256, x509.ECDSAWithSHA1:
		what = fmt.Sprintf("is signed with %s, which clients refuse", cert.SignatureAlgorithm)
	case x509.UnknownSignatureAlgorithm:
		what = fmt.Sprintf(
			"is signed with an algorithm%s that Go programs such as kubectl reject",
			signatureOID(cert.Certificate),
		)
	default:
		return nil
	}
	f := finding(WeakSignature, fix, "%s %s", cert.where(), what)
	if trusted {
		f.Message += ", unless they trust this certificate itself; programs built on OpenSSL may refuse it even then"
		f = f.withSeverity(SeverityWarning)
	}
	return []Finding{f}
}

func signatureOID(cert *x509.Certificate) string {
	var outer struct {
		TBS       asn1.RawValue
		Algorithm struct {
			ID         asn1.ObjectIdentifier
			Parameters asn1.RawValue `asn1:"optional"`
		}
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(cert.Raw, &outer); err != nil {
		return ""
	}
	id := clip(outer.Algorithm.ID.String(), maxName)
	names := map[string]string{
		"1.2.840.113549.1.1.14":   "SHA-224 with RSA",
		"1.2.840.10045.4.3.1":     "ECDSA with SHA-224",
		"1.3.101.113":             "Ed448",
		"1.2.840.113549.1.1.10":   "RSA-PSS with unusual parameters, such as a salt length other than the hash's",
		"2.16.840.1.101.3.4.3.10": "ECDSA with SHA3-256",
	}
	if name, ok := names[id]; ok {
		return " (" + name + ")"
	}
	return " (" + id + ")"
}

func (r *run) checkServerAuth(leaf numbered) {
	const fix = "have it issued with the extended key usage serverAuth (cert-manager: usages: [digital signature, " +
		"server auth])"
	usages := leaf.ExtKeyUsage
	none := len(usages) == 0 && len(leaf.UnknownExtKeyUsage) == 0
	_, _, present := extension(leaf.Certificate, oidExtKeyUsage)
	switch {
	case slices.Contains(usages, x509.ExtKeyUsageServerAuth):
	case none && present:
		r.warn(NoServerAuth, fix, "%s has an extended key usage that is empty: Go accepts that, OpenSSL refuses it",
			leaf.where())
	case none:
		r.warn(NoServerAuth, fix, "%s has no extended key usage: most clients accept that, strict ones need serverAuth",
			leaf.where())
	case slices.Contains(usages, x509.ExtKeyUsageAny):
		r.warn(NoServerAuth, fix,
			"%s has the extended key usage anyExtendedKeyUsage without serverAuth: Go accepts that, OpenSSL refuses it",
			leaf.where())
	default:
		r.note(NoServerAuth, fix, "%s may not be used by a TLS server: its extended key usage is %s, without serverAuth",
			leaf.where(), usageNames(leaf.Certificate))
	}
}

func usageNames(cert *x509.Certificate) string {
	names := make([]string, 0, len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage))
	for _, usage := range cert.ExtKeyUsage {
		names = append(names, usage.String())
	}
	for _, id := range cert.UnknownExtKeyUsage {
		names = append(names, clip(id.String(), maxName))
	}
	return joined(names)
}

func keyUsageNames(usage x509.KeyUsage) string {
	all := []string{
		"digitalSignature", "nonRepudiation", "keyEncipherment", "dataEncipherment", "keyAgreement",
		"keyCertSign", "cRLSign", "encipherOnly", "decipherOnly",
	}
	var names []string
	for i, name := range all {
		if usage&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "empty"
	}
	return strings.Join(names, ", ")
}

// mustStaple reports whether the TLS features (RFC 7633) include status_request, which is OCSP stapling.
func mustStaple(cert *x509.Certificate) bool {
	const statusRequest = 5
	_, value, _ := extension(cert, oidMustStaple)
	var features []int
	rest, err := asn1.Unmarshal(value, &features)
	return err == nil && len(rest) == 0 && slices.Contains(features, statusRequest)
}
