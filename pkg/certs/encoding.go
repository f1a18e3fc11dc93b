package certs

import (
	"encoding/asn1"
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode/utf8"
)

// encodingFault finds the field because of which Go fails to parse a certificate, and says who must change what. If the
// same CA reissues the certificate unchanged, the fault remains.
func encodingFault(der []byte) (fault, fix string) {
	outer := elements(der)
	if len(outer) == 0 {
		return "", ""
	}
	parts := elements(outer[0].Bytes)
	if len(parts) == 0 {
		return "", ""
	}
	tbs := elements(parts[0].Bytes)
	if len(tbs) > 0 && tbs[0].Class == asn1.ClassContextSpecific {
		tbs = tbs[1:]
	}
	if len(tbs) < 6 {
		return "", ""
	}
	issuer, subject := tbs[2], tbs[4]
	self := string(issuer.FullBytes) == string(subject.FullBytes)
	if problem := nameFault(issuer); problem != "" {
		if self {
			return "in its own name, " + readableName(subject) + ", " + problem,
				"this is the CA's own certificate: the CA's operator has to recreate it with that field as " +
					"UTF8String (OpenSSL: string_mask = utf8only), and then reissue every certificate below it"
		}
		return "in the name of its issuer, " + readableName(issuer) + ", " + problem,
			"the CA " + readableName(issuer) + " has to get a new certificate of its own, with that field as UTF8String " +
				"(OpenSSL: string_mask = utf8only), and then reissue this certificate; otherwise, the CA makes the same " +
				"mistake again"
	}
	by := "ask the issuer, " + readableName(issuer) + ", "
	if problem := nameFault(subject); problem != "" {
		return "in its subject, " + readableName(subject) + ", " + problem,
			by + "to encode that field as UTF8String (OpenSSL: string_mask = utf8only)"
	}
	for _, field := range tbs[6:] {
		if field.Class != asn1.ClassContextSpecific || field.Tag != 3 {
			continue
		}
		for _, list := range elements(field.Bytes) {
			for _, extension := range elements(list.Bytes) {
				if fault, fix := extensionFault(extension, by); fault != "" {
					return fault, fix
				}
			}
		}
	}
	return "", ""
}

// extensionFault checks the extensions that Go decodes.
func extensionFault(extension asn1.RawValue, by string) (fault, fix string) {
	fields := elements(extension.Bytes)
	if len(fields) < 2 {
		return "", ""
	}
	var oid asn1.ObjectIdentifier
	if _, err := asn1.Unmarshal(fields[0].FullBytes, &oid); err != nil {
		return "", ""
	}
	content := elements(fields[len(fields)-1].Bytes)
	if len(content) == 0 {
		return "", ""
	}
	switch oid.String() {
	case "2.5.29.17":
		for _, name := range elements(content[0].Bytes) {
			if problem := generalNameFault(name, 4, 16); problem != "" {
				return "in its subject alternative names, " + problem,
					by + "for a certificate with that name in ASCII: a DNS name with other letters is written as xn--… (Punycode)"
			}
		}
	case "2.5.29.30":
		for _, group := range elements(content[0].Bytes) {
			for _, subtree := range elements(group.Bytes) {
				base := elements(subtree.Bytes)
				if len(base) == 0 {
					continue
				}
				if problem := generalNameFault(base[0], 8, 32); problem != "" {
					return "in its name constraints, " + problem,
						by + "for a CA certificate with valid name constraints: each IP entry is an address and a mask (8 or 32 " +
							"bytes), and each name is ASCII. A Windows CA writes an empty entry if \"IPADDRESS =\" has no value in " +
							"CAPolicy.inf. Certificates that the CA has issued stay valid if its new certificate has the same key and name"
				}
			}
		}
	}
	return "", ""
}

