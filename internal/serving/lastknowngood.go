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

// lastKnownGoodOwnKey is the key of Certificate.Own.
const lastKnownGoodOwnKey = "own-ca.crt"

// lastKnownGoodNameKey is the key of the name of the Secret that the certificate came from.
const lastKnownGoodNameKey = "secret-name"

// KeepsLastKnownGood reports whether m is backed up for replicas that start while its Secret is invalid. That holds for an
// external certificate in the agent's own namespace: a generated one has a Secret already, and the agent must not copy
// the key of a delegated one.
func KeepsLastKnownGood(m *Certificate) bool {
	return m != nil && m.Source == SourceExternal && !m.Delegated
}

// LastKnownGoodData returns the content of the Secret that backs up m.
func LastKnownGoodData(m *Certificate) (map[string][]byte, error) {
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
		lastKnownGoodNameKey:    []byte(m.Secret.Name),
	}
	if len(m.Bundle) > 0 {
		data[CACertKey] = m.Bundle
	}
	if m.Own != nil {
		data[lastKnownGoodOwnKey] = m.Own
	}
	return data, nil
}

// LastKnownGood returns the certificate in a backup Secret, with the name of the Secret that it came from. It returns an
// error if there is none. The certificate was checked before it was served. It is not checked again: even an expired
// one is better than nothing.
func LastKnownGood(secret *corev1.Secret) (*Certificate, error) {
	if !IsLastKnownGood(secret) {
		return nil, fmt.Errorf("there is no last known good certificate in Secret %q", secret.Namespace+"/"+secret.Name)
	}
	certificate, err := keyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	return &Certificate{
		Certificate: certificate, Source: SourceExternal, Bundle: secret.Data[CACertKey],
		Own:    secret.Data[lastKnownGoodOwnKey],
		Secret: types.NamespacedName{Namespace: secret.Namespace, Name: string(secret.Data[lastKnownGoodNameKey])},
	}, nil
}

// IsLastKnownGood reports whether the agent made this Secret from LastKnownGoodData.
func IsLastKnownGood(secret *corev1.Secret) bool { return len(secret.Data[lastKnownGoodNameKey]) > 0 }

// SameData reports whether a Secret (nil if it does not exist) holds exactly this data.
func SameData(secret *corev1.Secret, data map[string][]byte) bool {
	return secret != nil && maps.EqualFunc(secret.Data, data, bytes.Equal)
}
