package clienttrust

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// MaxPresented is how many certificates a client may present: its own, and those that lead from it to a CA. It
	// takes as many signatures to verify, or more, before anything is known about the client.
	MaxPresented = 8
	// MaxOfOneName is how many of them may have the same subject. Each of them could have issued a certificate that
	// names this subject as its issuer, and all have to be tried.
	MaxOfOneName = 2
	// MaxRefused is how many refusals are remembered in one generation of CAs.
	MaxRefused = 4096
	// RefusedFor is for how long a refusal is remembered.
	RefusedFor = time.Minute

	maxVerified = 4096
)

// Trust holds everything that decides whether a client certificate is believed. When a CA changes, there is a new
// Trust, which has verified nothing yet. It is safe for concurrent use.
type Trust struct {
	// Named are all CAs, to be named in the TLS handshake.
	Named *x509.CertPool
	// FrontProxy authenticates by the headers of a front proxy whose certificate was verified before, such as the API
	// server's aggregator. It is nil when the cluster has none.
	FrontProxy authenticator.Request
	// Headers are those headers.
	Headers Headers

	signer            []byte // it was made from these two
	cluster           *settings
	users, proxies    *x509.CertPool // their CAs
	clock             clock.PassiveClock
	refused, verified *cache.LRUExpireCache // errors and *authenticator.Response by certificateKey
}

// Headers are the headers in which a front proxy says who the user is.
type Headers struct {
	Usernames, UIDs, Groups, ExtraPrefixes []string
}

func newTrust(signer []byte, cluster *settings, clk clock.PassiveClock, log klog.Logger) *Trust {
	t := &Trust{
		Named: x509.NewCertPool(), Headers: cluster.headers, signer: signer, cluster: cluster,
		users: x509.NewCertPool(), proxies: x509.NewCertPool(), clock: clk,
		refused:  cache.NewLRUExpireCacheWithClock(MaxRefused, clk),
		verified: cache.NewLRUExpireCacheWithClock(maxVerified, clk),
	}
	t.add(t.users, cluster.users)
	t.add(t.proxies, cluster.proxies)
	if len(signer) > 0 {
		signers, err := cert.ParseCertsPEM(signer)
		if err != nil {
			// Fail closed: its client certificates are not believed, all others are.
			log.Error(err, "Ignored the signer CA bundle")
			signers = nil
		}
		t.add(t.users, signers)
	}
	if len(cluster.proxies) > 0 && len(t.Headers.Usernames) > 0 {
		t.FrontProxy = headerrequest.NewDynamic(
			headerrequest.StaticStringSlice(t.Headers.Usernames), headerrequest.StaticStringSlice(t.Headers.UIDs),
			headerrequest.StaticStringSlice(t.Headers.Groups), headerrequest.StaticStringSlice(t.Headers.ExtraPrefixes),
		)
	}
	return t
}

func (t *Trust) add(pool *x509.CertPool, roots []*x509.Certificate) {
	for _, root := range roots {
		pool.AddCert(root)
		t.Named.AddCert(root)
	}
}

// Purpose says for what a certificate is verified: the CAs differ.
type Purpose byte

const (
	// Users prove by certificate who they are.
	Users Purpose = iota
	// FrontProxies are believed about users.
	FrontProxies
)

// certificateKey is a hash of a client certificate, of the intermediates that were presented with it, and of what for.
type certificateKey [sha256.Size]byte

func keyOf(what Purpose, certificates []*x509.Certificate) certificateKey {
	h := sha256.New()
	h.Write([]byte{byte(what)})
	for _, c := range certificates {
		sum := sha256.Sum256(c.Raw)
		h.Write(sum[:])
	}
	return certificateKey(h.Sum(nil))
}

// Known returns what was found out before about the certificates that a client presents, its own first: the user whom
// they name (none for front proxies), or why they are not good. It costs little, and refuses at once what would be much
// work to verify. It is false when nothing is known, or nothing presented.
func (t *Trust) Known(what Purpose, presented []*x509.Certificate) (*authenticator.Response, bool, error) {
	if len(presented) == 0 {
		return nil, false, nil
	}
	if err := check(presented, t.clock.Now()); err != nil {
		return nil, true, err
	}
	key := keyOf(what, presented)
	if user, ok := t.verified.Get(key); ok {
		return user.(*authenticator.Response), true, nil
	}
	if refusal, ok := t.refused.Get(key); ok {
		return nil, true, refusal.(error)
	}
	return nil, false, nil
}

// Verify verifies what Known does not know, at least one certificate, and remembers the result, also of a refusal.
func (t *Trust) Verify(what Purpose, presented []*x509.Certificate) (*authenticator.Response, error) {
	if user, known, err := t.Known(what, presented); known { // it was verified meanwhile
		return user, err
	}
	now := t.clock.Now()
	user, until, err := t.verify(what, presented, now)
	if err != nil {
		t.refused.Add(keyOf(what, presented), err, RefusedFor)
		return nil, err
	}
	t.verified.Add(keyOf(what, presented), user, until.Sub(now))
	return user, nil
}

// check refuses certificates that would be much work to verify, before any of it, and those that are too early or too
// late: that is not remembered, so the certificate is good as soon as it is valid.
func check(presented []*x509.Certificate, now time.Time) error {
	if len(presented) > MaxPresented {
		return fmt.Errorf("the client presented %d certificates, and %d is the limit", len(presented), MaxPresented)
	}
	if from, until := presented[0].NotBefore, presented[0].NotAfter; now.Before(from) || now.After(until) {
		return fmt.Errorf("the client certificate is valid from %s to %s", from, until)
	}
	named := map[string]int{}
	for _, c := range presented[1:] {
		named[string(c.RawSubject)]++
		if named[string(c.RawSubject)] > MaxOfOneName {
			return fmt.Errorf("the client presented more than %d intermediate certificates with one subject", MaxOfOneName)
		}
	}
	return nil
}

// verify returns the user whom a certificate names, and how long the chain from it to a CA is valid.
func (t *Trust) verify(
	what Purpose, presented []*x509.Certificate, now time.Time,
) (user *authenticator.Response, until time.Time, err error) {
	leaf, options := presented[0], x509.VerifyOptions{
		Roots:         t.users,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if what == FrontProxies {
		options.Roots = t.proxies
	}
	for _, intermediate := range presented[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	chains, err := leaf.Verify(options)
	if err != nil {
		number := leaf.SerialNumber
		return nil, until, fmt.Errorf("verifying the client certificate with serial number %s: %w", number, err)
	}
	if what == FrontProxies {
		if names := t.cluster.proxyNames; len(names) > 0 && !slices.Contains(names, leaf.Subject.CommonName) {
			return nil, until, errors.New("the client certificate names no front proxy")
		}
	} else {
		var ok bool
		if user, ok, err = x509request.CommonNameUserConversion.User(chains[0]); err != nil {
			return nil, until, fmt.Errorf("reading the user from the client certificate: %w", err)
		} else if !ok {
			return nil, until, errors.New("the client certificate has no common name")
		}
	}
	soonest := func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }
	return user, slices.MinFunc(chains[0], soonest).NotAfter, nil
}
