package issuedcert

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	day      = 24 * time.Hour
	testLife = 30 * day
)

// Keys of the Secret in the tests, and the common name of its CA.
const (
	caName               = "test CA"
	keyCACertificate     = "caCertificate"
	keyCAKey             = "caCertificatePrivateKey"
	keyCertificate       = "tlsCertificateChain"
	keyPrivateKey        = "tlsPrivateKey"
	keyNextCACertificate = "nextCACertificate"
	keyNextCAKey         = "nextCACertificatePrivateKey"
	keyPreviousCAs       = "previousCACertificates"
)

var (
	testNow   = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testNames = []string{"api.ns.svc", "api.ns.svc.cluster.local"}
)

// announcing is a policy whose CA is renewed with an announcement.
func announcing() Policy {
	return Policy{
		Name: "serving certificate",
		CA: &CAPolicy{
			CommonName: caName,
			Life:       4 * testLife,
			Keys:       Keys{keyCACertificate, keyCAKey},
			Succession: &Succession{
				Previous:     keyPreviousCAs,
				Announcement: 5 * time.Minute,
				Next:         Keys{keyNextCACertificate, keyNextCAKey},
			},
		},
		Certificate: &CertificatePolicy{
			Names: certs.SANs{DNSNames: testNames}, MoreNames: true, Life: testLife, Keys: Keys{keyCertificate, keyPrivateKey},
		},
	}
}

// read inspects a Secret with this content; nil data means that it does not exist.
func read(data map[string][]byte, now time.Time) *State {
	if len(data) == 0 {
		return Inspect(announcing(), nil, now)
	}
	return Inspect(announcing(), &corev1.Secret{Data: data}, now)
}

// settle repairs at a fixed time until there is no Verdict, and returns the data and the reasons.
func settle(t *testing.T, data map[string][]byte, now time.Time) (map[string][]byte, []string) {
	t.Helper()
	var reasons []string
	for range 5 {
		s := read(data, now)
		verdict := s.Verdict()
		if verdict == nil {
			return data, reasons
		}
		if verdict.Message == "" {
			t.Error("the verdict says nothing")
		}
		reasons = append(reasons, string(verdict.Part)+" "+string(verdict.Reason))
		next := must.Get(s.Repair(verdict, nil))(t)
		data = next.Data()
	}
	t.Fatalf("it does not come to rest: %v", reasons)
	return nil, nil
}

func fresh(t *testing.T) map[string][]byte {
	t.Helper()
	data, _ := settle(t, nil, testNow)
	return data
}

func with(data map[string][]byte, changes map[string][]byte) map[string][]byte {
	data = maps.Clone(data)
	maps.Copy(data, changes)
	return data
}

func servedBy(t *testing.T, names []string, now time.Time) map[string][]byte {
	t.Helper()
	ca := must.Get(certs.NewCA(caName, now, testLife))(t)
	pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: names}, now, testLife))(t)
	data := map[string][]byte{keyCertificate: pair.CertPEM, keyPrivateKey: pair.KeyPEM}
	must.Do(t, putCA(data, Keys{keyCACertificate, keyCAKey}, ca))
	return data
}

