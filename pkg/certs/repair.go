package certs

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
)

// Part is what Repair is to bring out of a file.
type Part int

const (
	// PartAny is the certificates in the file; its private key when it holds none; and both when it begins with the key,
	// as files do that are kept like a key.
	PartAny Part = iota
	// PartCertificates is the certificates in the file.
	PartCertificates
	// PartKey is the private key in the file.
	PartKey
)

// Repaired is a file as it should have been.
type Repaired struct {
	// PEM holds the certificates, the serving certificate first, then each one that signed the one before it; or one
	// private key; or both, where the file begins with the key. Where the file holds no serving certificate, as a CA bundle does, the order is that of the file.
	PEM []byte
	// Certificates is how many certificates PEM holds.
	Certificates int
	// Key is true when PEM holds a private key.
	Key bool
	// Done says in words what was changed; it is empty when the file was right already. It shows nothing of a key.
	Done []string
	// Encrypted is true when PEM is a private key that still needs its passphrase.
	Encrypted bool
}

// RepairError says why a file cannot be repaired.
type RepairError struct {
	// Problems name what cannot be read or what is missing; there is at least one.
	Problems []string
	// Hint says what to do instead.
	Hint string
}

// Error joins the problems.
func (e *RepairError) Error() string { return joined(e.Problems) }

// maxRepairBytes is far above what Check reads. All the work on a file is linear in its size.
const maxRepairBytes = 1 << 20

// Repair brings certificates or a private key into the form that all programs read: PEM with nothing else around it. It
// splits what runs into each other, decodes DER, PKCS#7, UTF-16 and base64 of base64, mends the lines of PEM, orders a
// chain, and leaves out what is there twice or does not belong there. It never leaves out a certificate or makes up a
// byte: when something cannot be read it returns a *RepairError, and no file.
//
// What is inside a certificate stays as it is, so the result may still be refused by Check.
func Repair(data []byte, part Part) (*Repaired, error) {
	return repair(data, part, true)
}

func repair(data []byte, part Part, order bool) (*Repaired, error) {
	if len(data) > maxRepairBytes {
		return nil, &RepairError{
			Problems: []string{fmt.Sprintf("it has %d bytes, more than the %d that are read", len(data), maxRepairBytes)},
			Hint:     "check that it is the right file",
		}
	}
	r := &repairer{}
	r.read(data)
	switch {
	case part == PartKey, part == PartAny && len(r.certificates) == 0 && len(r.keys) > 0:
		return r.key()
	case part == PartAny && r.keyFirst:
		return r.both(order)
	}
	return r.chain(order)
}

// both returns the key and the certificates of a file that begins with its key.
func (r *repairer) both(order bool) (*Repaired, error) {
	certificates := r.certificates
	r.certificates = nil
	key, err := r.key()
	if err != nil {
		return nil, err
	}
	r.certificates, r.keys = certificates, nil
	all, err := r.chain(order)
	if err != nil {
		return nil, err
	}
	all.PEM, all.Key, all.Encrypted = slices.Concat(key.PEM, all.PEM), true, key.Encrypted
	return all, nil
}

// repairer is one repair: what was found in a file, and what was done to get at it.
type repairer struct {
	certificates []foundCertificate
	keys         []foundKey
	done         []string
	lost         []string
	keyFirst     bool // the file begins with its private key
	requestFirst bool // the file begins with a certificate request, where a serving certificate would stand
	hint         string
}

type foundCertificate struct {
	der  []byte
	cert *x509.Certificate // nil when Go cannot read it
	name string            // "block 2"
}

type foundKey struct {
	block  *pem.Block
	signer crypto.Signer // nil for one that is encrypted
}

func (r *repairer) did(format string, args ...any) { r.done = noted(r.done, format, args...) }

func (r *repairer) lose(format string, args ...any) { r.lost = noted(r.lost, format, args...) }

// noted appends a sentence to a list whose length hostile data cannot drive up.
func noted(list []string, format string, args ...any) []string {
	const most = 200
	sentence := clip(fmt.Sprintf(format, args...), maxMessage)
	if len(list) == most {
		sentence = "and more of that kind"
	}
	if len(list) > most || slices.Contains(list, sentence) {
		return list
	}
	return append(list, sentence)
}

