package serving

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Served is what the endpoint serves. The zero value means unknown; every client then counts as one that verifies.
type Served struct {
	// Chain is the certificate with its intermediates.
	Chain []*x509.Certificate
	// Off is true if the proxy is switched off.
	Off bool
}

func (s *Served) unknown() bool { return len(s.Chain) == 0 && !s.Off }

// Client is a group of clients with the same Revision that use the same name.
type Client struct {
	// Revision is the one that was published to the client; nil if unknown.
	Revision *Revision
	// Name is the DNS name or IP address for which the client verifies the certificate.
	Name string
	// Bundle is the client's trust bundle (PEM). It is empty for the system roots.
	Bundle []byte
}

// Outcome says whether a Client verifies the certificate before and after a change. An empty code means that it does;
// any other is the reason why not.
type Outcome struct {
	Client
	Before, After certs.Code
}

// Broken reports whether the client verifies before the change and fails after it.
func (o *Outcome) Broken() bool { return o.Before == "" && o.After != "" }

// SwitchedOff is the code for all clients while the proxy is switched off.
const SwitchedOff certs.Code = "SwitchedOff"

// Effect returns, for each Client in the history, whether it verifies now and whether it would verify next.
// Certificates must be valid at the time at.
func Effect(h History, now, next Served, at time.Time) []Outcome {
	was := now
	if now.Off && !next.Off && len(h.Chain) > 0 {
		was = Served{Chain: h.Chain}
	}
	var all []Outcome
	for i := range h.Revisions {
		s := &h.Revisions[i]
		if !s.HasClients() {
			continue
		}
		trusted := s.Bundle
		if len(s.Lost) > 0 {
			trusted = s.amongst(now.Chain, next.Chain, h)
		}
		before, after := was.chain(trusted, was.whileValid(at)), next.chain(trusted, at)
		if len(s.Lost) > 0 {
			before = "" // unknown
		}
		for _, client := range s.Clients() {
			o := Outcome{Client: client, Before: before, After: after}
			if before == "" {
				o.Before = was.name(client.Name)
			}
			if after == "" {
				o.After = next.name(client.Name)
			}
			all = append(all, o)
		}
	}
	return all
}

// amongst returns those certificates of a lost trust bundle that are known from elsewhere. If none are, it returns a
// trust bundle that verifies nothing.
func (s *Revision) amongst(now, next []*x509.Certificate, h History) []byte {
	known := h.certificates(nil)
	for _, cert := range slices.Concat(now, next) {
		known[certs.Fingerprint(cert.Raw)] = cert
	}
	var bundle []byte
	for _, fingerprint := range s.Lost {
		if cert := known[fingerprint]; cert != nil {
			bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	if bundle == nil {
		bundle = []byte("lost")
	}
	return bundle
}

// Clients returns the clients of this Revision, one for each name: the host of the endpoint, other names that the
// certificate covers, and the names that clients used under a wildcard.
func (s *Revision) Clients() []Client {
	host := s.Host()
	names := []string{host}
	for _, name := range s.Names {
		if name != host && !strings.Contains(name, "*") {
			names = append(names, name)
		}
	}
	for _, name := range s.UsedNames {
		if name != host {
			names = append(names, name)
		}
	}
	clients := make([]Client, 0, len(names))
	for _, name := range names {
		clients = append(clients, Client{Revision: s, Name: name, Bundle: s.Bundle})
	}
	return clients
}

// Meets returns why the client rejects what is served, or "" if it verifies it.
func (c *Client) Meets(served Served, at time.Time) certs.Code {
	if served.Off {
		return SwitchedOff
	}
	if code := served.chain(c.Bundle, at); code != "" {
		return code
	}
	return served.name(c.Name)
}

// chain returns why clients with this CA bundle do not trust what is served, or "" if they do or it is unknown.
func (s *Served) chain(bundle []byte, at time.Time) certs.Code {
	roots := pool(bundle)
	switch {
	case s.Off:
		return SwitchedOff
	case s.unknown(), roots == nil && !haveSystemRoots():
		return ""
	}
	leaf, intermediates := s.Chain[0], x509.NewCertPool()
	for _, cert := range s.Chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	switch {
	case err == nil:
		return ""
	case at.Before(leaf.NotBefore):
		return certs.NotYetValid
	case at.After(leaf.NotAfter):
		return certs.Expired
	}
	return certs.BundleDoesNotVerify
}

// name returns why clients that use this name reject what is served, or "" if they do not.
func (s *Served) name(name string) certs.Code {
	if len(s.Chain) == 0 || s.Chain[0].VerifyHostname(name) == nil {
		return ""
	}
	return certs.NameNotCovered
}

// whileValid returns at, or the end of the certificate's validity if that is earlier. Clients of an expired certificate
// did verify it, and will verify its renewal.
func (s *Served) whileValid(at time.Time) time.Time {
	if len(s.Chain) == 0 || !at.After(s.Chain[0].NotAfter) {
		return at
	}
	return s.Chain[0].NotAfter
}

func pool(bundle []byte) *x509.CertPool {
	if len(strings.TrimSpace(string(bundle))) == 0 {
		return nil
	}
	members, _ := certs.ParseBundle(bundle)
	roots := x509.NewCertPool()
	for _, member := range members {
		roots.AddCert(member)
	}
	return roots
}

func haveSystemRoots() bool {
	system, err := x509.SystemCertPool()
	return err == nil && !system.Equal(x509.NewCertPool())
}
