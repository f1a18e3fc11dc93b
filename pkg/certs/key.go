package certs

import (
	"bytes"
	"crypto"
	"crypto/dsa" //nolint:staticcheck // recognised so that it can be refused by name
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

const (
	minRSABits = 2048
	// maxRSABits is the maximum that Go's TLS accepts from a peer.
	maxRSABits = 8192
)

// readKey parses tls.key. Messages contain none of its content, nor x509's error texts, which might quote it in the
// future.
func readKey(data []byte, sources Sources) (crypto.Signer, []Finding) {
	name := sources.Key
	if len(data) > maxKeyBytes {
		return nil, []Finding{tooLarge(name, len(data), maxKeyBytes, keySize)}
	}
	file := readPEM(data)
	if what, hint := notPEM(data, file.blocks, partKey); what != "" {
		return nil, []Finding{finding(KeyUnreadable, hint, "%s holds no PEM private key: it is %s", name, what)}
	}
	var key *pemBlock
	count := 0
	for i, block := range file.blocks {
		if strings.HasSuffix(block.label, "PRIVATE KEY") {
			count++
			if key == nil {
				key = &file.blocks[i]
			}
		}
	}
	if key == nil {
		return nil, []Finding{noKeyAmong(file.blocks, sources)}
	}
	signer, list := readKeyBlock(*key, data, name)
	if signer != nil && count > 1 {
		return signer, []Finding{finding(KeyUnreadable, "keep only the serving certificate's key there",
			"%s holds %d private keys; only the first one is used", name, count).withSeverity(SeverityWarning)}
	}
	return signer, list
}

func noKeyAmong(blocks []pemBlock, sources Sources) Finding {
	first := blocks[0]
	if first.problem != "" && first.label == "" {
		return finding(KeyUnreadable, "copy the key again from its source",
			"%s cannot be read: in line %d, %s", sources.Key, first.line, first.problem)
	}
	hint := "put the certificate's private key there"
	if first.label == "CERTIFICATE" {
		hint = fmt.Sprintf("the contents of %s and %s may be swapped", sources.Certificate, sources.Key)
	}
	return finding(KeyUnreadable, hint, "%s holds no private key: its first block is labelled %s",
		sources.Key, quote(first.label))
}

func readKeyBlock(block pemBlock, data []byte, name string) (crypto.Signer, []Finding) {
	fail := func(code Code, hint, format string, args ...any) (crypto.Signer, []Finding) {
		return nil, []Finding{finding(code, hint, format, args...)}
	}
	if block.label == labelEncrypted || block.headers && strings.Contains(string(data), "Proc-Type: 4,ENCRYPTED") {
		hint := decryptHint
		if block.problem != "" { // OpenSSL cannot read it, either
			hint = blockHint(block.problem, block.before, data) + ", then " + hint
		}
		return fail(KeyEncrypted, hint,
			"the private key in %s is encrypted with a passphrase, which the agent cannot enter", name)
	}
	if block.problem != "" {
		return fail(KeyUnreadable, blockHint(block.problem, block.before, data),
			"the private key in %s (line %d) cannot be read: %s", name, block.line, block.problem)
	}
	if block.label == labelOpenSSH {
		return fail(KeyUnreadable, "convert it in place: ssh-keygen -p -m PKCS8 -f FILE",
			"%s is a key in OpenSSH's own format", name)
	}
	key, err := parseKey(block.bytes)
	if err != nil {
		return fail(
			KeyUnreadable,
			"use an RSA, ECDSA or Ed25519 key in PKCS#8, PKCS#1 or SEC 1 form",
			"the private key in %s (%d bytes, labelled %s) cannot be parsed: it is damaged, or of a type that this "+
				"program's TLS library does not support", name, len(block.bytes), quote(block.label),
		)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		what := fmt.Sprintf("%T", key)
		if _, dh := key.(*ecdh.PrivateKey); dh {
			what = "X25519, which is for key exchange only"
		}
		return fail(KeyUnreadable, "use an RSA, ECDSA or Ed25519 key",
			"the private key in %s cannot sign: %s", name, what)
	}
	return signer, nil
}

// decryptHint is the hint for an encrypted key.
const decryptHint = "decrypt it: openssl pkey -in FILE -out new.pem"

// parseKey parses a private key. Like tls.X509KeyPair, it accepts every encoding regardless of the label.
func parseKey(der []byte) (any, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	return nil, err
}

// belongs reports whether the private key is that of the certificate.
func belongs(key crypto.Signer, cert *x509.Certificate) bool {
	return sameKey(key.Public(), cert.PublicKey)
}

func sameKey(a, b crypto.PublicKey) bool {
	comparable, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && b != nil && comparable.Equal(b)
}

// checkKeyPair checks that tls.key belongs to the leaf, and if not, what it does belong to. It returns the index of the
// matching certificate in chain, or -1.
func checkKeyPair(key crypto.Signer, chain, bundle []numbered, name string) (int, []Finding) {
	if belongs(key, chain[0].Certificate) {
		return 0, nil
	}
	for i, cert := range chain[1:] {
		if !belongs(key, cert.Certificate) {
			continue
		}
		if isCA(cert.Certificate) {
			return -1, []Finding{isCAKey(name, cert)}
		}
		return i + 1, []Finding{finding(
			ChainOrder,
			orderFix,
			"the serving certificate, to which %s belongs, is %s; it must come first, before %s, because TLS libraries "+
				"otherwise report that the private key does not match",
			name,
			cert.where(),
			subject(chain[0].Certificate),
		).asFinal()}
	}
	for _, cert := range bundle {
		if isCA(cert.Certificate) && belongs(key, cert.Certificate) {
			return -1, []Finding{isCAKey(name, cert)}
		}
	}
	return -1, []Finding{
		finding(
			KeyMismatch,
			"use the key that the certificate was requested with; if both were just replaced, the Secret may be only half "+
				"updated",
			"%s (%s) is not the private key of %s (%s)",
			name,
			describeKey(key.Public()),
			chain[0].where(),
			describeKey(chain[0].PublicKey),
		),
	}
}

func isCAKey(name string, ca numbered) Finding {
	return finding(
		KeyIsCAKey,
		"put the serving certificate's own key there; a CA's key never belongs in such a Secret",
		"%s is the private key of a CA, %s, not of the serving certificate",
		name,
		ca.where(),
	)
}

// checkCAKey compares the serving certificate's public key with those of all CAs in the chain and the bundle. It
// ignores a self-signed CA that serves with its own certificate, which LeafIsCA reports, even if the bundle has its
// renewal.
func (r *run) checkCAKey() {
	if r.found.has(KeyIsCAKey) {
		return
	}
	leaf := r.chain[0]
	for _, ca := range slices.Concat(r.chain[1:], r.bundle) {
		own := ca.Equal(leaf.Certificate) || leaf.IsCA && bytes.Equal(ca.RawSubject, leaf.RawSubject)
		if isCA(ca.Certificate) && !own && sameKey(leaf.PublicKey, ca.PublicKey) {
			r.note(
				KeyIsCAKey,
				"create a key for the serving certificate and have that certificate reissued; replace the CA if its key "+
					"has already been on servers",
				"the serving certificate, %s, uses the key of a CA, %s: an attacker who steals the server's key "+
					"can issue certificates for any name",
				leaf.where(), ca.where(),
			)
			return
		}
	}
}

const orderFix = "put the serving certificate first, then each certificate that signed the one before it"

// checkFirst finds the serving certificate in a chain if the key is unknown. It returns 0 if the first certificate can
// be a server's. Otherwise it returns the index of the first one that can and is not a CA, with a finding about the
// order, or -1.
func checkFirst(chain []numbered) (int, []Finding) {
	if serves(chain[0].Certificate) {
		return 0, nil
	}
	for i, cert := range chain {
		if !isCA(cert.Certificate) && serves(cert.Certificate) {
			return i, []Finding{finding(ChainOrder, orderFix, "the serving certificate is %s; it must come first, before %s",
				cert.where(), subject(chain[0].Certificate)).asFinal()}
		}
	}
	return -1, nil
}

// isCA reports whether clients may accept the certificate as that of a CA. Versions before 3 do not say.
func isCA(cert *x509.Certificate) bool {
	return cert.IsCA || cert.Version < 3 && selfIssued(cert)
}

func describeKey(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	case *dsa.PublicKey:
		return "DSA"
	default:
		return "unknown type"
	}
}

