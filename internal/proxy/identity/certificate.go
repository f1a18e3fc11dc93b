package identity

import (
	"context"
	"crypto/x509"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
)

// clientCertificates authenticates by client certificate.
type clientCertificates struct {
	trust *clienttrust.Store
	work  *admission.Admission
}

// user reads the user from a client certificate: common name, organizations, UID.
func (c *clientCertificates) user(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	user, err := c.verify(req.Context(), c.trust.Current(), clienttrust.Users, req.TLS.PeerCertificates)
	return user, err == nil, err
}

// frontProxy believes the X-Remote-* headers of a client that presents the front proxy's certificate. It does not look
// at the certificate of a request without such headers.
func (c *clientCertificates) frontProxy(req *http.Request) (*authenticator.Response, bool, error) {
	trusted := c.trust.Current()
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 || trusted.FrontProxy == nil ||
		!slices.ContainsFunc(trusted.Headers.Usernames, func(name string) bool { return req.Header.Get(name) != "" }) {
		return nil, false, nil
	}
	if _, err := c.verify(req.Context(), trusted, clienttrust.FrontProxies, req.TLS.PeerCertificates); err != nil {
		return nil, false, err
	}
	return trusted.FrontProxy.AuthenticateRequest(req)
}

// verify returns the user whom the certificates of a request name. They are verified once in a generation of CAs,
// also when they are refused, and a few at a time: until then it is not known who makes us do that work.
func (c *clientCertificates) verify(
	ctx context.Context, trusted *clienttrust.Trust, what clienttrust.Purpose, presented []*x509.Certificate,
) (*authenticator.Response, error) {
	if user, known, err := trusted.Known(what, presented); known {
		return user, err
	}
	turn, err := takeTurn(ctx, c.work, admission.Certificate, "waiting for a turn to verify the client certificate")
	if err != nil {
		noteUnavailable(ctx, err)
		return nil, err
	}
	defer turn.Leave()
	return trusted.Verify(what, presented)
}
