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
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	// MaxPresented is how many certificates a client may present: its own and the intermediates. Each costs at least
	// one signature verification before the client is authenticated.
	MaxPresented = 8
	// MaxOfOneName is how many intermediates may have the same subject. Verification may have to try each of them as
	// the issuer.
	MaxOfOneName = 2
	// MaxRefused is how many refusals a Verifier caches.
	MaxRefused = 4096
	// RefusedFor is how long a refusal is cached.
	RefusedFor = time.Minute

	maxVerified = 4096
)

// Verifier verifies client certificates against a set of CAs and caches the results. It is safe for concurrent use.
type Verifier struct {
	roots *x509.CertPool
	whom  x509request.UserConversionFunc // maps a chain to a user; false if its name is not accepted
	clock clock.PassiveClock
	// errors and *authenticator.Response, by keyOf
	refused, verified *cache.LRUExpireCache
}

func newVerifier(roots *x509.CertPool, whom x509request.UserConversionFunc, clk clock.PassiveClock) *Verifier {
	return &Verifier{
		roots: roots, whom: whom, clock: clk,
		refused:  cache.NewLRUExpireCacheWithClock(MaxRefused, clk),
		verified: cache.NewLRUExpireCacheWithClock(maxVerified, clk),
	}
}

// keyOf hashes a client certificate and the intermediates that were presented with it.
func keyOf(presented []*x509.Certificate) [sha256.Size]byte {
	h := sha256.New()
	for _, c := range presented {
		h.Write(c.Raw) // DER: it includes its own length
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Known returns the cached result for the certificates that a client presents, its own first: the user (nil for front
// proxies) or the error. It refuses certificates that fail check. It is false when there is no result, or no
// certificate.
func (v *Verifier) Known(presented []*x509.Certificate) (*authenticator.Response, bool, error) {
	if len(presented) == 0 {
		return nil, false, nil
	}
	if err := check(presented, v.clock.Now()); err != nil {
		return nil, true, err
	}
	key := keyOf(presented)
	if user, ok := v.verified.Get(key); ok {
		return user.(*authenticator.Response), true, nil
	}
	if refusal, ok := v.refused.Get(key); ok {
		return nil, true, refusal.(error)
	}
	return nil, false, nil
}

// check refuses certificates that are costly to verify, before any of that work, and those that are expired or not yet
// valid. These refusals are not cached, so a certificate is accepted as soon as it is valid.
func check(presented []*x509.Certificate, now time.Time) error {
	if len(presented) > MaxPresented {
		return fmt.Errorf("the client presented %d certificates; the limit is %d", len(presented), MaxPresented)
	}
	if from, until := presented[0].NotBefore, presented[0].NotAfter; now.Before(from) || now.After(until) {
		return fmt.Errorf("the client certificate is valid from %s to %s", from, until)
	}
	named := map[string]int{}
	for _, c := range presented[1:] {
		named[string(c.RawSubject)]++
		if named[string(c.RawSubject)] > MaxOfOneName {
			const text = "the client presented more than %d intermediate certificates with the same subject"
			return fmt.Errorf(text, MaxOfOneName)
		}
	}
	return nil
}

// Verify verifies at least one certificate and caches the result, errors included. Call it when Known returns false.
func (v *Verifier) Verify(presented []*x509.Certificate) (*authenticator.Response, error) {
	if user, known, err := v.Known(presented); known { // another request verified it meanwhile
		return user, err
	}
	now := v.clock.Now()
	user, until, err := v.verify(presented, now)
	if err != nil {
		// Cache only the text: an x509 error holds the certificate.
		number := presented[0].SerialNumber
		text := fmt.Sprintf("verifying the client certificate with serial number %s: %v", number, err)
		err = errors.New(request.Bounded(text))
		v.refused.Add(keyOf(presented), err, RefusedFor)
		return nil, err
	}
	v.verified.Add(keyOf(presented), user, until.Sub(now))
	return user, nil
}

// verify returns the user whom a certificate names, and when the first certificate of its chain expires.
func (v *Verifier) verify(presented []*x509.Certificate, now time.Time) (
	user *authenticator.Response, until time.Time, err error,
) {
	chains, err := presented[0].Verify(x509.VerifyOptions{
		Roots:         v.roots,
		Intermediates: pool(presented[1:]),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, until, err
	}
	user, ok, err := v.whom(chains[0])
	if err == nil && !ok {
		err = fmt.Errorf("the common name %q is not accepted", presented[0].Subject.CommonName)
	}
	soonest := func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }
	return user, slices.MinFunc(chains[0], soonest).NotAfter, err
}