// read takes off what is wrapped around the data, layer by layer, and then finds what is in it.
func (r *repairer) read(data []byte) {
	const most = 4 // layers; deeper ones are no accident
	for range most {
		if text, ok := fromUTF16(data); ok {
			r.did("converted it from UTF-16")
			data = text
		}
		what := likelyFormat(data)
		switch {
		case hasMarker(data):
			r.readText(data)
			return
		case what == disguiseDER:
			r.did("converted it from binary DER to PEM")
			r.readDER(data, "the file", "")
			return
		case strings.Contains(what, "base64"):
			decoded, _ := unbase64(bytes.TrimSpace(data)) // what has a likelyFormat of base64 can be decoded
			r.did("decoded the base64 around it")
			data = decoded
		default:
			r.lose("it holds nothing that can be read: it is %s", what)
			r.hint = hintFor(what)
			return
		}
	}
	r.lose("it is encoded as base64 more than %d times", most)
}

// readDER finds what DER holds. name is how messages call the place; label is that of its PEM block, or empty.
func (r *repairer) readDER(data []byte, name, label string) {
	parts := elements(data)
	if len(parts) == 0 {
		r.lose("%s cannot be read: it is cut short or damaged", name)
		r.hint = copyAgain
		return
	}
	used, taken := 0, 0
	for i, part := range parts {
		der := part.FullBytes
		if i > 0 && !r.isKnown(der) {
			break
		}
		r.take(der, name, label)
		used, taken = used+len(der), taken+1
	}
	if taken > 1 {
		r.did("%s: split it into the %d parts that it holds", name, taken)
	}
	if junk := len(data) - used; junk > 0 {
		r.did("%s: cut off %d bytes of junk", name, junk)
	}
}

// isKnown says whether the data is something that take recognises.
func (r *repairer) isKnown(der []byte) bool {
	probe := &repairer{}
	probe.take(der, "", "")
	return len(probe.certificates)+len(probe.keys) > 0
}

// take recognises one element by its content, as labels may lie.
func (r *repairer) take(der []byte, name, label string) {
	if cert, err := x509.ParseCertificate(der); err == nil {
		if label != "" && label != labelCertificate {
			r.did("%s (%s): labelled it CERTIFICATE instead of %s", name, subject(cert), clip(label, maxName))
		}
		r.certificates = append(r.certificates, foundCertificate{der, cert, name})
		return
	}
	if key, err := parseKey(der); err == nil {
		r.takeKey(key, name, label)
		return
	}
	if inner := pkcs7Certificates(der); len(inner) > 0 {
		r.did("%s: took %d certificates out of a PKCS#7 container", name, len(inner))
		for i, one := range inner {
			r.take(one.FullBytes, fmt.Sprintf("certificate %d of %s", i+1, name), "")
		}
		return
	}
	if _, err := x509.ParseCertificateRequest(der); err == nil {
		r.requestFirst = r.requestFirst || len(r.certificates) == 0
		r.did("left out a certificate request (%s)", name)
		return
	}
	if _, err := x509.ParseRevocationList(der); err == nil {
		r.did("left out a revocation list (%s)", name)
		return
	}
	switch {
	case label == labelEncrypted:
		r.addKey(foundKey{block: &pem.Block{Type: label, Bytes: der}})
	case strings.HasSuffix(label, "PARAMETERS"):
		r.did("left out parameters (%s), which are in the key as well", name)
	case rawSerial(der) != nil && !strings.HasSuffix(label, "KEY"):
		// It has the form of a certificate, and Go cannot read it. A repair keeps it as it is.
		r.certificates = append(r.certificates, foundCertificate{der, nil, name})
	case label == "" || strings.HasSuffix(label, labelCertificate) || strings.HasSuffix(label, "PRIVATE KEY"):
		r.lose("%s cannot be read: it is damaged, or neither a certificate nor a private key", name)
	default:
		r.did("left out %s, which is labelled %s", name, quote(label))
	}
}

