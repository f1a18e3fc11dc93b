package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"strings"
)

// numbered is a parsed certificate with its position in a file.
type numbered struct {
	*x509.Certificate
	number int    // block number, from 1
	file   string // name of the file in messages
}

// where describes the certificate for a message: its position, its subject, and a prefix of its SHA-256 fingerprint.
func (n numbered) where() string {
	return fmt.Sprintf(
		"block %d of %s (%s, SHA-256 %s)",
		n.number,
		n.file,
		subject(n.Certificate),
		shortPrint(n.Certificate),
	)
}

// ParseBundle parses a CA bundle: PEM, CERTIFICATE blocks only. It returns all certificates that can be parsed, and
// findings about everything else, such as a block that libraries silently skip, a private key, or text after the last
// block. Size and number of certificates are limited. Empty data gives neither certificates nor findings.
func ParseBundle(data []byte) ([]*x509.Certificate, []Finding) {
	parsed, list := parseBundle(data, "the CA bundle")
	certificates := make([]*x509.Certificate, len(parsed))
	for i, p := range parsed {
		certificates[i] = p.Certificate
	}
	return certificates, list
}

// SameBundle reports whether two CA bundles contain the same certificates, regardless of order, duplicates, comments
// and line endings. Bundles that cannot be parsed completely are the same only if their bytes are.
func SameBundle(a, b []byte) bool {
	if bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) {
		return true
	}
	setA, okA := bundleSet(a)
	setB, okB := bundleSet(b)
	return okA && okB && maps.Equal(setA, setB)
}

func bundleSet(data []byte) (map[string]bool, bool) {
	certificates, list := ParseBundle(data)
	for _, f := range list {
		if f.Severity == SeverityError {
			return nil, false
		}
	}
	set := map[string]bool{}
	for _, cert := range certificates {
		set[Fingerprint(cert.Raw)] = true
	}
	return set, true
}

// UnionBundle returns a CA bundle with all certificates of the given ones, in order and without duplicates. Clients
// trust it while a CA is replaced. It omits what cannot be parsed; see ParseBundle.
func UnionBundle(bundles ...[]byte) []byte {
	var union bytes.Buffer
	seen := map[string]bool{}
	for _, bundle := range bundles {
		certificates, _ := ParseBundle(bundle)
		for _, cert := range certificates {
			if print := Fingerprint(cert.Raw); !seen[print] {
				seen[print] = true
				union.Write(encodeCertificate(cert.Raw))
			}
		}
	}
	return union.Bytes()
}

func parseBundle(data []byte, name string) ([]numbered, []Finding) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	if len(data) > maxBundleBytes {
		return nil, []Finding{tooLarge(name, len(data), maxBundleBytes, bundleSize)}
	}
	return parseCertificates(data, partBundle, name, maxBundleCertificates)
}

// Usual sizes, for the hint of TooLarge.
const (
	leafSize   = "a certificate is one or two kilobytes; one with hundreds of names can be split into several"
	chainSize  = "a certificate chain is a few kilobytes"
	keySize    = "a private key is at most a few kilobytes"
	bundleSize = "a CA bundle holds a few certificates, of one or two kilobytes each"
)

func tooLarge(name string, size, limit int, usual string) Finding {
	return finding(TooLarge, "check that the right file is in place; "+usual,
		"%s has %d bytes, more than the maximum of %d", name, size, limit).asFinal()
}

// parseCertificates parses a PEM file of certificates only. name is the file's name in messages.
func parseCertificates(data []byte, p part, name string, most int) ([]numbered, []Finding) {
	file := readPEM(data)
	if what, hint := notPEM(data, file.blocks, p); what != "" {
		return nil, []Finding{finding(NotACertificate, hint, "%s holds no PEM certificate: it is %s", name, what)}
	}
	if len(file.blocks) > most {
		return nil, []Finding{finding(TooLarge, "remove the unneeded certificates",
			"%s has %d blocks, more than the maximum of %d", name, len(file.blocks), most).asFinal()}
	}
	var parsed []numbered
	var list []Finding
	broken := false
	for _, block := range file.blocks {
		cert, problem := parseBlock(block, name, data)
		if problem != nil {
			list = append(list, *problem)
			broken = broken || problem.Severity == SeverityError
		}
		if cert == nil {
			continue
		}
		parsed = append(parsed, numbered{cert, block.number, name})
		list = append(list, checkSerial(parsed[len(parsed)-1])...)
	}
	if file.junkAfter > 0 && !broken {
		list = append(list, finding(NotACertificate, "remove what follows the last END line",
			"text follows the last certificate of %s, on line %d", name, file.junkAfter).withSeverity(SeverityWarning))
	}
	return parsed, list
}

// removeKey is the hint for a private key among certificates.
const removeKey = "remove the key from the file at once, and replace the key if anyone else could read the file"

