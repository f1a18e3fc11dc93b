package devcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
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
	if err := p.issue(now); err != nil {
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

func (p *pki) issue(now time.Time) error {
	loopback := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, serving := range []struct {
		ca          *certs.CA
		file, whose string
		names       certs.SANs
	}{
		{p.serving, "apiserver", "the API server's", certs.SANs{
			DNSNames: []string{
				"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local",
			},
			IPAddresses: append([]net.IP{net.ParseIP(kubernetesServiceIP)}, loopback...),
		}},
		{p.etcd, "etcd", "etcd's", certs.SANs{DNSNames: []string{"localhost"}, IPAddresses: loopback}},
	} {
		pair, err := serving.ca.IssueServing(serving.names, now, certificateLifetime)
		if err != nil {
			return fmt.Errorf("issuing %s serving certificate: %w", serving.whose, err)
		}
		if err := p.writePair(serving.file, pair); err != nil {
			return err
		}
	}
	for _, client := range []struct {
		pair       **certs.KeyPair
		ca         *certs.CA
		file, what string
		identity   certs.ClientIdentity
	}{
		{
			new(*certs.KeyPair), p.frontProxy, "front-proxy-client", "the front proxy's client certificate",
			certs.ClientIdentity{Username: "front-proxy-client"},
		},
		{&p.etcdClient, p.etcd, "etcd-client", "etcd's client certificate", certs.ClientIdentity{Username: "kube-apiserver"}},
		{
			new(*certs.KeyPair), p.client, "kubelet-client", "the client certificate for kubelets",
			certs.ClientIdentity{Username: kubeletClientName},
		},
		{
			&p.admin, p.client, "admin", "the admin's client certificate",
			certs.ClientIdentity{Username: "admin", Groups: []string{"system:masters"}},
		},
	} {
		pair, err := client.ca.IssueClient(client.identity, now, certificateLifetime)
		if err != nil {
			return fmt.Errorf("issuing %s: %w", client.what, err)
		}
		if err := p.writePair(client.file, pair); err != nil {
			return err
		}
		*client.pair = pair
	}
	return nil
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

// KubeletHostname is the Hostname address that a Node must have so that the API server calls a kubelet on this machine.
const KubeletHostname = "localhost"

// KubeletTLS returns a configuration for a server that the cluster's API server calls as a kubelet. Only the API server
// can connect, because a kubelet starts programs for its clients.
func (c *Cluster) KubeletTLS() (*tls.Config, error) {
	pair, err := c.pki.serving.IssueServing(
		certs.SANs{DNSNames: []string{KubeletHostname}},
		time.Now(),
		certificateLifetime,
	)
	if err != nil {
		return nil, fmt.Errorf("issuing a kubelet's serving certificate: %w", err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading a kubelet's serving certificate: %w", err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(c.pki.client.CertPEM())
	return &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		MinVersion:   tls.VersionTLS13,
		VerifyConnection: func(state tls.ConnectionState) error {
			// The same CA issues the users' certificates.
			if state.PeerCertificates[0].Subject.CommonName != kubeletClientName {
				return errors.New("only the API server may call a kubelet")
			}
			return nil
		},
	}, nil
}
