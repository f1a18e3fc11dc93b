package apiservice

import (
	"bytes"
	"crypto/x509"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	day      = 24 * time.Hour
	testLife = 30 * day
)

var (
	testNow   = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testNames = []string{"api.ns.svc", "api.ns.svc.cluster.local"}
)

// settle carries out verdicts at one instant until there are none, and returns the data and the reasons.
func settle(t *testing.T, data map[string][]byte, now time.Time) (map[string][]byte, []string) {
	t.Helper()
	var reasons []string
	for range 5 {
		s := read(data, testNames, now)
		verdict := decide(s).verdict
		if verdict == nil {
			return data, reasons
		}
		reasons = append(reasons, verdict.Reason)
		var err error
		if data, err = carryOut(s, verdict, testLife); err != nil {
			t.Fatal(err)
		}
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
	ca, err := certs.NewCA(caName, now, testLife)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueServing(certs.SANs{DNSNames: names}, now, testLife)
	if err != nil {
		t.Fatal(err)
	}
	data := map[string][]byte{keyCertificate: pair.CertPEM, keyPrivateKey: pair.KeyPEM}
	if err := putCA(data, keyCACertificate, keyCAKey, ca); err != nil {
		t.Fatal(err)
	}
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
		{"renews it then", good, 21 * day, []string{"Expiring"}},
		{"replaces an expired one", good, 31 * day, []string{"NotVerified"}},
		{"announces a CA when two thirds of its life are over", good, 85 * day, []string{"NotVerified", "CAExpiring"}},
		{"replaces a CA at once when it is about to end", good, 120*day - time.Minute, []string{"CAUnusable"}},
		{"replaces a CA that is over", good, 200 * day, []string{"CAUnusable"}},
		{"makes the first one", nil, 0, []string{"Missing"}},
		{"repairs an unreadable certificate", with(good, map[string][]byte{keyCertificate: []byte("x")}), 0, []string{"CertificateUnusable"}},
		{"repairs a key of another certificate", with(good, map[string][]byte{keyPrivateKey: other[keyPrivateKey]}), 0, []string{"CertificateUnusable"}},
		{"repairs a certificate of another CA", with(good, map[string][]byte{keyCertificate: other[keyCertificate], keyPrivateKey: other[keyPrivateKey]}), 0, []string{"NotVerified"}},
		{"repairs another name", servedBy(t, testNames[:1], testNow), 0, []string{"SANMismatch"}},
		{"repairs a lost CA key", with(good, map[string][]byte{keyCAKey: nil}), 0, []string{"CAUnusable"}},
		{"repairs a CA key of another CA", with(good, map[string][]byte{keyCAKey: other[keyCAKey]}), 0, []string{"CAUnusable"}},
		{"takes over a Secret of Pinniped's", servedBy(t, testNames, testNow), 0, nil},
		{"passes over a broken CA to come", with(good, map[string][]byte{keyNextCACertificate: []byte("x"), keyNextCAKey: []byte("y")}), 0, nil},
		{"is not fooled by a clock that was early", fresh(t), -time.Hour, []string{"CAUnusable"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			data, reasons := settle(t, test.data, testNow.Add(test.at))
			if diff := cmp.Diff(test.want, reasons); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			s := read(data, testNames, testNow.Add(test.at))
			if err := s.verify(); err != nil {
				t.Errorf("the result is not accepted: %v", err)
			}
			if s.ca.Certificate().Subject.CommonName != "Pinniped Aggregation CA" {
				t.Errorf("the CA is called %q", s.ca.Certificate().Subject)
			}
		})
	}
}

// TestLife goes through two years in steps of eleven hours, with a watchful eye: at no time is a certificate served that the bundle of the step
// before or after it does not verify.
func TestLife(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	var switches int
	for at := time.Duration(0); at < 730*day; at += 11 * time.Hour {
		now := testNow.Add(at)
		before := decide(read(data, testNames, now))
		after, reasons := settle(t, data, now)
		if slices.Contains(reasons, "CAUnusable") || slices.Contains(reasons, "NotVerified") {
			t.Fatalf("after %s it came to %v", at, reasons)
		}
		if slices.Contains(reasons, "CAAnnounced") {
			switches++
		}
		next := decide(read(after, testNames, now))
		for name, pair := range map[string]struct{ bundle, cert []byte }{
			"old bundle, old certificate": {before.bundle, before.certPEM}, "old bundle, new certificate": {before.bundle, next.certPEM},
			"new bundle, old certificate": {next.bundle, before.certPEM}, "new bundle, new certificate": {next.bundle, next.certPEM},
		} {
			if err := verifies(pair.bundle, pair.cert, now); err != nil {
				t.Fatalf("after %s (%v), %s: %v", at, reasons, name, err)
			}
		}
		if count := bytes.Count(next.bundle, []byte("BEGIN")); count > 3 {
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
	leaf := mustParse(cert)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: testNames[0]})
	return err
}

func TestBundleKeepsTrustInWhatIsStillServed(t *testing.T) {
	t.Parallel()
	before := fresh(t)
	after, _ := settle(t, with(before, map[string][]byte{keyCAKey: nil}), testNow)
	if bytes.Equal(before[keyCACertificate], after[keyCACertificate]) {
		t.Fatal("the CA is the same")
	}
	bundle := decide(read(after, testNames, testNow)).bundle
	if want := append(bytes.Clone(after[keyCACertificate]), before[keyCACertificate]...); !bytes.Equal(want, bundle) {
		t.Errorf("want the new CA and the old one, got:\n%s", bundle)
	}
	later := decide(read(after, testNames, testNow.Add(130*day))).bundle
	if bytes.Contains(later, before[keyCACertificate]) {
		t.Error("an expired CA is still trusted")
	}
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	for at, want := range map[time.Duration]time.Duration{0: time.Hour, 20*day - 10*time.Minute: 8*time.Minute + 20*time.Second} {
		if got := decide(read(data, testNames, testNow.Add(at))).requeueAfter; got != want {
			t.Errorf("after %s: want %s, got %s", at, want, got)
		}
	}
}
