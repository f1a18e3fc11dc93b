package trust

import (
	"crypto/x509"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Serving is what clients meet at the endpoint.
type Serving struct {
	// Chain is the certificate with its intermediates.
	Chain []*x509.Certificate
	// Issuer is the CA of a certificate that does not exist yet, for Names. It counts where Chain is empty.
	Issuer *x509.Certificate
	Names  []string
	// Unknown is true where it is not known what clients meet. Then everybody is taken to work.
	Unknown bool
}

// Off is what clients meet while the proxy is switched off.
func Off() Serving { return Serving{} }

func (s *Serving) off() bool { return len(s.Chain) == 0 && s.Issuer == nil && !s.Unknown }

// Client is one kind of client.
type Client struct {
	// State is what it was told; nil for a client that an administrator has shown.
	State *State
	// File is where an administrator has shown it; empty for one of a State.
	File string
	// Name is the DNS name or IP address for which it verifies the certificate.
	Name string
	// Bundle is what it verifies the certificate with, PEM. It is empty for the system roots.
	Bundle []byte
	// Insecure is true where it verifies nothing.
	Insecure bool
}

// Evidence is what an administrator shows or says about the kubeconfigs that are there. Each kind that is given counts,
// and a State is gone only where all of them say so. The zero value says nothing.
type Evidence struct {
	// Files are clients of kubeconfigs, FilesGiven that these are all there are. They are judged in place of the States.
	Files      []Client
	FilesGiven bool
	// After says that kubeconfigs are made anew within this time.
	After time.Duration
	// Renewed says that all kubeconfigs have been made anew.
	Renewed bool
}

// given says whether an administrator has shown or said anything.
func (e Evidence) given() bool { return e.FilesGiven || e.After > 0 || e.Renewed }

// gone says whether nobody has a State any more.
func (e Evidence) gone(s *State, at time.Time) bool {
	switch {
	case s.Ended():
		return true
	case !e.given():
		return false
	case e.After > 0:
		return !s.Until.IsZero() && !at.Before(s.Until.Add(e.After))
	}
	return true
}

// Outcome is how one kind of client fares before and after a change. A code is empty where the client works, and else
// why it does not.
type Outcome struct {
	Client
	Before, After certs.Code
	// Weight is for how long the State was advertised.
	Weight time.Duration
}

// Lost says whether the client works before the change and not after it, Gained the opposite.
func (o *Outcome) Lost() bool   { return o.Before == "" && o.After != "" }
func (o *Outcome) Gained() bool { return o.Before != "" && o.After == "" }

// SwitchedOff is why nobody works while the proxy is switched off.
const SwitchedOff certs.Code = "SwitchedOff"

// Effect says how every kind of client fares with what is served now, and how it would fare with next. at is the time
// at which certificates must be valid.
func Effect(h History, e Evidence, now, next Serving, at time.Time) []Outcome {
	var all []Outcome
	for _, client := range e.Files {
		all = append(all, Outcome{Client: client, Before: client.Meets(now, at), After: client.Meets(next, at)})
	}
	for i := range h.States {
		s := &h.States[i]
		if e.gone(s, at) {
			continue
		}
		for _, client := range s.Clients() {
			all = append(all, Outcome{
				Client: client, Before: client.Meets(now, at), After: client.Meets(next, at), Weight: s.For(at),
			})
		}
	}
	return all
}

// Clients returns the kinds of client with this State: those that use its endpoint, and those that reach the proxy by
// another name that the certificate covered. A wildcard is no name of a client, so it counts only for the endpoint.
func (s *State) Clients() []Client {
	host := s.Host()
	names := []string{host}
	for _, name := range s.Names {
		if name != host && !strings.Contains(name, "*") {
			names = append(names, name)
		}
	}
	clients := make([]Client, 0, len(names))
	for _, name := range names {
		clients = append(clients, Client{State: s, Name: name, Bundle: s.Bundle})
	}
	return clients
}

// Meets returns why the client refuses what is served, or "" when it works.
func (c *Client) Meets(served Serving, at time.Time) certs.Code {
	switch {
	case served.Unknown:
		return ""
	case served.off():
		return SwitchedOff
	case c.Insecure:
		return ""
	}
	roots, members := pool(c.Bundle)
	if roots == nil && !haveSystemRoots() {
		return "" // nobody here knows
	}
	if len(served.Chain) == 0 {
		switch {
		case roots == nil || !slices.ContainsFunc(members, served.Issuer.Equal):
			return certs.BundleDoesNotVerify
		case !slices.ContainsFunc(served.Names, func(name string) bool { return sameName(name, c.Name) }):
			return certs.NameNotCovered
		}
		return ""
	}
	intermediates := x509.NewCertPool()
	for _, cert := range served.Chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err := served.Chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
		switch {
		case ok && invalid.Reason == x509.Expired && at.Before(served.Chain[0].NotBefore):
			return certs.NotYetValid
		case ok && invalid.Reason == x509.Expired && at.After(served.Chain[0].NotAfter):
			return certs.Expired
		}
		return certs.BundleDoesNotVerify
	}
	if served.Chain[0].VerifyHostname(c.Name) != nil {
		return certs.NameNotCovered
	}
	return ""
}

func pool(bundle []byte) (*x509.CertPool, []*x509.Certificate) {
	if len(strings.TrimSpace(string(bundle))) == 0 {
		return nil, nil
	}
	members, _ := certs.ParseBundle(bundle)
	roots := x509.NewCertPool()
	for _, member := range members {
		roots.AddCert(member)
	}
	return roots, members
}

func haveSystemRoots() bool {
	system, err := x509.SystemCertPool()
	return err == nil && !system.Equal(x509.NewCertPool())
}

// sameName compares two names as a certificate and a client spell them.
func sameName(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX == nil && errY == nil {
		return x.Unmap() == y.Unmap()
	}
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}
