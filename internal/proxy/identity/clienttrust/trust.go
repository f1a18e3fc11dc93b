package clienttrust

import (
	"crypto/x509"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
)

// Trust holds everything that decides whether a client certificate is believed. When a CA changes, there is a new
// Trust, which has verified nothing yet. It is safe for concurrent use.
type Trust struct {
	// Named are all CAs, to be named in the TLS handshake.
	Named *x509.CertPool
	// Users prove by certificate who they are.
	Users *Verifier
	// FrontProxies, such as the API server's aggregator, are believed about users: TakeHeaders.
	FrontProxies *Verifier

	signer  []byte // it was made from these two
	cluster *settings
}

func newTrust(signer []byte, cluster *settings, clk clock.PassiveClock) *Trust {
	isFrontProxy := func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		names := cluster.proxyNames
		return nil, len(names) == 0 || slices.Contains(names, chain[0].Subject.CommonName), nil
	}
	t := &Trust{
		Named:        pool(slices.Concat(cluster.users, cluster.proxies)),
		Users:        newVerifier(pool(cluster.users), x509request.CommonNameUserConversion, clk),
		FrontProxies: newVerifier(pool(cluster.proxies), isFrontProxy, clk),
		signer:       signer,
		cluster:      cluster,
	}
	// What is no certificate adds nothing.
	t.Named.AppendCertsFromPEM(signer)
	t.Users.roots.AppendCertsFromPEM(signer)
	return t
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

// TakeHeaders returns the user whom a front proxy names in the headers of the request, if the cluster has front
// proxies, and removes these headers. Whether the client is a front proxy is not asked here.
func (t *Trust) TakeHeaders(req *http.Request) (*authenticator.Response, bool, error) {
	c := t.cluster
	named, ok, err := headerrequest.NewDynamic(c.usernames, c.uids, c.groups, c.extraPrefixes).AuthenticateRequest(req)
	headerrequest.ClearAuthenticationHeaders(req.Header, c.usernames, c.uids, c.groups, c.extraPrefixes)
	return named, ok && len(c.proxies) > 0, err
}