// weakKey returns what is wrong with a public key, or "".
func weakKey(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		switch bits := key.N.BitLen(); {
		case bits < minRSABits:
			return fmt.Sprintf("has an RSA key of %d bits; at least %d are needed", bits, minRSABits)
		case tooLong(public):
			return fmt.Sprintf("has an RSA key of %d bits; Go programs such as kubectl refuse more than %d", bits, maxRSABits)
		case key.E < 3 || key.E%2 == 0:
			return "has an RSA key with an exponent that protects nothing"
		}
		return ""
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return ""
		}
		return fmt.Sprintf(
			"has a key on the elliptic curve %s; TLS 1.3 clients use P-256, P-384 and P-521",
			key.Params().Name,
		)
	case ed25519.PublicKey:
		return ""
	case *dsa.PublicKey:
		return "has a DSA key, which TLS no longer supports"
	default:
		return "has a key of a type that Go programs such as kubectl do not support"
	}
}

// tooLong reports whether a key is too long for a certificate that a server sends. Go limits no others.
func tooLong(public crypto.PublicKey) bool {
	key, ok := public.(*rsa.PublicKey)
	return ok && key.N.BitLen() > maxRSABits
}

const keyFix = "have it reissued for an ECDSA key (P-256, P-384 or P-521), an Ed25519 key, or an RSA key of 2048 " +
	"to 8192 bits"

func checkWeakKey(cert numbered) []Finding {
	if problem := weakKey(cert.PublicKey); problem != "" {
		return []Finding{finding(WeakKey, keyFix, "%s %s", cert.where(), problem)}
	}
	return nil
}
