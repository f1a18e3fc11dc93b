package identity

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
)

type clientCertificates struct {
	trust *clienttrust.Store
	work  *flowcontrol.Controller
}

// user authenticates the user of a client certificate: common name, organizations, UID.
func (c *clientCertificates) user(req *http.Request) (*authenticator.Response, bool, error) {
	return c.verify(req, c.trust.Current().Users)
}

// frontProxy returns the user whom the X-Remote-* headers name, if the client presents the front proxy's certificate.
// It does not verify the certificate of a request without such headers. It removes the headers from every request.
func (c *clientCertificates) frontProxy(req *http.Request) (*authenticator.Response, bool, error) {
	trusted := c.trust.Current()
	named, ok, err := trusted.TakeHeaders(req)
	if ok && err == nil {
		_, ok, err = c.verify(req, trusted.FrontProxies)
	}
	return named, ok, err
}

// verify returns the user whom the certificates of a request name. Each result is cached until the CAs change. Few
// verifications run at a time, because the client is not authenticated yet.
func (c *clientCertificates) verify(
	req *http.Request, by *clienttrust.Verifier,
) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	presented, ctx := req.TLS.PeerCertificates, req.Context()
	if user, known, err := by.Known(presented); known {
		return user, err == nil, err
	}
	permit, err := acquireSeats(ctx, c.work, flowcontrol.Certificate, "queuing to verify the client certificate")
	if err != nil {
		noteUnavailable(ctx, err)
		return nil, false, err
	}
	defer permit.Release()
	user, err := by.Verify(presented)
	return user, err == nil, err
}
