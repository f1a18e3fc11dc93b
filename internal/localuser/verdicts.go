package localuser

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// The keys of the serving certificate's Secret. Clients read caCertificate for the CA bundle.
const (
	caCertificateKey    = "caCertificate"
	caPrivateKeyKey     = "caCertificatePrivateKey"
	certificateChainKey = "tlsCertificateChain"
	privateKeyKey       = "tlsPrivateKey"
)

// verdict says why the content of the Secret has to be replaced.
type verdict struct {
	Reason  string
	Message string
	// newCA means that the CA has to be replaced too, and clients need the new CA bundle.
	newCA bool
}

// inspected is the content of the Secret, parsed as far as that was possible.
type inspected struct {
	data    map[string][]byte
	present bool
	ca      *certs.CA
	caErr   error
	pair    *tls.Certificate
	pairErr error
	names   certs.SANs
}

func inspect(data map[string][]byte, present bool, names certs.SANs) *inspected {
	in := &inspected{data: data, present: present, names: names}
	in.ca, in.caErr = certs.LoadCA(data[caCertificateKey], data[caPrivateKeyKey])
	in.pair, in.pairErr = parsePair(data[certificateChainKey], data[privateKeyKey])
	return in
}

func parsePair(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("parsing the serving certificate: %w", err)
	}
	return &pair, nil
}

// verdicts are asked in this order; the first one that finds something wins.
func verdicts() []func(*inspected, time.Time) *verdict {
	return []func(*inspected, time.Time) *verdict{
		missing, caInvalid, caExpired, certificateInvalid, expiring, untrusted, namesMismatch,
	}
}

func judge(in *inspected, now time.Time) *verdict {
	for _, check := range verdicts() {
		if found := check(in, now); found != nil {
			return found
		}
	}
	return nil
}

func missing(in *inspected, _ time.Time) *verdict {
	if in.present {
		return nil
	}
	return &verdict{Reason: "Missing", Message: "there is no serving certificate yet", newCA: true}
}

func caInvalid(in *inspected, _ time.Time) *verdict {
	if in.caErr == nil {
		return nil
	}
	return &verdict{Reason: "CAInvalid", Message: "the CA cannot be used: " + in.caErr.Error(), newCA: true}
}

func caExpired(in *inspected, now time.Time) *verdict {
	if end := in.ca.Certificate().NotAfter; !now.Before(end) {
		return &verdict{Reason: "CAExpired", Message: "the CA expired at " + timeText(end), newCA: true}
	}
	return nil
}

func certificateInvalid(in *inspected, _ time.Time) *verdict {
	if in.pairErr == nil {
		return nil
	}
	return &verdict{Reason: "CertificateInvalid", Message: in.pairErr.Error()}
}

// expiring leaves a certificate alone that ends with its CA: a new one could not live longer.
func expiring(in *inspected, now time.Time) *verdict {
	leaf := in.pair.Leaf
	if now.Before(renewalTime(leaf)) || !leaf.NotAfter.Before(in.ca.Certificate().NotAfter) {
		return nil
	}
	return &verdict{Reason: "Expiring", Message: "the serving certificate ends at " + timeText(leaf.NotAfter)}
}

func untrusted(in *inspected, now time.Time) *verdict {
	roots := x509.NewCertPool()
	roots.AddCert(in.ca.Certificate())
	if begin := in.ca.Certificate().NotBefore; now.Before(begin) {
		now = begin // our clock is late; that is no reason to take the CA away from clients
	}
	if _, err := in.pair.Leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return &verdict{Reason: "Untrusted", Message: "clients that trust the CA refuse the serving certificate: " + err.Error()}
	}
	return nil
}

func namesMismatch(in *inspected, _ time.Time) *verdict {
	leaf := in.pair.Leaf
	same := slices.Equal(sorted(leaf.DNSNames), sorted(in.names.DNSNames)) &&
		slices.EqualFunc(sortedIPs(leaf.IPAddresses), sortedIPs(in.names.IPAddresses), net.IP.Equal)
	if same {
		return nil
	}
	return &verdict{
		Reason: "SANMismatch",
		Message: fmt.Sprintf("the serving certificate is valid for %q and not for %q",
			sanText(leaf.DNSNames, leaf.IPAddresses), sanText(in.names.DNSNames, in.names.IPAddresses)),
	}
}

// renewalTime is when two thirds of a certificate's life are over.
func renewalTime(leaf *x509.Certificate) time.Time {
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 3 * 2)
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

func sortedIPs(ips []net.IP) []net.IP {
	return slices.SortedFunc(slices.Values(ips), func(a, b net.IP) int { return bytes.Compare(a.To16(), b.To16()) })
}

func sanText(dns []string, ips []net.IP) []string {
	all := slices.Clone(dns)
	for _, ip := range ips {
		all = append(all, ip.String())
	}
	return all
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339) }