func TestReasons(t *testing.T) {
	t.Parallel()
	good, other := fresh(t), fresh(t)
	for _, test := range []struct {
		name string
		data map[string][]byte
		at   time.Duration
		want []string
	}{
		{"leaves a good one alone", good, 0, nil},
		{"leaves it alone until two thirds of its life are over", good, 19 * day, nil},
		{"renews it then", good, 21 * day, []string{"certificate Expiring"}},
		{"replaces an expired one", good, 31 * day, []string{"certificate Expired"}},
		{
			"announces a CA when two thirds of its life are over", good, 85 * day,
			[]string{"certificate Expired", "CA Expiring"},
		},
		{"replaces a CA at once when it is about to end", good, 120*day - time.Minute, []string{"CA Expired"}},
		{"replaces a CA that is over", good, 200 * day, []string{"CA Expired"}},
		{"makes the first one", nil, 0, []string{"CA Missing"}},
		{
			"repairs an unreadable certificate", with(good, map[string][]byte{keyCertificate: []byte("x")}), 0,
			[]string{"certificate Damaged"},
		},
		{
			"repairs a key of another certificate", with(good, map[string][]byte{keyPrivateKey: other[keyPrivateKey]}), 0,
			[]string{"certificate Damaged"},
		},
		{
			"repairs a certificate of another CA",
			with(good, map[string][]byte{keyCertificate: other[keyCertificate], keyPrivateKey: other[keyPrivateKey]}), 0,
			[]string{"certificate NotVerified"},
		},
		{"repairs another name", servedBy(t, testNames[:1], testNow), 0, []string{"certificate SANMismatch"}},
		{"repairs a lost CA key", with(good, map[string][]byte{keyCAKey: nil}), 0, []string{"CA Damaged"}},
		{
			"repairs a CA key of another CA", with(good, map[string][]byte{keyCAKey: other[keyCAKey]}), 0,
			[]string{"CA Damaged"},
		},
		{"takes over a Secret of Pinniped's", servedBy(t, testNames, testNow), 0, nil},
		{
			"passes over a broken CA to come",
			with(good, map[string][]byte{keyNextCACertificate: []byte("x"), keyNextCAKey: []byte("y")}), 0, nil,
		},
		{"is not fooled by a clock that was early", fresh(t), -time.Hour, []string{"CA NotYetValid"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			data, reasons := settle(t, test.data, testNow.Add(test.at))
			if diff := cmp.Diff(test.want, reasons); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			s := read(data, testNow.Add(test.at))
			if err := s.verify(); err != nil {
				t.Errorf("the result is not accepted: %v", err)
			}
			if s.CA.Certificate().Subject.CommonName != caName {
				t.Errorf("the CA is called %q", s.CA.Certificate().Subject)
			}
		})
	}
}

// TestLife simulates two years in steps of eleven hours. The bundles of the steps before and after always verify the
// certificate in service.
func TestLife(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	var switches int
	for at := time.Duration(0); at < 730*day; at += 11 * time.Hour {
		now := testNow.Add(at)
		before := read(data, now)
		after, reasons := settle(t, data, now)
		if slices.ContainsFunc(reasons, func(reason string) bool {
			return !slices.Contains([]string{"certificate Expiring", "CA Expiring", "CA Announced"}, reason)
		}) {
			t.Fatalf("after %s it came to %v", at, reasons)
		}
		if slices.Contains(reasons, "CA Announced") {
			switches++
		}
		next := read(after, now)
		for name, pair := range map[string]struct{ bundle, cert []byte }{
			"old bundle, old certificate": {before.Bundle(), before.Data()[keyCertificate]},
			"old bundle, new certificate": {before.Bundle(), next.Data()[keyCertificate]},
			"new bundle, old certificate": {next.Bundle(), before.Data()[keyCertificate]},
			"new bundle, new certificate": {next.Bundle(), next.Data()[keyCertificate]},
		} {
			if err := verifies(pair.bundle, pair.cert, now); err != nil {
				t.Fatalf("after %s (%v), %s: %v", at, reasons, name, err)
			}
		}
		if count := bytes.Count(next.Bundle(), []byte("BEGIN")); count > 3 {
			t.Fatalf("after %s the bundle has %d certificates", at, count)
		}
		data = after
	}
	if switches < 6 {
		t.Errorf("want a new CA every 80 days, got %d in two years", switches)
	}
}

func verifies(bundle, cert []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	block, _ := pem.Decode(cert)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: testNames[0]})
	return err
}

func TestBundleKeepsTrustInWhatIsStillServed(t *testing.T) {
	t.Parallel()
	before := fresh(t)
	after, _ := settle(t, with(before, map[string][]byte{keyCAKey: nil}), testNow)
	if bytes.Equal(before[keyCACertificate], after[keyCACertificate]) {
		t.Fatal("the CA is the same")
	}
	bundle := read(after, testNow).Bundle()
	if want := append(bytes.Clone(after[keyCACertificate]), before[keyCACertificate]...); !bytes.Equal(want, bundle) {
		t.Errorf("want the new CA and the old one, got:\n%s", bundle)
	}
	if next := read(after, testNow); !next.Follows(read(before, testNow).CA) || !next.SignedByCA() ||
		!bytes.Equal(next.PreviousBundle(), before[keyCACertificate]) {
		t.Error("the new CA does not follow the old one")
	}
	later := read(after, testNow.Add(130*day)).Bundle()
	if bytes.Contains(later, before[keyCACertificate]) {
		t.Error("an expired CA is still trusted")
	}
}
