package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// manyUsers makes users who attack together.
func (w *world) manyUsers() ([][2][]byte, error) {
	var users [][2][]byte
	for i := range manyOthers {
		config, err := w.Cluster.User(fmt.Sprintf("attacker-%d", i), group)
		if err != nil {
			return nil, err
		}
		pair, err := pairOf(config)
		if err != nil {
			return nil, err
		}
		users = append(users, pair)
	}
	return users, nil
}

// newCostlyChain returns a certificate and very many that could have issued it, each of which has to be tried.
func newCostlyChain() (chain, keyPEM []byte, err error) {
	now := time.Now()
	issuer := pkix.Name{CommonName: "issuer"}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: issuer, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var content bytes.Buffer
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	for i := range chainLength + 1 {
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 { // the client's own, whose issuer is none of the others
			leaf := *template
			leaf.Subject, leaf.IsCA, leaf.KeyUsage = pkix.Name{CommonName: "attacker"}, false, x509.KeyUsageDigitalSignature
			leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			unknown, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
			if err != nil {
				return nil, nil, err
			}
			der, err := x509.CreateCertificate(rand.Reader, &leaf, template, &key.PublicKey, unknown)
			if err != nil {
				return nil, nil, err
			}
			encoded, err := x509.MarshalPKCS8PrivateKey(key)
			if err != nil {
				return nil, nil, err
			}
			keyPEM = encode("PRIVATE KEY", encoded)
			content.Write(encode("CERTIFICATE", der))
			continue
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			return nil, nil, err
		}
		content.Write(encode("CERTIFICATE", der))
	}
	return content.Bytes(), keyPEM, nil
}
