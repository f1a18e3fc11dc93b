package impersonator

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	maxBundleBytes        = 1 << 20
	maxBundleCertificates = 1000
	maxVerified           = 4096
	// maxRefused is how many refusals are remembered in one generation of CAs, and refusedFor for how long at most.
	maxRefused = 4096
	refusedFor = time.Minute
)

// trust holds everything that decides whether a client certificate is believed. It is never changed. When a CA
// changes, a new trust is made, with an empty cache of verified certificates.
type trust struct {
	clients    *x509.CertPool // the CAs of users: the signer CA and the cluster's client CA
	named      *x509.CertPool // all CAs, front proxy included, to be named in the TLS handshake
	frontProxy authenticator.Request
	// frontProxyRoots are the CAs of front proxies.
	frontProxyRoots *x509.CertPool
	headers         frontProxyHeaders
	begins          []time.Time           // when each CA becomes valid
	refused         *cache.LRUExpireCache // errors by certificateKey
	verified        *cache.LRUExpireCache // *verifiedCertificate by certificateKey
}

// frontProxyHeaders are the headers in which a front proxy, such as the API server's aggregator, says who the user is.
type frontProxyHeaders struct {
	usernames, uids, groups, extraPrefixes []string
}

// clusterTrust is what the cluster publishes in the ConfigMap extension-apiserver-authentication.
type clusterTrust struct {
	clientCA       []byte
	frontProxyCA   []byte
	allowedNames   []string
	headers        frontProxyHeaders
	clientRoots    []*x509.Certificate
	frontProxyRoot []*x509.Certificate
}

// trustStore combines the signer CA with the CAs and settings that the cluster publishes. It parses PEM only after a
// change.
type trustStore struct {
	signer  func() *CABundle
	cluster atomic.Pointer[clusterTrust]
	clock   clock.PassiveClock
	log     klog.Logger

	last atomic.Pointer[trustInput]
	mu   sync.Mutex
}

type trustInput struct {
	signer  *CABundle
	cluster *clusterTrust
	made    *trust
}

func newTrustStore(signer func() *CABundle, clk clock.PassiveClock, log klog.Logger) *trustStore {
	s := &trustStore{signer: signer, clock: clk, log: log}
	s.cluster.Store(&clusterTrust{})
	return s
}