// parseBlock returns the certificate of a block, or a finding that says why there is none. It returns both for a block
// that only some programs accept.
func parseBlock(block pemBlock, name string, data []byte) (*x509.Certificate, *Finding) {
	fail := func(hint, format string, args ...any) *Finding {
		f := finding(NotACertificate, hint, "block %d of %s (line %d) %s", block.number, name, block.line,
			fmt.Sprintf(format, args...)).asFinal()
		return &f
	}
	if strings.HasSuffix(block.label, "PRIVATE KEY") {
		return nil, fail(removeKey,
			"is a private key; only certificates belong there")
	}
	if block.problem != "" {
		return nil, fail(blockHint(block.problem, block.before, data), "cannot be read: %s", block.problem)
	}
	if block.label != "CERTIFICATE" {
		return nil, fail(labelHint(block.label), "is labelled %s, not CERTIFICATE; many programs silently skip it",
			quote(block.label))
	}
	cert, err := x509.ParseCertificate(block.bytes)
	if err != nil {
		return nil, unparsable(block, name, err)
	}
	if block.headers {
		return cert, fail("remove the lines between BEGIN and the first line of base64",
			"(%s) has PEM headers; many programs silently skip it", subject(cert))
	}
	if block.blank > 0 {
		f := finding(
			NotACertificate,
			"remove the empty line",
			"block %d of %s (%s) has an empty line (line %d): OpenSSL, and thus curl and Python, cannot read the file",
			block.number,
			name,
			subject(cert),
			block.blank,
		).withSeverity(SeverityWarning)
		return cert, &f
	}
	return cert, nil
}

// unparsable finds the cause of an error of x509.ParseCertificate.
func unparsable(block pemBlock, name string, err error) *Finding {
	where := fmt.Sprintf("block %d of %s (line %d)", block.number, name, block.line)
	var f Finding
	serial := rawSerial(block.bytes)
	var tail asn1.RawValue
	rest, tailErr := asn1.Unmarshal(block.bytes, &tail)
	switch text := err.Error(); {
	case serial != nil && serialProblem(serial) != "":
		f = finding(BadSerial, serialFix,
			"%s has a serial number that %s; Go programs such as kubectl refuse it", where, serialProblem(serial))
	case strings.Contains(text, "unsupported elliptic curve"):
		f = finding(WeakKey, "use P-256, P-384, P-521, Ed25519, or RSA with at least 2048 bits",
			"%s has a key on an elliptic curve that TLS clients do not support", where)
	case tailErr == nil && len(rest) > 0:
		f = finding(NotACertificate, copyAgain,
			"%s has %d bytes of junk after the certificate", where, len(rest))
	case errors.As(tailErr, new(asn1.SyntaxError)) || errors.As(tailErr, new(asn1.StructuralError)):
		f = finding(NotACertificate, copyAgain, "%s is not a certificate: it is cut short or damaged", where)
	default:
		if fault, fix := encodingFault(block.bytes); fault != "" {
			f = finding(NotACertificate, fix, "%s cannot be read by Go programs such as kubectl: %s", where, fault)
			break
		}
		f = finding(
			NotACertificate,
			"if the file may be damaged, copy it again; otherwise, have the certificate reissued without this error",
			"%s is not a certificate that Go programs such as kubectl can read: %s",
			where,
			quote(strings.TrimPrefix(text, "x509: ")),
		)
	}
	f = f.asFinal()
	return &f
}

// serialProblem returns how a serial number violates RFC 5280, section 4.1.2.2, or "".
func serialProblem(serial *big.Int) string {
	switch {
	case serial == nil:
		return ""
	case serial.Sign() < 0:
		return "is negative"
	case serial.Sign() == 0:
		return "is zero"
	case serial.BitLen() > 20*8:
		return "is longer than 20 octets"
	default:
		return ""
	}
}

// copyAgain is the hint for a file that no command can convert.
const copyAgain = "copy the file again from its source; the missing part cannot be restored"

const serialFix = "have the certificate reissued by a CA that follows RFC 5280"

func checkSerial(cert numbered) []Finding {
	if problem := serialProblem(cert.SerialNumber); problem != "" {
		return []Finding{finding(BadSerial, serialFix, "%s has a serial number that %s", cert.where(), problem)}
	}
	if cert.SerialNumber.BitLen() == 20*8 {
		// A number of 20 octets with the first bit set takes 21 octets in DER. Current clients accept it.
		return []Finding{finding(BadSerial, serialFix, "%s has a serial number of 20 octets that takes 21 when encoded",
			cert.where()).withSeverity(SeverityWarning)}
	}
	return nil
}

// rawSerial parses only the serial number, even if x509 rejects the rest.
func rawSerial(der []byte) *big.Int {
	var certificate struct {
		TBS       asn1.RawValue
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &certificate); err != nil {
		return nil
	}
	rest := certificate.TBS.Bytes
	var first asn1.RawValue
	next, err := asn1.Unmarshal(rest, &first)
	if err != nil {
		return nil
	}
	if first.Class == asn1.ClassContextSpecific && first.Tag == 0 {
		rest = next
	}
	serial := new(big.Int)
	if _, err := asn1.Unmarshal(rest, &serial); err != nil {
		return nil
	}
	return serial
}

func labelHint(label string) string {
	switch label {
	case "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST":
		return "this is the request that was sent to the CA; replace it with the certificate that the CA returned"
	case "PKCS7", "CMS":
		return "convert it: openssl pkcs7 -in FILE -print_certs -out new.pem"
	case "X509 CERTIFICATE", "TRUSTED CERTIFICATE":
		return "rewrite it: openssl x509 -in FILE -out new.pem"
	default:
		return "remove the block"
	}
}
