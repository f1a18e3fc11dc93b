package impersonator

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
)

// certificateKey is a hash of a client certificate and of the intermediates that were presented with it.
type certificateKey [sha256.Size]byte

type verifiedCertificate struct {
	response  *authenticator.Response
	notBefore time.Time
}

// certificateAuthenticator reads the user from a client certificate: common name, organizations, UID. It verifies a
// certificate once, and again after the CAs have changed. In between it only looks at the dates.
type certificateAuthenticator struct {
	trust *trustStore
	clock clock.PassiveClock
}

func (a *certificateAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	presented := req.TLS.PeerCertificates
	key, now, trusted := keyOf(presented), a.clock.Now(), a.trust.current()
	if found, ok := trusted.verified.Get(key); ok {
		if known := found.(*verifiedCertificate); !now.Before(known.notBefore) {
			return known.response, true, nil
		}
	}
	options := x509.VerifyOptions{
		Roots:         trusted.clients,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, intermediate := range presented[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	chains, err := presented[0].Verify(options)
	if err != nil {
		return nil, false, fmt.Errorf("verifying the client certificate with serial number %s: %w",
			presented[0].SerialNumber, err)
	}
	response, ok, err := x509request.CommonNameUserConversion.User(chains[0])
	if err != nil {
		return nil, false, fmt.Errorf("reading the user from the client certificate: %w", err)
	}
	if !ok {
		return nil, false, errors.New("the client certificate has no common name")
	}
	from, until := window(chains[0])
	trusted.verified.Add(key, &verifiedCertificate{response: response, notBefore: from}, until.Sub(now))
	return response, true, nil
}

func keyOf(certificates []*x509.Certificate) certificateKey {
	if len(certificates) == 1 {
		return sha256.Sum256(certificates[0].Raw)
	}
	h := sha256.New()
	for _, c := range certificates {
		sum := sha256.Sum256(c.Raw)
		h.Write(sum[:])
	}
	return certificateKey(h.Sum(nil))
}

// window returns the time in which every certificate of the chain is valid.
func window(chain []*x509.Certificate) (from, until time.Time) {
	from, until = chain[0].NotBefore, chain[0].NotAfter
	for _, c := range chain[1:] {
		if c.NotBefore.After(from) {
			from = c.NotBefore
		}
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return from, until
}

// frontProxyAuthenticator believes the X-Remote-* headers of a client that presents the front proxy's certificate. It does not
// look at the certificate of a request without such headers.
type frontProxyAuthenticator struct {
	trust *trustStore
}

func (a *frontProxyAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	trusted := a.trust.current()
	if trusted.frontProxy == nil {
		return nil, false, nil
	}
	for _, name := range trusted.headers.usernames {
		if req.Header.Get(name) != "" {
			return trusted.frontProxy.AuthenticateRequest(req)
		}
	}
	return nil, false, nil
}