// generalNameFault checks a GeneralName of RFC 5280. ipv4 and ipv6 are the lengths of IP addresses in bytes.
func generalNameFault(name asn1.RawValue, ipv4, ipv6 int) string {
	kinds := map[int]string{1: "e-mail address", 2: "DNS name", 6: "URI"}
	if name.Class != asn1.ClassContextSpecific {
		return ""
	}
	if name.Tag == 7 {
		if n := len(name.Bytes); n != ipv4 && n != ipv6 {
			return fmt.Sprintf("an IP address has %d bytes; %d or %d are needed", n, ipv4, ipv6)
		}
		if n := len(name.Bytes); ipv4 == 8 {
			if ones, bits := net.IPMask(name.Bytes[n/2:]).Size(); ones == 0 && bits == 0 {
				return "the mask of an IP address has gaps"
			}
		}
		return ""
	}
	kind, known := kinds[name.Tag]
	if at := slices.IndexFunc(name.Bytes, func(b byte) bool { return b > 0x7f }); known && at >= 0 {
		return fmt.Sprintf("the %s %s has the character %s, which is not ASCII", kind, quote(string(name.Bytes)),
			characterAt(name.Bytes, at))
	}
	return ""
}

// nameFault checks the encoding of the attributes of a distinguished name.
func nameFault(name asn1.RawValue) string {
	for _, set := range elements(name.Bytes) {
		for _, attribute := range elements(set.Bytes) {
			pair := elements(attribute.Bytes)
			if len(pair) != 2 {
				return "an attribute has no value"
			}
			if problem := stringFault(pair[1]); problem != "" {
				return "the " + attributeName(pair[0]) + " " + problem
			}
		}
	}
	return ""
}

func attributeName(oid asn1.RawValue) string {
	var id asn1.ObjectIdentifier
	if _, err := asn1.Unmarshal(oid.FullBytes, &id); err != nil {
		return "attribute without a type"
	}
	names := map[string]string{
		"2.5.4.3": "common name (CN)", "2.5.4.5": "serial number", "2.5.4.6": "country (C)", "2.5.4.7": "locality (L)",
		"2.5.4.8": "state (ST)", "2.5.4.9": "street", "2.5.4.10": "organization (O)", "2.5.4.11": "organizational unit (OU)",
		"0.9.2342.19200300.100.1.25": "domain component (DC)", "1.2.840.113549.1.9.1": "e-mail address",
	}
	if name := names[id.String()]; name != "" {
		return name
	}
	return "attribute " + id.String()
}

// stringFault says why an ASN.1 string is invalid for its type.
func stringFault(value asn1.RawValue) string {
	bad := func(name string, permitted func(byte) bool) string {
		at := slices.IndexFunc(value.Bytes, func(b byte) bool { return !permitted(b) })
		if at < 0 {
			return ""
		}
		return fmt.Sprintf("is a %s and has the character %s, which that type does not permit", name,
			characterAt(value.Bytes, at))
	}
	switch value.Tag {
	case asn1.TagPrintableString:
		return bad("PrintableString", func(b byte) bool {
			return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' ||
				strings.IndexByte(" '()+,-./:=?*&", b) >= 0 // Go permits the last two as well
		})
	case asn1.TagIA5String:
		return bad("IA5String", func(b byte) bool { return b <= 0x7f })
	case asn1.TagNumericString:
		return bad("NumericString", func(b byte) bool { return b == ' ' || b >= '0' && b <= '9' })
	case asn1.TagUTF8String:
		if !utf8.Valid(value.Bytes) {
			return "is a UTF8String and is not valid UTF-8"
		}
	case asn1.TagBMPString:
		if len(value.Bytes)%2 != 0 {
			return "is a BMPString with an odd number of bytes"
		}
	case asn1.TagT61String:
	default:
		return fmt.Sprintf("has ASN.1 type %d, which Go cannot read", value.Tag)
	}
	return ""
}

// characterAt quotes one character, even if the text is not valid UTF-8.
func characterAt(text []byte, at int) string {
	if r, _ := utf8.DecodeRune(text[at:]); r != utf8.RuneError {
		return quote(string(r))
	}
	return fmt.Sprintf("0x%02x", text[at])
}

// readableName formats a distinguished name that Go does not parse.
func readableName(name asn1.RawValue) string {
	var all []string
	for _, set := range elements(name.Bytes) {
		for _, attribute := range elements(set.Bytes) {
			if pair := elements(attribute.Bytes); len(pair) == 2 {
				what := attributeName(pair[0])
				if _, short, ok := strings.Cut(strings.TrimSuffix(what, ")"), "("); ok {
					what = short
				}
				all = append(all, what+"="+strings.ToValidUTF8(string(pair[1].Bytes), "?"))
			}
		}
	}
	return quote(strings.Join(all, ", "))
}
