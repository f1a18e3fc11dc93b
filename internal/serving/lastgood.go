package serving

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lastGoodOwnKey is where it has the CA bundle that came with the certificate, if ca.crt has that of a successor as
// well.
const lastGoodOwnKey = "own-ca.crt"

// lastGoodNameKey is where the last known good certificate's Secret says from which Secret the certificate came.
const lastGoodNameKey = "secret-name"

// KeepsLastGood says whether m is to be kept for replicas that start while its Secret is bad: a certificate that an
// admin brought into the agent's own namespace. A generated one has a Secret anyway, and the key of a delegated one
// is not ours to copy.
func KeepsLastGood(m *Certificate) bool {
	return m != nil && m.Source == SourceExternal && !m.Delegated
}

// LastGoodData returns the content of the Secret that keeps m: see KeepsLastGood.
func LastGoodData(m *Certificate) (map[string][]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(m.Certificate.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encoding the private key of the last known good certificate: %w", err)
	}
	var chain bytes.Buffer
	for _, der := range m.Certificate.Certificate {
		if err := pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
			return nil, fmt.Errorf("encoding the last known good certificate: %w", err)
		}
	}
	data := map[string][]byte{
		corev1.TLSCertKey:       chain.Bytes(),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		lastGoodNameKey:         []byte(m.Secret.Name),
	}
	if len(m.Bundle) > 0 {
		data[CACertKey] = m.Bundle
	}
	if m.Own != nil {
		data[lastGoodOwnKey] = m.Own
	}
	return data, nil
}

// LastGood returns the certificate that a Secret keeps, under the name of the Secret that it came from, or an error
// when there is none in it. It was judged when it was put into service; what has become wrong with it since, such
// as its age, is no reason to serve nothing.
func LastGood(secret *corev1.Secret) (*Certificate, error) {
	if !IsLastGood(secret) {
		return nil, fmt.Errorf("there is no last known good certificate in Secret %q", secret.Namespace+"/"+secret.Name)
	}
	certificate, err := keyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	return &Certificate{
		Certificate: certificate, Source: SourceExternal, Bundle: secret.Data[CACertKey],
		Own:    secret.Data[lastGoodOwnKey],
		Secret: types.NamespacedName{Namespace: secret.Namespace, Name: string(secret.Data[lastGoodNameKey])},
	}, nil
}

// IsLastGood says whether a Secret was made from LastGoodData, and not by another program.
func IsLastGood(secret *corev1.Secret) bool { return len(secret.Data[lastGoodNameKey]) > 0 }

// SameData says whether a Secret (nil when it does not exist) holds data and nothing else.
func SameData(secret *corev1.Secret, data map[string][]byte) bool {
	return secret != nil && maps.EqualFunc(secret.Data, data, bytes.Equal)
}
