package devcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	certificateLifetime = 365 * 24 * time.Hour
	serviceRange        = "10.0.0.0/24"
	kubernetesServiceIP = "10.0.0.1" // the first address of serviceRange
	adminName           = "admin"
	adminGroup          = "system:masters"
	kubeletClientName   = "kube-apiserver-kubelet-client"
)

// pki is the cluster's public key infrastructure. The four CAs do not trust each other.
type pki struct {
	dir        string
	serving    *certs.CA // issues the serving certificates of the API server and kubelets
	client     *certs.CA // issues the users' client certificates, and that of the API server for kubelets
	frontProxy *certs.CA // issues the client certificate of the API server for aggregated APIs
	etcd       *certs.CA // issues both sides' certificates of connections to etcd
	admin      *certs.KeyPair
	etcdClient *certs.KeyPair
}

// newPKI creates all keys and certificates and writes those that the programs read to dir.
func newPKI(dir string, now time.Time) (*pki, error) {
	p := &pki{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the keys: %w", err)
	}
	for _, authority := range []struct {
		ca   **certs.CA
		name string
	}{
		{&p.serving, "serving-ca"},
		{&p.client, "client-ca"},
		{&p.frontProxy, "front-proxy-ca"},
		{&p.etcd, "etcd-ca"},
	} {
		ca, err := certs.NewCA("devcluster "+authority.name, now, certificateLifetime)
		if err != nil {
			return nil, fmt.Errorf("making the %s: %w", authority.name, err)
		}
		if err := p.write(authority.name+".crt", ca.CertPEM()); err != nil {
			return nil, err
		}
		*authority.ca = ca
	}
	if err := p.issueServing(now); err != nil {
		return nil, err
	}
	if err := p.issueClients(now); err != nil {
		return nil, err
	}
	clientKey, err := p.client.KeyPEM()
	if err != nil {
		return nil, err
	}
	if err := p.write("client-ca.key", clientKey); err != nil { // for the controller manager, which signs with it
		return nil, err
	}
	return p, p.writeServiceAccountKey()
}

func (p *pki) issueServing(now time.Time) error {
	loopback := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	apiServer, err := p.serving.IssueServing(certs.SANs{
		DNSNames: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		},
		IPAddresses: append([]net.IP{net.ParseIP(kubernetesServiceIP)}, loopback...),
	}, now, certificateLifetime)
	if err != nil {
		return fmt.Errorf("issuing the API server's serving certificate: %w", err)
	}
	etcd, err := p.etcd.IssueServing(
		certs.SANs{DNSNames: []string{"localhost"}, IPAddresses: loopback},
		now,
		certificateLifetime,
	)
	if err != nil {
		return fmt.Errorf("issuing etcd's serving certificate: %w", err)
	}
	if err := p.writePair("apiserver", apiServer); err != nil {
		return err
	}
	return p.writePair("etcd", etcd)
}

func (p *pki) issueClients(now time.Time) error {
	frontProxy, err := p.frontProxy.IssueClient(
		certs.ClientIdentity{Username: "front-proxy-client"},
		now,
		certificateLifetime,
	)
	if err != nil {
		return fmt.Errorf("issuing the front proxy's client certificate: %w", err)
	}
	p.etcdClient, err = p.etcd.IssueClient(certs.ClientIdentity{Username: "kube-apiserver"}, now, certificateLifetime)
	if err != nil {
		return fmt.Errorf("issuing etcd's client certificate: %w", err)
	}
	kubelet, err := p.client.IssueClient(certs.ClientIdentity{Username: kubeletClientName}, now, certificateLifetime)
	if err != nil {
		return fmt.Errorf("issuing the client certificate for kubelets: %w", err)
	}
	if err := p.writePair("kubelet-client", kubelet); err != nil {
		return err
	}
	p.admin, err = p.client.IssueClient(
		certs.ClientIdentity{Username: adminName, Groups: []string{adminGroup}},
		now,
		certificateLifetime,
	)
	if err != nil {
		return fmt.Errorf("issuing the admin's client certificate: %w", err)
	}
	if err := p.writePair("front-proxy-client", frontProxy); err != nil {
		return err
	}
	return p.writePair("etcd-client", p.etcdClient)
}

// writeServiceAccountKey writes a new key pair that signs and verifies service account tokens.
func (p *pki) writeServiceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the service account key: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	if err := p.write(
		"service-account.key",
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	); err != nil {
		return err
	}
	return p.write("service-account.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) writePair(name string, pair *certs.KeyPair) error {
	if err := p.write(name+".crt", pair.CertPEM); err != nil {
		return err
	}
	return p.write(name+".key", pair.KeyPEM)
}

func (p *pki) write(name string, data []byte) error {
	if err := os.WriteFile(p.path(name), data, 0o600); err != nil {
		return fmt.Errorf("writing the cluster's keys and certificates: %w", err)
	}
	return nil
}