// current returns what is trusted now. The same pointer means that nothing changed.
func (s *trustStore) current() *trust {
	signer, cluster := s.signer(), s.cluster.Load()
	if last := s.last.Load(); last != nil && last.signer == signer && last.cluster == cluster {
		return last.made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Looked at again, so that what has changed meanwhile is not replaced by what was before.
	signer, cluster = s.signer(), s.cluster.Load()
	last := s.last.Load()
	switch {
	case last == nil:
	case last.signer == signer && last.cluster == cluster:
		return last.made
	case last.cluster == cluster && samePEM(last.signer, signer):
		s.last.Store(&trustInput{signer: signer, cluster: cluster, made: last.made})
		return last.made
	}
	next := &trustInput{signer: signer, cluster: cluster, made: s.build(signer, cluster)}
	s.last.Store(next)
	return next.made
}

func samePEM(a, b *CABundle) bool {
	return a != nil && b != nil && bytes.Equal(a.PEM, b.PEM)
}

func (s *trustStore) build(signer *CABundle, cluster *clusterTrust) *trust {
	t := &trust{
		clients:  x509.NewCertPool(),
		named:    x509.NewCertPool(),
		headers:  cluster.headers,
		refused:  cache.NewLRUExpireCacheWithClock(maxRefused, s.clock),
		verified: cache.NewLRUExpireCacheWithClock(maxVerified, s.clock),
	}
	clients := cluster.clientRoots
	if signer != nil {
		roots, err := parseBundle(signer.PEM)
		if err != nil {
			// Fail closed: its client certificates are not believed, all others are.
			s.log.Error(err, "Ignored the signer CA bundle")
		}
		clients = append(roots, clients...)
	}
	for _, root := range clients {
		t.clients.AddCert(root)
		t.named.AddCert(root)
		t.begins = append(t.begins, root.NotBefore)
	}
	t.frontProxyRoots = x509.NewCertPool()
	for _, root := range cluster.frontProxyRoot {
		t.frontProxyRoots.AddCert(root)
		t.named.AddCert(root)
		t.begins = append(t.begins, root.NotBefore)
	}
	if len(cluster.frontProxyRoot) > 0 && len(cluster.headers.usernames) > 0 {
		t.frontProxy = headerrequest.NewDynamicVerifyOptionsSecure(
			func() (x509.VerifyOptions, bool) {
				return x509.VerifyOptions{
					Roots:     t.frontProxyRoots,
					KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
				}, true
			},
			headerrequest.StaticStringSlice(cluster.allowedNames),
			headerrequest.StaticStringSlice(cluster.headers.usernames),
			headerrequest.StaticStringSlice(cluster.headers.uids),
			headerrequest.StaticStringSlice(cluster.headers.groups),
			headerrequest.StaticStringSlice(cluster.headers.extraPrefixes),
		)
	}
	return t
}

// setCluster takes over the data of the ConfigMap. A part that cannot be parsed keeps its last good value. A part
// that is gone is no longer trusted.
func (s *trustStore) setCluster(data map[string]string) error {
	last := s.cluster.Load()
	next, err := parseClusterTrust(data, last)
	if !next.equal(last) {
		s.cluster.Store(next)
		s.log.Info("Read the cluster's client authentication settings",
			"clientCAs", len(next.clientRoots), "frontProxyCAs", len(next.frontProxyRoot))
	}
	return err
}

func (c *clusterTrust) equal(o *clusterTrust) bool {
	as, _ := json.Marshal(
		[][]string{c.allowedNames, c.headers.usernames, c.headers.uids, c.headers.groups, c.headers.extraPrefixes},
	)
	bs, _ := json.Marshal(
		[][]string{o.allowedNames, o.headers.usernames, o.headers.uids, o.headers.groups, o.headers.extraPrefixes},
	)
	return bytes.Equal(c.clientCA, o.clientCA) && bytes.Equal(c.frontProxyCA, o.frontProxyCA) && bytes.Equal(as, bs)
}

func parseClusterTrust(data map[string]string, last *clusterTrust) (*clusterTrust, error) {
	next := &clusterTrust{}
	var problems []error
	if text := data["client-ca-file"]; text != "" {
		roots, err := parseBundle([]byte(text))
		if err != nil {
			problems = append(problems, fmt.Errorf("parsing client-ca-file: %w", err))
			next.clientCA, next.clientRoots = last.clientCA, last.clientRoots
		} else {
			next.clientCA, next.clientRoots = []byte(text), roots
		}
	}
	if err := next.parseFrontProxy(data); err != nil {
		// All or nothing: the CA of one version must not meet the allowed names of another.
		problems = append(problems, err)
		next.frontProxyCA, next.frontProxyRoot = last.frontProxyCA, last.frontProxyRoot
		next.allowedNames, next.headers = last.allowedNames, last.headers
	}
	return next, errors.Join(problems...)
}

func (c *clusterTrust) parseFrontProxy(data map[string]string) error {
	text := data["requestheader-client-ca-file"]
	if text == "" {
		return nil
	}
	roots, err := parseBundle([]byte(text))
	if err != nil {
		return fmt.Errorf("parsing requestheader-client-ca-file: %w", err)
	}
	c.frontProxyCA, c.frontProxyRoot = []byte(text), roots
	for _, list := range []struct {
		key  string
		into *[]string
	}{
		{"requestheader-allowed-names", &c.allowedNames},
		{"requestheader-username-headers", &c.headers.usernames},
		{"requestheader-uid-headers", &c.headers.uids},
		{"requestheader-group-headers", &c.headers.groups},
		{"requestheader-extra-headers-prefix", &c.headers.extraPrefixes},
	} {
		text := data[list.key]
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), list.into); err != nil {
			return fmt.Errorf("parsing %s: %w", list.key, err)
		}
	}
	return nil
}

// parseBundle reads all certificates of a PEM file. Like the API server, it ignores other blocks and the text between
// them.
func parseBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundleBytes {
		return nil, fmt.Errorf("a CA bundle of %d bytes is larger than %d", len(data), maxBundleBytes)
	}
	var certificates []*x509.Certificate
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if len(certificates) == maxBundleCertificates {
			return nil, fmt.Errorf("more than %d certificates in a CA bundle", maxBundleCertificates)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing certificate %d of a CA bundle: %w", len(certificates)+1, err)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("no certificate in a CA bundle")
	}
	return certificates, nil
}
