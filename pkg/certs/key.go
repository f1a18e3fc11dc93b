package certs

import (
	"crypto"
	"crypto/dsa" //nolint:staticcheck // recognised so that it can be refused by name
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"
)

const (
	minRSABits = 2048
	// maxRSABits is where Go's TLS refuses a peer's key.
	maxRSABits = 8192
)

// readKey reads tls.key. The messages never hold any of its content, and x509's own error texts are not used, as what
// they might quote one day is not in our hands.
func readKey(data []byte, limits Limits) (crypto.Signer, []Finding) {
	if len(data) > limits.KeyBytes {
		return nil, []Finding{tooLarge("tls.key", len(data), limits.KeyBytes)}
	}
	file := readPEM(data)
	if len(file.blocks) == 0 {
		return nil, []Finding{finding(KeyUnreadable, keyHint(file.disguise), "tls.key holds no PEM private key: it is %s", file.disguise)}
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
		return nil, []Finding{noKeyAmong(file.blocks)}
	}
	signer, problem := readKeyBlock(*key, data)
	if problem != nil {
		return nil, []Finding{*problem}
	}
	if count > 1 {
		return signer, []Finding{finding(KeyUnreadable, "leave only the key of the serving certificate there",
			"tls.key holds %d private keys; only the first one is used", count).withSeverity(SeverityWarning)}
	}
	return signer, nil
}

func noKeyAmong(blocks []pemBlock) Finding {
	first := blocks[0]
	if first.problem != "" && first.label == "" {
		return finding(KeyUnreadable, "write the key again as PEM", "tls.key cannot be read: in line %d, %s", first.line, first.problem)
	}
	hint := "put the private key that the certificate was requested with there"
	if first.label == "CERTIFICATE" {
		hint = "tls.crt and tls.key may have been exchanged"
	}
	return finding(KeyUnreadable, hint, "tls.key holds no private key: its first block is labelled %s", quote(first.label))
}

func readKeyBlock(block pemBlock, data []byte) (crypto.Signer, *Finding) {
	fail := func(code Code, hint, format string, args ...any) (crypto.Signer, *Finding) {
		f := finding(code, hint, format, args...)
		return nil, &f
	}
	const decrypt = "decrypt it: openssl pkey -in FILE -out NEW; a server has nobody who could type the passphrase"
	if block.label == "ENCRYPTED PRIVATE KEY" || block.headers && strings.Contains(string(data), "Proc-Type: 4,ENCRYPTED") {
		return fail(KeyEncrypted, decrypt, "the private key in tls.key is encrypted with a passphrase")
	}
	if block.problem != "" {
		return fail(KeyUnreadable, "write the key again: openssl pkey -in FILE -out NEW",
			"the private key in tls.key (line %d) cannot be read: %s", block.line, block.problem)
	}
	if block.label == "OPENSSH PRIVATE KEY" {
		return fail(KeyUnreadable, "convert it: ssh-keygen -p -m PKCS8 -f FILE", "tls.key is a key in OpenSSH's own format")
	}
	var key any
	var err error
	// As tls.X509KeyPair does, accept every encoding under every label.
	if key, err = x509.ParsePKCS8PrivateKey(block.bytes); err != nil {
		if key, err = x509.ParsePKCS1PrivateKey(block.bytes); err != nil {
			key, err = x509.ParseECPrivateKey(block.bytes)
		}
	}
	if err != nil {
		return fail(KeyUnreadable, "use a key of type RSA, ECDSA or Ed25519 in PKCS#8, PKCS#1 or SEC 1 form",
			"the private key in tls.key (%d bytes, labelled %s) cannot be parsed: damaged, or of a type that TLS servers here do not support",
			len(block.bytes), quote(block.label))
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		what := fmt.Sprintf("%T", key)
		if _, dh := key.(*ecdh.PrivateKey); dh {
			what = "X25519, which is for key exchange only"
		}
		return fail(KeyUnreadable, "use a key of type RSA, ECDSA or Ed25519", "the private key in tls.key cannot sign: %s", what)
	}
	return signer, nil
}

func keyHint(disguise string) string {
	switch disguise {
	case "binary DER":
		return "convert it: openssl pkey -inform DER -in FILE -out NEW"
	case "PKCS#12 (.p12, .pfx)":
		return "convert it: openssl pkcs12 -in FILE -nocerts -nodes -out NEW"
	case "PEM, encoded once more as base64", "PEM, encoded twice more as base64":
		return "decode it with base64 -d before putting it there; `data` of a Secret is base64 already, `stringData` is not"
	default:
		return "put a PEM file there, with lines from -----BEGIN PRIVATE KEY----- to -----END PRIVATE KEY-----"
	}
}

// belongs says whether the private key is that of the certificate.
func belongs(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && cert.PublicKey != nil && public.Equal(cert.PublicKey)
}

// checkKeyPair says whether tls.key belongs to the leaf and, where it does not, what it does belong to. It returns the
// place of the certificate that it belongs to in chain, or -1.
func checkKeyPair(key crypto.Signer, chain, bundle []numbered) (int, []Finding) {
	if belongs(key, chain[0].Certificate) {
		return 0, nil
	}
	for i, cert := range chain[1:] {
		if !belongs(key, cert.Certificate) {
			continue
		}
		if cert.IsCA {
			return -1, []Finding{isCAKey(cert.where("tls.crt"))}
		}
		return i + 1, []Finding{finding(ChainOrder, "put the serving certificate first, then each certificate that signed the one before it",
			"the serving certificate, to which tls.key belongs, is %s; it must come first, before %s; TLS libraries report this as a private key that does not match",
			cert.where("tls.crt"), subject(chain[0].Certificate)).asFinal()}
	}
	for _, cert := range bundle {
		if cert.IsCA && belongs(key, cert.Certificate) {
			return -1, []Finding{isCAKey(cert.where("the CA bundle"))}
		}
	}
	return -1, []Finding{finding(KeyMismatch, "put the key there that this certificate was requested with; when both were just replaced, the Secret may be half written",
		"tls.key (%s) is not the private key of %s (%s)", describeKey(key.Public()), chain[0].where("tls.crt"), describeKey(chain[0].PublicKey))}
}

func isCAKey(where string) Finding {
	return finding(KeyIsCAKey, "put the serving certificate's own key there; the key of a CA never belongs into a cluster's Secret for serving",
		"tls.key is the private key of a CA, %s, not of the serving certificate", where)
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

// weakKey says what is wrong with a public key, or "".
func weakKey(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		switch bits := key.N.BitLen(); {
		case bits < minRSABits:
			return fmt.Sprintf("has an RSA key of %d bits; at least %d are needed", bits, minRSABits)
		case bits > maxRSABits:
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
		return fmt.Sprintf("has a key on the elliptic curve %s; TLS 1.3 clients know P-256, P-384 and P-521", key.Params().Name)
	case ed25519.PublicKey:
		return ""
	case *dsa.PublicKey:
		return "has a DSA key, which TLS does not support any more"
	default:
		return "has a key of a type that Go programs such as kubectl do not support"
	}
}

const keyFix = "have it issued again for a key of ECDSA P-256, P-384, P-521, Ed25519 or RSA from 2048 to 8192 bits"

func checkWeakKey(cert numbered, file string) []Finding {
	if problem := weakKey(cert.PublicKey); problem != "" {
		return []Finding{finding(WeakKey, keyFix, "%s %s", cert.where(file), problem)}
	}
	return nil
}
