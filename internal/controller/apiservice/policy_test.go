package apiservice

import (
	"crypto/x509"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/issuedcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	day      = 24 * time.Hour
	testLife = 30 * day
)

var (
	testNow   = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testNames = []string{"api.ns.svc", "api.ns.svc.cluster.local"}
)

// fresh returns the content of a Secret that was issued at testNow.
func fresh(t *testing.T) map[string][]byte {
	t.Helper()
	missing := issuedcert.Inspect(policy(testNames, testLife), nil, testNow)
	return must.Get(missing.Repair(missing.Verdict(), nil))(t).Data()
}

func inspect(data map[string][]byte, now time.Time) *issuedcert.State {
	return issuedcert.Inspect(policy(testNames, testLife), &corev1.Secret{Data: data}, now)
}

func verifies(bundle, cert []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err := mustParse(cert).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: testNames[0]})
	return err
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	if name := mustParse(data[keyCACertificate]).Subject.CommonName; name != "Pinniped Aggregation CA" {
		t.Errorf("the CA is called %q", name)
	}
	for at, want := range map[time.Duration]issuedcert.Reason{
		0: "", 19 * day: "", 21 * day: issuedcert.Expiring, 31 * day: issuedcert.Expired, 120*day - 14*time.Minute: issuedcert.Expired,
	} {
		var got issuedcert.Reason
		if verdict := inspect(data, testNow.Add(at)).Verdict(); verdict != nil {
			got = verdict.Reason
		}
		if got != want {
			t.Errorf("after %s: want reason %q, got %q", at, want, got)
		}
	}
}

// TestPinnipedsSecret shows that a Secret of upstream Pinniped is reused with its CA, even if its certificate has more
// names.
func TestPinnipedsSecret(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("Pinniped Aggregation CA", testNow, 365*day))(t)
	key := must.Get(ca.KeyPEM())(t)
	names := certs.SANs{DNSNames: append([]string{"more.example.com"}, testNames...)}
	pair := must.Get(ca.IssueServing(names, testNow, 365*day))(t)
	state := inspect(map[string][]byte{
		"caCertificate": ca.CertPEM(), "caCertificatePrivateKey": key,
		"tlsCertificateChain": pair.CertPEM, "tlsPrivateKey": pair.KeyPEM,
	}, testNow.Add(day))
	if verdict := state.Verdict(); verdict != nil || state.Certificate == nil {
		t.Errorf("it is not taken over: %+v", verdict)
	}
}

func TestRequeueAfter(t *testing.T) {
	t.Parallel()
	data := fresh(t)
	for at, want := range map[time.Duration]time.Duration{
		0: time.Hour, 20*day - 10*time.Minute: 8*time.Minute + 20*time.Second,
	} {
		now := testNow.Add(at)
		if got := requeueAfter(inspect(data, now), now); got != want {
			t.Errorf("after %s: want %s, got %s", at, want, got)
		}
	}
}
