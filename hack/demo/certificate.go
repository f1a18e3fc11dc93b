package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const servingSecret = "impersonation-proxy-tls-serving-cert"

// pki stands for the place where your organization's certificates come from.
type pki struct {
	dir string
	ca  *certs.CA
}

func newPKI(dir string) (*pki, error) {
	ca, err := certs.NewCA("Demo CA", time.Now(), 365*24*time.Hour)
	if err != nil {
		return nil, fmt.Errorf("making a CA: %w", err)
	}
	return &pki{dir: dir, ca: ca}, os.WriteFile(filepath.Join(dir, caFile), ca.CertPEM(), 0o600)
}

// issue writes a new certificate for localhost and its key to the files NAME.pem and NAME-key.pem, and returns the
// certificate.
func (p *pki) issue(name string) (*x509.Certificate, error) {
	pair, err := p.ca.IssueServing(certs.SANs{DNSNames: []string{"localhost"}}, time.Now(), 90*24*time.Hour)
	if err != nil {
		return nil, fmt.Errorf("issuing a certificate: %w", err)
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(p.dir, name+".pem"), pair.CertPEM, 0o600),
		os.WriteFile(filepath.Join(p.dir, name+"-key.pem"), pair.KeyPEM, 0o600),
	)
	if err != nil {
		return nil, fmt.Errorf("writing a certificate: %w", err)
	}
	block, _ := pem.Decode(pair.CertPEM)
	return x509.ParseCertificate(block.Bytes)
}

// presented returns the certificate with which address answers a client that trusts the PKI.
func (p *pki) presented(ctx context.Context, address string) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AddCert(p.ca.Certificate())
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", address, err)
	}
	defer connection.Close() //nolint:errcheck // the handshake is all that counts
	secure, ok := connection.(*tls.Conn)
	if !ok {
		return nil, fmt.Errorf("a TLS connection of type %T", connection)
	}
	return secure.ConnectionState().PeerCertificates[0], nil
}

// presents returns nil when address answers with want.
func (p *pki) presents(ctx context.Context, address string, want *x509.Certificate) error {
	got, err := p.presented(ctx, address)
	if err != nil {
		return err
	}
	if !got.Equal(want) {
		return fmt.Errorf(
			"%s presents the certificate with serial number %x, not %x",
			address,
			got.SerialNumber,
			want.SerialNumber,
		)
	}
	return nil
}

// storeCommand puts a certificate into the cluster, and replaces the one that was there.
func storeCommand(name string) string {
	return "kubectl create secret tls " + servingSecret + ` \
    --namespace pinniped-concierge \
    --cert ` + name + ".pem --key " + name + `-key.pem \
    --dry-run=client -o yaml | kubectl apply --server-side -f -`
}

// makeCertificate is the PKI's part of the story.
func (d *demo) makeCertificate(ctx context.Context) (err error) {
	d.title("Get a certificate of your own")
	if d.pki, err = newPKI(d.dir); err != nil {
		return err
	}
	if d.certificate, err = d.pki.issue("serving"); err != nil {
		return err
	}
	d.say(
		"This is where your PKI comes in: cert-manager, Vault, or a colleague with openssl. Here the demo itself has made " +
			"a CA and issued a certificate " +
			"for localhost, which is where users will find the API: " + caFile + ", serving.pem and serving-key.pem. The last " +
			"two go into a Secret.",
	)
	_, err = d.shell.run(ctx, storeCommand("serving"))
	return err
}

// setCertificate is what the product is about.
func (d *demo) setCertificate(ctx context.Context) error {
	d.title("Put the API behind it")
	d.say(
		"The impersonation proxy is the part of the agent that users talk to. It is switched on in the CredentialIssuer. " +
			"(With mode auto, as it was " +
			"installed, the agent switches it on where no control-plane nodes are to be seen, as with most cloud providers.) " +
			"At first the agent serves a certificate that it has made itself.",
	)
	for _, command := range []string{
		`kubectl patch credentialissuer pinniped-concierge-config --type merge --patch \
    '{"spec": {"impersonationProxy": {"mode": "enabled", "service": {"type": "ClusterIP"}}}}'`,
		`kubectl wait --timeout=60s credentialissuer pinniped-concierge-config \
    --for='jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].reason}=Listening'`,
	} {
		if _, err := d.shell.run(ctx, command); err != nil {
			return err
		}
	}
	d.say(
		"One command then checks your certificate, has it served, and waits until it is. The CA bundle is what clients " +
			"need to trust it. The external " +
			"endpoint is the name under which users reach the proxy: a load balancer, an ingress that passes TLS through or, " +
			"as here, a port of this machine. " +
			"(Kubeconfigs made before will not trust the new certificate. There are none yet, and the command is told so.)",
	)
	if _, err := d.shell.run(ctx, "pinniped ip-tls set --secret "+servingSecret+` \
    --ca-bundle `+caFile+` \
    --allow OldClientsBreak --external-endpoint `+d.endpoint()); err != nil {
		return err
	}
	if err := d.pki.presents(ctx, d.endpoint(), d.certificate); err != nil {
		return err
	}
	d.checked(
		"https://%s presents your certificate, valid until %s",
		d.endpoint(),
		d.certificate.NotAfter.Format(time.DateOnly),
	)
	return nil
}
