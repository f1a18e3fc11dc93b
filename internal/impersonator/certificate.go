package impersonator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
)

const (
	// maxPresented is how many certificates a client may present: its own, and those that lead from it to a CA. It takes
	// as many signatures to verify, or more, before anything is known about the client.
	maxPresented = 8
	// maxOfOneName is how many of them may have the same subject. Each of them could have issued a certificate that
	// names this subject as its issuer, and all have to be tried.
	maxOfOneName = 2
)

// certificateKey is a hash of a client certificate, of the intermediates that were presented with it, and of what for.
type certificateKey [sha256.Size]byte

// purpose says for what a certificate is verified: the CAs differ.
type purpose byte

const (
	forUsers purpose = iota
	forFrontProxies
)

func keyOf(what purpose, certificates []*x509.Certificate) certificateKey {
	h := sha256.New()
	h.Write([]byte{byte(what)})
	for _, c := range certificates {
		sum := sha256.Sum256(c.Raw)
		h.Write(sum[:])
	}
	return certificateKey(h.Sum(nil))
}

type verifiedCertificate struct {
	response  *authenticator.Response // nil for front proxies
	notBefore time.Time
}

// verifiedBefore returns what was found out about a certificate in this generation of CAs: that it is good, or why it
// is not.
func (t *trust) verifiedBefore(key certificateKey, now time.Time) (*verifiedCertificate, error) {
	if found, ok := t.verified.Get(key); ok {
		if known := found.(*verifiedCertificate); !now.Before(known.notBefore) {
			return known, nil
		}
	}
	if refusal, ok := t.refused.Get(key); ok {
		return nil, refusal.(error)
	}
	return nil, nil //nolint:nilnil // nothing is known
}

// refuse remembers why a certificate is not good. The same certificate can only become good by time, when one of the
// presented certificates or of the CAs becomes valid: then it is forgotten.
func (t *trust) refuse(key certificateKey, presented []*x509.Certificate, now time.Time, why error) {
	until := now.Add(refusedFor)
	begins := slices.Clone(t.begins)
	for _, c := range presented {
		begins = append(begins, c.NotBefore)
	}
	for _, begin := range begins {
		if begin.After(now) && begin.Before(until) {
			until = begin
		}
	}
	t.refused.Add(key, why, until.Sub(now))
}

// verifyOnce returns what verify finds out about the certificates of a request. It is asked once in a generation of
// CAs, also when it refuses, and a few at a time: until then it is not known who makes us do that work.
func verifyOnce(
	ctx context.Context,
	t *trust,
	verifications *work,
	what purpose,
	presented []*x509.Certificate,
	clk clock.PassiveClock,
	verify func(now time.Time) (*authenticator.Response, []*x509.Certificate, error),
) (*verifiedCertificate, error) {
	if err := checkPresented(presented); err != nil {
		return nil, err
	}
	key := keyOf(what, presented)
	if known, err := t.verifiedBefore(key, clk.Now()); known != nil || err != nil {
		return known, err
	}
	turn, err := verifications.begin(askerOf(ctx))
	if err != nil {
		noteUnavailable(ctx, err)
		return nil, err
	}
	defer turn.done()
	if err := turn.Wait(ctx); err != nil {
		err = &unavailableError{doing: "waiting for a turn to verify the client certificate", cause: err}
		noteUnavailable(ctx, err)
		return nil, err
	}
	now := clk.Now()
	if known, err := t.verifiedBefore(key, now); known != nil || err != nil { // it was verified meanwhile
		return known, err
	}
	response, chain, err := verify(now)
	if err != nil {
		t.refuse(key, presented, now, err)
		return nil, err
	}
	from, until := window(chain)
	verified := &verifiedCertificate{response: response, notBefore: from}
	t.verified.Add(key, verified, until.Sub(now))
	return verified, nil
}

// checkPresented refuses certificates that would be much work to verify, before any of it.
func checkPresented(presented []*x509.Certificate) error {
	if len(presented) > maxPresented {
		return fmt.Errorf("the client presented %d certificates, and %d is the limit", len(presented), maxPresented)
	}
	for i, c := range presented[1:] {
		same := 1
		for _, other := range presented[i+2:] {
			if bytes.Equal(c.RawSubject, other.RawSubject) {
				same++
			}
		}
		if same > maxOfOneName {
			return fmt.Errorf("the client presented more than %d intermediate certificates with one subject", maxOfOneName)
		}
	}
	return nil
}

// certificateAuthenticator reads the user from a client certificate: common name, organizations, UID. It verifies a
// certificate once, and again after the CAs have changed. In between it only looks at the dates.
type certificateAuthenticator struct {
	trust *trustStore
	work  *work
	clock clock.PassiveClock
}

func (a *certificateAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	presented, trusted := req.TLS.PeerCertificates, a.trust.current()
	known, err := verifyOnce(req.Context(), trusted, a.work, forUsers, presented, a.clock,
		func(now time.Time) (*authenticator.Response, []*x509.Certificate, error) {
			return trusted.userOf(presented, now)
		})
	if err != nil {
		return nil, false, err
	}
	return known.response, true, nil
}

// userOf returns the user whom a certificate names, with the chain from it to a CA.
func (t *trust) userOf(
	presented []*x509.Certificate,
	now time.Time,
) (*authenticator.Response, []*x509.Certificate, error) {
	chain, err := verifyChain(presented, t.clients, now)
	if err != nil {
		return nil, nil, err
	}
	response, ok, err := x509request.CommonNameUserConversion.User(chain)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the user from the client certificate: %w", err)
	}
	if !ok {
		return nil, nil, errors.New("the client certificate has no common name")
	}
	return response, chain, nil
}

func verifyChain(presented []*x509.Certificate, roots *x509.CertPool, now time.Time) ([]*x509.Certificate, error) {
	options := x509.VerifyOptions{
		Roots:         roots,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, intermediate := range presented[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	chains, err := presented[0].Verify(options)
	if err != nil {
		return nil, fmt.Errorf("verifying the client certificate with serial number %s: %w", presented[0].SerialNumber, err)
	}
	return chains[0], nil
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

// frontProxyAuthenticator believes the X-Remote-* headers of a client that presents the front proxy's certificate. It
// does not look at the certificate of a request without such headers.
type frontProxyAuthenticator struct {
	trust *trustStore
	work  *work
	clock clock.PassiveClock
}

func (a *frontProxyAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	trusted := a.trust.current()
	if trusted.frontProxy == nil {
		return nil, false, nil
	}
	if !slices.ContainsFunc(trusted.headers.usernames, func(name string) bool { return req.Header.Get(name) != "" }) {
		return nil, false, nil
	}
	presented := req.TLS.PeerCertificates
	// The authenticator of the API server's library verifies again. What was refused once does not get there.
	_, err := verifyOnce(req.Context(), trusted, a.work, forFrontProxies, presented, a.clock,
		func(now time.Time) (*authenticator.Response, []*x509.Certificate, error) {
			chain, err := verifyChain(presented, trusted.frontProxyRoots, now)
			return nil, chain, err
		})
	if err != nil {
		return nil, false, err
	}
	return trusted.frontProxy.AuthenticateRequest(req)
}
