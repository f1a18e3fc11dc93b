package clienttrust

import (
	"bytes"
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
	// RefusedFor is for how long a refusal is remembered at most.
	RefusedFor = time.Minute

	maxVerified = 4096
)

// Trust holds everything that decides whether a client certificate is believed. When a CA changes, there is a new
// Trust, which has verified nothing yet. It is safe for concurrent use.
type Trust struct {
	// Named are all CAs, to be named in the TLS handshake.
	Named *x509.CertPool
	// FrontProxy authenticates by the headers of a front proxy, such as the API server's aggregator, and is nil when
	// the cluster has none. Verify its certificate first: this one verifies again, however much work that is.
	FrontProxy authenticator.Request
	// Headers are those headers.
	Headers Headers

	users, proxies    *x509.CertPool // the CAs of users, and of front proxies
	begins            []time.Time    // when each CA becomes valid
	clock             clock.PassiveClock
	refused, verified *cache.LRUExpireCache // errors and *verified by certificateKey
}

// Headers are the headers in which a front proxy says who the user is.
type Headers struct {
	Usernames, UIDs, Groups, ExtraPrefixes []string
}

func (t *Trust) add(pool *x509.CertPool, roots []*x509.Certificate) {
	for _, root := range roots {
		pool.AddCert(root)
		t.Named.AddCert(root)
		t.begins = append(t.begins, root.NotBefore)
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

// verified is what a good certificate says.
type verified struct {
	user      *authenticator.Response // nil for front proxies
	notBefore time.Time
}

// Known returns what was found out before about the certificates that a client presents, its own first: the user whom
// they name (none for front proxies), or why they are not good. It costs little, and refuses at once what would be much
// work to verify. It is false when nothing is known, or nothing presented.
func (t *Trust) Known(what Purpose, presented []*x509.Certificate) (*authenticator.Response, bool, error) {
	if len(presented) == 0 {
		return nil, false, nil
	}
	if err := checkPresented(presented); err != nil {
		return nil, true, err
	}
	return t.known(keyOf(what, presented), t.clock.Now())
}

func (t *Trust) known(key certificateKey, now time.Time) (*authenticator.Response, bool, error) {
	if found, ok := t.verified.Get(key); ok {
		if good := found.(*verified); !now.Before(good.notBefore) {
			return good.user, true, nil
		}
	}
	if refusal, ok := t.refused.Get(key); ok {
		return nil, true, refusal.(error)
	}
	return nil, false, nil
}

// Verify verifies what Known does not know, at least one certificate, and remembers the result, also of a refusal.
func (t *Trust) Verify(what Purpose, presented []*x509.Certificate) (*authenticator.Response, error) {
	key, now := keyOf(what, presented), t.clock.Now()
	if user, known, err := t.known(key, now); known { // it was verified meanwhile
		return user, err
	}
	user, chain, err := t.verify(what, presented, now)
	if err != nil {
		t.refuse(key, presented, now, err)
		return nil, err
	}
	from, until := window(chain)
	t.verified.Add(key, &verified{user: user, notBefore: from}, until.Sub(now))
	return user, nil
}

// refuse remembers why a certificate is not good. The same certificate can only become good by time, when one of the
// presented certificates or of the CAs becomes valid: then it is forgotten.
func (t *Trust) refuse(key certificateKey, presented []*x509.Certificate, now time.Time, why error) {
	until, begins := now.Add(RefusedFor), slices.Clone(t.begins)
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

// checkPresented refuses certificates that would be much work to verify, before any of it.
func checkPresented(presented []*x509.Certificate) error {
	if len(presented) > MaxPresented {
		return fmt.Errorf("the client presented %d certificates, and %d is the limit", len(presented), MaxPresented)
	}
	for i, c := range presented[1:] {
		same := 1
		for _, other := range presented[i+2:] {
			if bytes.Equal(c.RawSubject, other.RawSubject) {
				same++
			}
		}
		if same > MaxOfOneName {
			return fmt.Errorf("the client presented more than %d intermediate certificates with one subject", MaxOfOneName)
		}
	}
	return nil
}

// verify returns the user whom a certificate names, with the chain from it to a CA.
func (t *Trust) verify(
	what Purpose, presented []*x509.Certificate, now time.Time,
) (*authenticator.Response, []*x509.Certificate, error) {
	options := x509.VerifyOptions{
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
	chains, err := presented[0].Verify(options)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf(
			"verifying the client certificate with serial number %s: %w", presented[0].SerialNumber, err)
	case what == FrontProxies:
		return nil, chains[0], nil
	}
	response, ok, err := x509request.CommonNameUserConversion.User(chains[0])
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("reading the user from the client certificate: %w", err)
	case !ok:
		return nil, nil, errors.New("the client certificate has no common name")
	}
	return response, chains[0], nil
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
