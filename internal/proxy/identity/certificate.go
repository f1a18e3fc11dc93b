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

// verifyOnce returns the user whom the certificates of a request name. They are verified once in a generation of CAs,
// also when they are refused, and a few at a time: until then it is not known who makes us do that work.
func verifyOnce(
	ctx context.Context,
	trusted *clienttrust.Trust,
	verifications *admission.Admission,
	what clienttrust.Purpose,
	presented []*x509.Certificate,
) (*authenticator.Response, error) {
	if user, known, err := trusted.Known(what, presented); known {
		return user, err
	}
	turn, err := takeTurn(ctx, verifications, admission.Certificate, "waiting for a turn to verify the client certificate")
	if err != nil {
		noteUnavailable(ctx, err)
		return nil, err
	}
	defer turn.Leave()
	return trusted.Verify(what, presented)
}

// certificateAuthenticator reads the user from a client certificate: common name, organizations, UID.
type certificateAuthenticator struct {
	trust *clienttrust.Store
	work  *admission.Admission
}

func (a *certificateAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	user, err := verifyOnce(req.Context(), a.trust.Current(), a.work, clienttrust.Users, req.TLS.PeerCertificates)
	if err != nil {
		return nil, false, err
	}
	return user, true, nil
}

// frontProxyAuthenticator believes the X-Remote-* headers of a client that presents the front proxy's certificate. It
// does not look at the certificate of a request without such headers.
type frontProxyAuthenticator struct {
	trust *clienttrust.Store
	work  *admission.Admission
}

func (a *frontProxyAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	trusted := a.trust.Current()
	if trusted.FrontProxy == nil {
		return nil, false, nil
	}
	if !slices.ContainsFunc(trusted.Headers.Usernames, func(name string) bool { return req.Header.Get(name) != "" }) {
		return nil, false, nil
	}
	_, err := verifyOnce(req.Context(), trusted, a.work, clienttrust.FrontProxies, req.TLS.PeerCertificates)
	if err != nil {
		return nil, false, err
	}
	return trusted.FrontProxy.AuthenticateRequest(req)
}
