package clienttrust

import (
	"bytes"
	"crypto/x509"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func newCA(t *testing.T, name string) *certs.CA {
	t.Helper()
	return must.Get(certs.NewCA(name, time.Now(), time.Hour))(t)
}

func newStore(t *testing.T, signer func() []byte) *Store {
	t.Helper()
	return NewStore(signer, corev1client.New(nil), clock.RealClock{})
}

func TestTrustChangesOnlyWhenSomethingChanged(t *testing.T) {
	t.Parallel()
	bundle := newCA(t, "one").CertPEM()
	store := newStore(t, func() []byte { return bundle })
	data := map[string]string{"client-ca-file": string(newCA(t, "cluster").CertPEM())}
	first := store.Current()
	if store.Current() != first {
		t.Error("want one generation while nothing changes")
	}
	bundle = bytes.Clone(bundle)
	if store.Current() != first {
		t.Error("want the same generation for the same certificates")
	}
	store.take(t.Context(), data)
	second := store.Current()
	if second == first {
		t.Error("want another generation for another cluster CA")
	}
	store.take(t.Context(), map[string]string{"client-ca-file": data["client-ca-file"]})
	if store.Current() != second {
		t.Error("want the same generation for the same ConfigMap")
	}
	store.take(t.Context(), map[string]string{"client-ca-file": "broken"})
	if store.Current() != second {
		t.Error("want the last known good CA bundle kept")
	}
	store.take(t.Context(), map[string]string{})
	if store.Current() == second {
		t.Error("want a CA that is gone no longer trusted")
	}
}

// TestSettingsAreAllOrNothing breaks one part of the settings, and one certificate of a bundle: nothing changes.
func TestSettingsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	store := newStore(t, func() []byte { return nil })
	data := map[string]string{
		"requestheader-client-ca-file":   string(newCA(t, "front").CertPEM()),
		"requestheader-allowed-names":    `["a"]`,
		"requestheader-username-headers": `["X-Remote-User"]`,
	}
	store.take(t.Context(), data)
	last := store.Current()
	if _, ok, _ := last.TakeHeaders(&http.Request{Header: http.Header{"X-Remote-User": {"jane"}}}); !ok {
		t.Fatal("want a front proxy believed")
	}
	other := string(newCA(t, "other").CertPEM())
	for name, change := range map[string]func(map[string]string){
		"the allowed names":          func(data map[string]string) { data["requestheader-allowed-names"] = `[` },
		"the front proxy's CA":       func(data map[string]string) { data["requestheader-client-ca-file"] = "broken" },
		"a certificate after others": func(data map[string]string) { data["client-ca-file"] = other + brokenPEM },
	} {
		next := maps.Clone(data)
		next["client-ca-file"] = other
		change(next)
		if store.take(t.Context(), next); store.Current() != last {
			t.Errorf("with %s broken: want the last settings as a whole", name)
		}
	}
}

const brokenPEM = "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"

// TestBoundedCaches puts more into each cache than it holds.
func TestBoundedCaches(t *testing.T) {
	t.Parallel()
	users := newStore(t, func() []byte { return nil }).Current().Users
	for name, one := range map[string]struct {
		cache *cache.LRUExpireCache
		most  int
	}{
		"refused certificates": {users.refused, MaxRefused},
		"certificates":         {users.verified, maxVerified},
	} {
		for i := range one.most + 10 {
			one.cache.Add(i, nil, time.Minute)
		}
		if got := len(one.cache.Keys()); got != one.most {
			t.Errorf("%s: want %d kept, got %d", name, one.most, got)
		}
	}
}

// TestVerifyCaches checks that each certificate is verified once: the result is cached for the same purpose until
// the certificate expires.
func TestVerifyCaches(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakePassiveClock(time.Now())
	signer := newCA(t, "signer")
	trusted := NewStore(signer.CertPEM, corev1client.New(nil), clk).Current()
	presented := func(ca *certs.CA, begins time.Time) []*x509.Certificate {
		pair := must.Get(ca.IssueClient(certs.ClientIdentity{Username: "jane"}, begins, time.Hour))(t)
		return must.Get(cert.ParseCertsPEM(pair.CertPEM))(t)
	}
	early := presented(signer, clk.Now().Add(10*time.Minute))
	clk.SetTime(early[0].NotBefore.Add(-30 * time.Second)) // certificates are valid slightly before they are requested
	good := presented(signer, clk.Now())
	other := presented(newCA(t, "other"), clk.Now())
	known := func(by *Verifier, certificates []*x509.Certificate) string {
		switch user, ok, err := by.Known(certificates); {
		case !ok:
			return "unknown"
		case err != nil:
			return "refused"
		default:
			return user.User.GetName()
		}
	}
	for _, step := range []struct {
		name     string
		by       *Verifier
		client   []*x509.Certificate
		passes   time.Duration
		verifies bool
		want     string
	}{
		{"nothing presented", trusted.Users, nil, 0, false, "unknown"},
		{"not seen before", trusted.Users, good, 0, false, "unknown"},
		{"a user", trusted.Users, good, 0, true, "jane"},
		{"that user as a front proxy", trusted.FrontProxies, good, 0, false, "unknown"},
		{"refused as a front proxy", trusted.FrontProxies, good, 0, true, "refused"},
		{"a certificate of another CA", trusted.Users, other, 0, true, "refused"},
		{"one that is not valid yet", trusted.Users, early, 0, true, "refused"},
		{"which becomes valid", trusted.Users, early, 31 * time.Second, false, "unknown"},
		{"and is good", trusted.Users, early, 0, true, "jane"},
		{"the other one, still", trusted.Users, other, 0, false, "refused"},
		{"and later", trusted.Users, other, RefusedFor, false, "unknown"},
		{"one that has expired", trusted.Users, good, time.Hour, false, "refused"},
	} {
		clk.SetTime(clk.Now().Add(step.passes))
		if step.verifies {
			_, _ = step.by.Verify(step.client)
		}
		if got := known(step.by, step.client); got != step.want {
			t.Errorf("%s: want %q, got %q", step.name, step.want, got)
		}
	}
}

// TestRefusalsHoldNoCertificates checks that the cache keeps only a short text about a refused certificate.
func TestRefusalsHoldNoCertificates(t *testing.T) {
	t.Parallel()
	users := newStore(t, func() []byte { return nil }).Current().Users
	long := &x509.Certificate{SerialNumber: new(big.Int).Lsh(big.NewInt(1), 8<<10), NotAfter: time.Now().Add(time.Hour)}
	_, err := users.Verify([]*x509.Certificate{long})
	if err == nil || errors.Unwrap(err) != nil || len(err.Error()) > 1024 {
		t.Errorf("want a short text, got %v", err)
	}
}
