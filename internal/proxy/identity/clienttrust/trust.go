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

// Trust is one version of the trusted CAs and their verifiers. A change of the CAs creates a new Trust with empty
// caches. It is safe for concurrent use.
type Trust struct {
	// Named are all CAs, to be listed in the TLS handshake.
	Named *x509.CertPool
	// Users verifies the certificates of users.
	Users *Verifier
	// FrontProxies verifies the certificates of front proxies, such as the API server's aggregator. Their headers name
	// the user (TakeHeaders).
	FrontProxies *Verifier

	signer  []byte // the inputs of newTrust
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
	// PEM that is not a certificate adds nothing.
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

// TakeHeaders removes the front proxy headers from the request and returns the user that they name. It is false when
// the cluster has no front proxies. It does not check that the client is one.
func (t *Trust) TakeHeaders(req *http.Request) (*authenticator.Response, bool, error) {
	c := t.cluster
	named, ok, err := headerrequest.NewDynamic(c.usernames, c.uids, c.groups, c.extraPrefixes).AuthenticateRequest(req)
	headerrequest.ClearAuthenticationHeaders(req.Header, c.usernames, c.uids, c.groups, c.extraPrefixes)
	return named, ok && len(c.proxies) > 0, err
}
