package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// remark reports a property that Go accepts and OpenSSL or GnuTLS reject. The text follows the certificate's name in a
// sentence, such as "is a proxy certificate".
type remark func(hint, format string, args ...any)

const (
	reissueFix = "have it reissued by a CA that follows RFC 5280"
	// gnuTLSMost is how many certificates GnuTLS accepts from a server by default.
	gnuTLSMost = 16
)

// lenientRemarks reports what Go accepts and others reject in certificate i of a verified chain.
func lenientRemarks(chain []*x509.Certificate, i int, note remark) {
	cert := chain[i]
	if root := i > 0 && i == len(chain)-1; root && slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) &&
		!slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		note("publish a root without extended key usage, or with serverAuth",
			"has the extended key usage anyExtendedKeyUsage without serverAuth: OpenSSL refuses it")
	}
	issuerRemarks(chain, i, note)
	timeRemarks(cert, note)
	extensionRemarks(cert, i > 0, note)
	constraintRemarks(cert, chain[0], note)
}

// issuerRemarks is about references to the issuer. Go tries every certificate with the issuer's name; OpenSSL only
// those that match all parts of the authority key identifier.
func issuerRemarks(chain []*x509.Certificate, i int, note remark) {
	cert, parent := chain[i], chain[i]
	consequence := "the certificate's own: OpenSSL does not treat it as a root"
	if i+1 < len(chain) {
		parent = chain[i+1]
		consequence = fmt.Sprintf("that of %s: OpenSSL does not find the issuer", subject(parent))
	} else if !signedBy(cert, cert) {
		return // the issuer is not used
	}
	issuer, serial := authority(cert)
	switch {
	case len(cert.AuthorityKeyId) > 0 && len(parent.SubjectKeyId) > 0 &&
		!bytes.Equal(cert.AuthorityKeyId, parent.SubjectKeyId):
		note("have it reissued with the identifier of its issuer's key",
			"has an authority key identifier whose key ID is not %s", consequence)
	case serial != nil && serial.Cmp(parent.SerialNumber) != 0 || issuer != nil && !bytes.Equal(issuer, parent.RawIssuer):
		note("the CA's certificate was probably renewed: have this certificate reissued with the renewed one, or without an "+
			"issuer and serial number in its authority key identifier",
			"has an authority key identifier whose issuer and serial number do not match %s", consequence)
	case cert != parent && selfIssued(cert) && !bytes.Equal(cert.RawSubjectPublicKeyInfo, parent.RawSubjectPublicKeyInfo):
		note("have it reissued with a name of its own",
			"has the same name as its issuer, and no key identifiers tell them apart: OpenSSL treats it as self-signed")
	}
}

// authority returns the issuer and serial number of the issuer's certificate from the authority key identifier; nil if
// absent.
func authority(cert *x509.Certificate) (issuer []byte, serial *big.Int) {
	var identifier struct {
		Key    []byte        `asn1:"optional,tag:0"`
		Issuer asn1.RawValue `asn1:"optional,tag:1"`
		Serial *big.Int      `asn1:"optional,tag:2"`
	}
	_, value, ok := extension(cert, oidAuthorityKeyID)
	if !ok {
		return nil, nil
	}
	if _, err := asn1.Unmarshal(value, &identifier); err != nil {
		return nil, nil
	}
	const directoryName = 4
	for _, name := range elements(identifier.Issuer.Bytes) {
		if name.Class == asn1.ClassContextSpecific && name.Tag == directoryName {
			return name.Bytes, identifier.Serial
		}
	}
	return nil, identifier.Serial
}

// elements splits the content of a sequence, as far as it can be parsed.
func elements(content []byte) []asn1.RawValue {
	var all []asn1.RawValue
	for len(content) > 0 {
		var element asn1.RawValue
		rest, err := asn1.Unmarshal(content, &element)
		if err != nil {
			break
		}
		all, content = append(all, element), rest
	}
	return all
}

// timeRemarks is about dates whose format violates RFC 5280, section 4.1.2.5.
func timeRemarks(cert *x509.Certificate, note remark) {
	var tbs struct {
		Version   asn1.RawValue `asn1:"optional,tag:0"`
		Serial    asn1.RawValue
		Algorithm asn1.RawValue
		Issuer    asn1.RawValue
		Validity  asn1.RawValue
	}
	if _, err := asn1.Unmarshal(cert.RawTBSCertificate, &tbs); err != nil {
		return
	}
	for _, written := range elements(tbs.Validity.Bytes) {
		form := "YYMMDDhhmmssZ"
		if written.Tag == asn1.TagGeneralizedTime {
			form = "YYYYMMDDhhmmssZ"
		}
		if len(written.Bytes) != len(form) || !bytes.HasSuffix(written.Bytes, []byte("Z")) {
			note(reissueFix, "has a date that is not written as %s, but as %s: OpenSSL cannot read it",
				form, quote(string(written.Bytes)))
			return
		}
	}
}