// Labels of PEM blocks.
const (
	labelCertificate = "CERTIFICATE"
	labelEncrypted   = "ENCRYPTED PRIVATE KEY"
	labelOpenSSH     = "OPENSSH PRIVATE KEY"
)

func (r *repairer) takeKey(key any, name, label string) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		r.lose("%s is a private key that cannot sign", name)
		return
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		r.lose("%s is a private key of a type that cannot be written", name)
		return
	}
	if label != "PRIVATE KEY" && label != "" {
		r.did("%s: wrote the key in PKCS#8 form", name)
	}
	r.addKey(foundKey{&pem.Block{Type: "PRIVATE KEY", Bytes: der}, signer})
}

func (r *repairer) addKey(key foundKey) {
	r.keyFirst = r.keyFirst || len(r.certificates) == 0
	r.keys = append(r.keys, key)
}

// pkcs7Certificates returns the certificates in a PKCS#7 container (RFC 2315, signedData) that is encoded as DER.
func pkcs7Certificates(der []byte) []asn1Element {
	outer := elements(der)
	if len(outer) != 1 {
		return nil
	}
	info := elements(outer[0].Bytes) // the type, and [0] with the content
	if len(info) != 2 || !bytes.Equal(info[0].FullBytes, []byte("\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02")) {
		return nil
	}
	signed := elements(info[1].Bytes)
	if len(signed) != 1 {
		return nil
	}
	for _, field := range elements(signed[0].Bytes) {
		if field.Class == classContext && field.Tag == 0 {
			return elements(field.Bytes)
		}
	}
	return nil
}

// key returns the private key that was found.
func (r *repairer) key() (*Repaired, error) {
	if len(r.keys) == 0 && len(r.lost) == 0 {
		r.lose("it holds no private key")
		r.hint = "give the file with the private key that the certificate was requested with"
	}
	if len(r.keys) > 1 {
		first := r.keys[0]
		r.keys = slices.CompactFunc(r.keys, func(a, b foundKey) bool { return bytes.Equal(a.block.Bytes, b.block.Bytes) })
		if len(r.keys) > 1 {
			r.lose("it holds %d different private keys, and nothing tells which one is meant", len(r.keys))
			r.hint = "leave only the key of the serving certificate in the file"
		} else {
			r.did("left out a private key that is there twice")
		}
		r.keys[0] = first
	}
	if err := r.failure(); err != nil {
		return nil, err
	}
	if n := len(r.certificates); n > 0 {
		r.did("left out what else is in the file: certificates (%d)", n)
	}
	found := r.keys[0]
	return &Repaired{PEM: pem.EncodeToMemory(found.block), Key: true, Done: r.done, Encrypted: found.signer == nil}, nil
}

// chain returns the certificates that were found, in their right order.
func (r *repairer) chain(order bool) (*Repaired, error) {
	if len(r.certificates) == 0 && len(r.lost) == 0 {
		r.lose("it holds no certificate")
		r.hint = "give the file with the certificate that the CA returned"
	}
	if r.requestFirst && len(r.lost) == 0 && !slices.ContainsFunc(r.certificates, foundCertificate.serves) {
		r.lose("it holds a certificate request in place of the serving certificate")
		r.hint = labelHint("CERTIFICATE REQUEST") + ", or take it out of a CA bundle"
	}
	if err := r.failure(); err != nil {
		return nil, err
	}
	if len(r.keys) > 0 {
		r.did("left out a private key, which does not belong there; replace it if anybody else could read the file")
	}
	var unique []foundCertificate
	for _, one := range r.certificates {
		if first := slices.IndexFunc(
			unique,
			func(u foundCertificate) bool { return bytes.Equal(u.der, one.der) },
		); first >= 0 {
			r.did("left out %s, which is the same certificate as %s", one.name, unique[first].name)
			continue
		}
		unique = append(unique, one)
	}
	if order {
		unique = r.inOrder(unique)
	}
	repaired := &Repaired{Certificates: len(unique), Done: r.done}
	for _, one := range unique {
		repaired.PEM = append(repaired.PEM, encodeCertificate(one.der)...)
	}
	return repaired, nil
}

