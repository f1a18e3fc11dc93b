package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
)

// orderFor tells an attacker whom to attack, with which credentials.
func (w *world) orderFor(ctx context.Context, one attack, agent *devinstall.Agent) (order, error) {
	what := order{
		Attack: one.name, Address: agent.ProxyAddress(), CA: w.proxyCA, Connections: w.options.Attackers,
		Seconds: w.options.Hostile, Salt: random(),
	}
	var err error
	if w.options.portOf(one) == portAPI {
		what.Address = agent.APIAddress()
		what.ServerName = devinstall.APIService + "." + devinstall.Namespace + ".svc"
		if what.CA, err = w.apiCA(ctx); err != nil {
			return what, err
		}
	}
	switch one.needs {
	case userCertificate:
		var config *rest.Config
		if config, err = w.Cluster.User("attacker", group); err == nil {
			what.Certificate, what.Key, err = pairOf(config)
		}
	case userCertificates:
		if len(w.attackers) == 0 {
			w.attackers, err = w.manyUsers()
		}
		what.Users = w.attackers
	case costlyChain:
		if len(w.chain[0]) == 0 {
			w.chain[0], w.chain[1], err = newCostlyChain()
		}
		what.Certificate, what.Key = w.chain[0], w.chain[1]
	case nothing:
	}
	return what, err
}

// apiCA is what clients of the aggregated APIs' port verify its certificate with.
func (w *world) apiCA(ctx context.Context) ([]byte, error) {
	service, err := w.dynamic.Resource(apiServices()).Get(ctx, aggregatedAPIs()[0], metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	encoded, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
	return base64.StdEncoding.DecodeString(encoded)
}

func pairOf(config *rest.Config) (certificate, key []byte, err error) {
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, nil, err
	}
	return config.CertData, config.KeyData, nil
}

// manyUsers makes users who attack together.
func (w *world) manyUsers() ([][2][]byte, error) {
	var users [][2][]byte
	for i := range manyOthers {
		config, err := w.Cluster.User(fmt.Sprintf("attacker-%d", i), group)
		if err != nil {
			return nil, err
		}
		certificate, key, err := pairOf(config)
		if err != nil {
			return nil, err
		}
		users = append(users, [2][]byte{certificate, key})
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