// extensionRemarks is about extensions that Go does not check, or not strictly.
func extensionRemarks(cert *x509.Certificate, isIssuer bool, note remark) {
	for _, e := range cert.Extensions {
		id := e.Id.String()
		standard := slices.ContainsFunc(
			[]string{"2.5.29.", "1.3.6.1.5.5.7.1.", "2.16.840.1.113730.1."},
			func(prefix string) bool {
				return strings.HasPrefix(id, prefix)
			},
		)
		var content asn1.RawValue
		if rest, err := asn1.Unmarshal(e.Value, &content); standard && (err != nil || len(rest) > 0) {
			note(reissueFix, "has a damaged extension (%s): Go ignores that, OpenSSL and GnuTLS often refuse it",
				clip(id, maxName))
			continue
		}
		switch id {
		case "2.5.29.17":
			if kind := oddName(content.Bytes); kind != "" {
				note("have it reissued with DNS names and IP addresses only",
					"has %s among its alternative names: GnuTLS cannot read it", kind)
			}
		case "2.5.29.18":
			if kind := oddName(content.Bytes); kind != "" {
				note("have it reissued without the alternative names of its issuer",
					"has %s among the alternative names of its issuer: GnuTLS cannot read it", kind)
			}
		case "2.5.29.31":
			if slices.ContainsFunc(elements(content.Bytes), func(point asn1.RawValue) bool { return len(point.Bytes) == 0 }) {
				note(reissueFix, "has an empty CRL distribution point: OpenSSL refuses it")
			}
		case "2.5.29.33", "2.5.29.36":
			if e.Critical {
				note(
					"have it reissued without the extension, or with it not marked critical",
					"has a critical certificate policy extension (%s), which GnuTLS does not support: GnuTLS refuses the certificate",
					id,
				)
			}
		case "1.3.6.1.5.5.7.1.14":
			note(
				"have it reissued without that extension",
				"is marked as a proxy certificate (proxyCertInfo): OpenSSL refuses it",
			)
		case "1.3.6.1.5.5.7.1.24":
			if isIssuer {
				note(
					"use a CA without that extension",
					"requires a TLS feature such as OCSP stapling in the certificates that it issues: GnuTLS refuses certificates "+
						"and servers without that feature",
				)
			}
		case "2.16.840.1.113730.1.1":
			const sslServer = 1
			var types asn1.BitString
			if _, err := asn1.Unmarshal(e.Value, &types); !isIssuer && (err != nil || types.At(sslServer) == 0) {
				note(
					"have it reissued without that extension",
					"has a Netscape certificate type other than TLS server: OpenSSL refuses it",
				)
			}
		}
	}
}

// oddName describes an alternative name that some clients cannot parse, or returns "".
func oddName(names []byte) string {
	const dnsName, x400Address, ediPartyName, last = 2, 3, 5, 8
	for _, name := range elements(names) {
		switch {
		case name.Class != asn1.ClassContextSpecific || name.Tag > last:
			return "an unknown name type"
		case name.Tag == dnsName && len(name.Bytes) == 0:
			return "an empty DNS name"
		case name.Tag == x400Address:
			return "an X.400 address"
		case name.Tag == ediPartyName:
			return "an EDI party name"
		}
	}
	return ""
}

// subjectMail returns the e-mail addresses in a certificate's subject.
func subjectMail(cert *x509.Certificate) []string {
	emailAddress := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}
	var addresses []string
	for _, attribute := range cert.Subject.Names {
		if address, ok := attribute.Value.(string); ok && attribute.Type.Equal(emailAddress) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// constraintRemarks is about name constraints that others apply more broadly than Go.
func constraintRemarks(ca, leaf *x509.Certificate, note remark) {
	critical, value, ok := extension(ca, oidNameConstraints)
	if !ok {
		return
	}
	type subtree struct {
		Base asn1.RawValue
		Min  int           `asn1:"optional,tag:0"`
		Max  asn1.RawValue `asn1:"optional,tag:1"`
	}
	var constraints struct {
		Permitted []subtree `asn1:"optional,tag:0"`
		Excluded  []subtree `asn1:"optional,tag:1"`
	}
	if _, err := asn1.Unmarshal(value, &constraints); err != nil {
		return // Go has parsed them differently
	}
	const fix = "have the certificate issued by a CA without these name constraints"
	subtrees := slices.Concat(constraints.Permitted, constraints.Excluded)
	if slices.ContainsFunc(subtrees, func(s subtree) bool { return s.Min != 0 || len(s.Max.FullBytes) > 0 }) {
		note(fix, "has name constraints with a minimum or a maximum: OpenSSL refuses them")
	}
	// e-mail address, DNS name, URI, IP address
	known := []int{1, 2, 6, 7}
	// Go rejects critical ones.
	if !critical && slices.ContainsFunc(subtrees, func(s subtree) bool { return !slices.Contains(known, s.Base.Tag) }) {
		note("try the certificate with these programs; if they refuse it, have it issued by another CA",
			"has name constraints on names other than DNS names, IP addresses, e-mail addresses and URIs: Go ignores these "+
				"constraints, but OpenSSL and GnuTLS enforce them")
	}
	if ca == leaf {
		return
	}
	for _, address := range subjectMail(leaf) {
		within := func(constraint string) bool { return mailWithin(address, constraint) }
		if excludes(ca.ExcludedEmailAddresses, ca.PermittedEmailAddresses, within) {
			note("have the certificate issued without an e-mail address in its subject",
				"may not issue for %s, the e-mail address in the subject of the serving certificate: OpenSSL and GnuTLS also "+
					"apply name constraints to this address", quote(address))
		}
	}
	name := leaf.Subject.CommonName
	within := func(domain string) bool { return inDomain(name, domain) }
	if len(leaf.DNSNames) == 0 && name != "" && excludes(ca.ExcludedDNSDomains, ca.PermittedDNSDomains, within) {
		note("have the certificate issued without a common name, or with a DNS name that the CA may issue for",
			"may not issue for %s, the common name of the serving certificate: if there is no DNS name, GnuTLS and OpenSSL "+
				"apply name constraints to the common name", quote(name))
	}
}

// excludes reports whether name constraints exclude a name, which is within some of them.
func excludes(excluded, permitted []string, within func(string) bool) bool {
	return slices.ContainsFunc(excluded, within) || len(permitted) > 0 && !slices.ContainsFunc(permitted, within)
}
