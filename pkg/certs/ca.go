package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// Backdate is how long before its issuance a certificate becomes valid, so that clients with a late clock accept it at
// once.
const Backdate = 5 * time.Minute

// CA is a certificate authority: a CA certificate and its private key. It is safe for concurrent use.
type CA struct {
	cert    *x509.Certificate
	certPEM []byte
	key     crypto.Signer
}

// SANs are the subject alternative names of a serving certificate.
type SANs struct {
	DNSNames    []string
	IPAddresses []net.IP
}

// ClientIdentity is the identity in a client certificate, as the Kubernetes API server reads it: the username is the
// common name, the groups are organizations.
type ClientIdentity struct {
	Username string
	Groups   []string
	// OrganizationalUnits carry "key=value" facts for audit tools. The API server ignores them.
	OrganizationalUnits []string
}

// KeyPair is a certificate (PEM, leaf first) and its private key (PEM, PKCS#8).
type KeyPair struct {
	CertPEM   []byte
	KeyPEM    []byte
	NotBefore time.Time
	NotAfter  time.Time
}

// NewCA creates a CA with an ECDSA P-256 key, valid from now-Backdate to now+ttl.
func NewCA(commonName string, now time.Time, ttl time.Duration) (*CA, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encoding the public key: %w", err)
	}
	sum := sha256.Sum256(point)
	id := sum[:20] // RFC 7093, section 2, method 1
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		SubjectKeyId:          id,
		AuthorityKeyId:        id, // strict clients, such as Python's, require it in a root as well
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(ttl),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA certificate: %w", err)
	}
	return newCA(der, key)
}

// LoadCA loads a CA from its certificate and private key, both PEM. It returns an error if either cannot be parsed,
// they do not match, or the certificate is not that of a CA that may sign certificates.
func LoadCA(certPEM, keyPEM []byte) (*CA, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the CA certificate is not PEM")
	}
	key, err := parsePrivateKey(keyPEM)
	if err != nil {
		return nil, err
	}
	ca, err := newCA(block.Bytes, key)
	if err != nil {
		return nil, err
	}
	if !ca.cert.IsCA || ca.cert.KeyUsage != 0 && ca.cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, fmt.Errorf("certificate %q is not a CA that may sign certificates", ca.cert.Subject)
	}
	if !belongs(key, ca.cert) {
		return nil, fmt.Errorf("the private key does not belong to CA certificate %q", ca.cert.Subject)
	}
	return ca, nil
}

func newCA(der []byte, key crypto.Signer) (*CA, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the CA certificate: %w", err)
	}
	return &CA{cert: cert, certPEM: encodeCertificate(der), key: key}, nil
}

// Certificate returns the CA's certificate. The caller must not modify it.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// CertPEM returns the CA's certificate as PEM, which is the CA bundle for clients.
func (ca *CA) CertPEM() []byte { return slices.Clone(ca.certPEM) }

// KeyPEM returns the CA's private key as PEM (PKCS#8).
func (ca *CA) KeyPEM() ([]byte, error) { return encodeKey(ca.key) }

// IssueServing issues a serving certificate for names with a new ECDSA P-256 key, valid from now-Backdate to now+ttl,
// but not longer than the CA. It returns an error if there are no names.
func (ca *CA) IssueServing(names SANs, now time.Time, ttl time.Duration) (*KeyPair, error) {
	if len(names.DNSNames) == 0 && len(names.IPAddresses) == 0 {
		return nil, errors.New("a serving certificate needs at least one DNS name or IP address")
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	return ca.issue(key, &x509.Certificate{
		DNSNames:    names.DNSNames,
		IPAddresses: names.IPAddresses,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, now, ttl)
}

// IssueClient issues a client certificate for identity with a new ECDSA P-256 key, valid from now-Backdate to now+ttl,
// but not longer than the CA. It returns an error if the username is empty.
func (ca *CA) IssueClient(identity ClientIdentity, now time.Time, ttl time.Duration) (*KeyPair, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	return ca.IssueClientFor(key, identity, now, ttl)
}

// IssueClientFor is IssueClient with an existing key, which must not be used for anything else.
func (ca *CA) IssueClientFor(
	key *ecdsa.PrivateKey,
	identity ClientIdentity,
	now time.Time,
	ttl time.Duration,
) (*KeyPair, error) {
	if identity.Username == "" {
		return nil, errors.New("a client certificate needs a username")
	}
	return ca.issue(key, &x509.Certificate{
		Subject: pkix.Name{
			CommonName:         identity.Username,
			Organization:       identity.Groups,
			OrganizationalUnit: identity.OrganizationalUnits,
		},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, now, ttl)
}

func (ca *CA) issue(
	key *ecdsa.PrivateKey,
	template *x509.Certificate,
	now time.Time,
	ttl time.Duration,
) (*KeyPair, error) {
	template.NotBefore = now.Add(-Backdate)
	template.NotAfter = now.Add(ttl)
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return &KeyPair{
		CertPEM:   encodeCertificate(der),
		KeyPEM:    keyPEM,
		NotBefore: template.NotBefore,
		NotAfter:  template.NotAfter,
	}, nil
}

// NewKey returns a new ECDSA P-256 key.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a private key: %w", err)
	}
	return key, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding the private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// parsePrivateKey parses the first private key in PEM data: PKCS#8, PKCS#1 or SEC 1. It skips other blocks, such as EC
// PARAMETERS.
func parsePrivateKey(keyPEM []byte) (crypto.Signer, error) {
	for rest := keyPEM; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("no private key in the PEM data")
		}
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("parsing the private key: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a private key of type %T cannot sign", key)
		}
		return signer, nil
	}
}