func (r *repairer) failure() error {
	if len(r.lost) == 0 {
		return nil
	}
	return &RepairError{Problems: r.lost, Hint: r.hint}
}

// serves says whether a certificate is that of a server: it is not a CA, or it has names of hosts.
func (c foundCertificate) serves() bool {
	return c.cert != nil && (!isCA(c.cert) || len(c.cert.DNSNames)+len(c.cert.IPAddresses) > 0)
}

// inOrder puts the serving certificate first, then those that signed one before them, then the others as they stood. It
// leaves a CA bundle as it is, and what is in a good order already.
func (r *repairer) inOrder(found []foundCertificate) []foundCertificate {
	if len(found) < 2 || len(found) > DefaultLimits().ChainCertificates ||
		slices.ContainsFunc(found, func(c foundCertificate) bool { return c.cert == nil }) {
		return found
	}
	leaf := slices.IndexFunc(found, func(c foundCertificate) bool { return c.serves() && !isCA(c.cert) })
	if leaf < 0 {
		leaf = slices.IndexFunc(found, foundCertificate.serves)
	}
	if leaf < 0 {
		return found
	}
	chain := make([]numbered, 0, len(found))
	for i, one := range found {
		chain = append(chain, numbered{one.cert, i, one.name})
	}
	first := chain[leaf]
	chain = append([]numbered{first}, slices.Delete(chain, leaf, leaf+1)...)
	path := buildPath(chain)
	if leaf == 0 && len(checkOrder(chain, path)) == 0 {
		return found
	}
	ordered := slices.Clone(path)
	for grown := true; grown; { // other paths, where certificates are cross-signed
		grown = false
		for _, next := range chain {
			if !containsCert(ordered, next.Certificate) && slices.ContainsFunc(ordered, func(child numbered) bool {
				return !selfIssued(child.Certificate) && signedBy(child.Certificate, next.Certificate)
			}) {
				ordered, grown = append(ordered, next), true
			}
		}
	}
	for _, next := range chain {
		if !containsCert(ordered, next.Certificate) {
			ordered = append(ordered, next)
		}
	}
	sorted := make([]foundCertificate, len(ordered))
	names := make([]string, len(ordered))
	for i, one := range ordered {
		sorted[i], names[i] = found[one.number], subject(one.Certificate)
	}
	r.did("put the certificates in order: %s", strings.Join(names, ", then "))
	return sorted
}

// repairCommand is a hint: Repair as a command.
const repairCommand = "write the file again: pinniped ip-tls repair FILE -o NEW"

// keyRepairCommand is the same for a private key.
const keyRepairCommand = "write the key again: pinniped ip-tls repair FILE --private-key -o NEW"

// certificateHint returns the command that repairs a file of certificates where that would help, else the other hint.
func certificateHint(data []byte, most int, otherwise string) string {
	repaired, err := repair(data, PartAny, false)
	if err != nil || repaired.Key || repaired.Certificates > most {
		return otherwise
	}
	for _, block := range readPEM(repaired.PEM).blocks {
		if _, problem := parseBlock(block, ""); problem != nil && problem.Code == NotACertificate {
			return otherwise
		}
	}
	return repairCommand
}

// orderHint adds the command that orders tls.crt to a hint, where that gives the right order.
func (r *run) orderHint(hint string) string {
	repaired, err := Repair(r.CertPEM, PartAny)
	if err != nil || repaired.Key {
		return hint
	}
	chain, list := readChain(repaired.PEM, r.Limits, r.Sources.Certificate)
	if len(list) > 0 || len(chain) == 0 || !chain[0].Equal(r.chain[0].Certificate) ||
		len(checkOrder(chain, buildPath(chain))) > 0 {
		return hint
	}
	return hint + ": pinniped ip-tls repair FILE -o NEW"
}

// keyHint returns the command that repairs a private key where that would help, else the other hint.
func keyHint(data []byte, otherwise string) string {
	repaired, err := repair(data, PartKey, false)
	switch {
	case err != nil:
		return otherwise
	case repaired.Encrypted:
		return keyRepairCommand + ", then " + decryptHint
	default:
		return keyRepairCommand
	}
}
