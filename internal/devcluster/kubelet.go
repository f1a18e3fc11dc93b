package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

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
