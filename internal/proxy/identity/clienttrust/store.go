// Package clienttrust decides whether a client certificate is believed, and whom it names. It trusts what the API
// server trusts, which a ConfigMap of the cluster says, and the CA of the certificates that this product issues.
package clienttrust

import (
	"bytes"
	"crypto/x509"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Store combines the signer CA with the CAs and settings that the cluster publishes. It parses PEM only after a change.
// It is safe for concurrent use.
type Store struct {
	signer  func() []byte
	core    corev1client.CoreV1Interface
	cluster atomic.Pointer[settings]
	clock   clock.PassiveClock
	log     klog.Logger

	last atomic.Pointer[generation]
	mu   sync.Mutex
}

// generation is a Trust with what it was made from.
type generation struct {
	signer  []byte
	cluster *settings
	made    *Trust
}

// NewStore makes a store that trusts the CAs in signer's PEM, and nothing else before Prime or Follow has read the
// cluster's settings from core. The signer is asked with each request; nil means that there is none.
func NewStore(
	signer func() []byte, core corev1client.CoreV1Interface, clk clock.PassiveClock, log klog.Logger,
) *Store {
	s := &Store{signer: signer, core: core, clock: clk, log: log}
	s.cluster.Store(&settings{})
	return s
}

// Current returns what is trusted now. The same pointer means that nothing changed.
func (s *Store) Current() *Trust {
	if last := s.last.Load(); last.isMadeFrom(s.signer(), s.cluster.Load()) {
		return last.made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Looked at again, so that what has changed meanwhile is not replaced by what was before.
	signer, cluster := s.signer(), s.cluster.Load()
	if last := s.last.Load(); last.isMadeFrom(signer, cluster) {
		return last.made
	}
	next := &generation{signer: signer, cluster: cluster, made: s.build(signer, cluster)}
	s.last.Store(next)
	return next.made
}

func (g *generation) isMadeFrom(signer []byte, cluster *settings) bool {
	return g != nil && g.cluster == cluster && bytes.Equal(g.signer, signer)
}

func (s *Store) build(signer []byte, cluster *settings) *Trust {
	t := &Trust{
		Named:    x509.NewCertPool(),
		Headers:  cluster.frontProxy.headers,
		users:    x509.NewCertPool(),
		proxies:  x509.NewCertPool(),
		clock:    s.clock,
		refused:  cache.NewLRUExpireCacheWithClock(MaxRefused, s.clock),
		verified: cache.NewLRUExpireCacheWithClock(maxVerified, s.clock),
	}
	roots := cluster.clientRoots
	if len(signer) > 0 {
		signers, err := parseBundle(signer)
		if err != nil {
			// Fail closed: its client certificates are not believed, all others are.
			s.log.Error(err, "Ignored the signer CA bundle")
		}
		roots = append(signers, roots...)
	}
	t.add(t.users, roots)
	t.add(t.proxies, cluster.frontProxy.roots)
	if len(cluster.frontProxy.roots) > 0 && len(cluster.frontProxy.headers.Usernames) > 0 {
		options := x509.VerifyOptions{Roots: t.proxies, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		t.FrontProxy = headerrequest.NewDynamicVerifyOptionsSecure(
			func() (x509.VerifyOptions, bool) { return options, true },
			headerrequest.StaticStringSlice(cluster.frontProxy.allowedNames),
			headerrequest.StaticStringSlice(t.Headers.Usernames),
			headerrequest.StaticStringSlice(t.Headers.UIDs),
			headerrequest.StaticStringSlice(t.Headers.Groups),
			headerrequest.StaticStringSlice(t.Headers.ExtraPrefixes),
		)
	}
	return t
}
