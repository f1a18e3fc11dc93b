package trustbundle_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

func ca(t *testing.T, name string, from time.Time, life time.Duration) *certs.CA {
	t.Helper()
	made, err := certs.NewCA(name, from, life)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func serving(t *testing.T, of *certs.CA) []byte {
	t.Helper()
	pair, err := of.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return pair.CertPEM
}

// TestWhatIsTakenOver has an endpoint that publishes its old CA together with another certificate.
func TestWhatIsTakenOver(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old := ca(t, "old", now.Add(-time.Hour), 24*time.Hour)
	next := ca(t, "next\x1b[2J\nforged", now, 24*time.Hour)
	expired := ca(t, "expired", now.Add(-48*time.Hour), 24*time.Hour)
	leaf := serving(t, old)
	block, _ := pem.Decode(leaf)
	chain, err := x509.ParseCertificates(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	print := func(pem []byte) string { return certs.Fingerprint(trustbundle.Added(nil, pem)[0].Raw) }
	for _, test := range []struct {
		name      string
		own, with []byte // of the entry, and published together with the old CA
		host      string
		refusal   string
	}{
		{name: "another CA", own: old.CertPEM(), with: next.CertPEM()},
		{name: "another name", own: old.CertPEM(), with: next.CertPEM(), host: "b.example.com", refusal: "not b.example.com"},
		{name: "no trust", own: next.CertPEM(), with: next.CertPEM(), refusal: "its own CA bundle does not verify"},
		{name: "an expired CA", own: old.CertPEM(), with: expired.CertPEM(), refusal: print(expired.CertPEM()) + "), which expired"},
		{
			name: "an expired CA that it has", own: append(old.CertPEM(), expired.CertPEM()...),
			with: append(next.CertPEM(), expired.CertPEM()...),
		},
		{name: "no CA", own: old.CertPEM(), with: leaf, refusal: "which is not the certificate of a CA"},
	} {
		host := test.host
		if host == "" {
			host = "proxy.example.com"
		}
		bundle := &trustbundle.Received{
			Policy: trustbundle.Policy{Now: time.Now}, Chain: chain, PEM: append(bytes.Clone(old.CertPEM()), test.with...),
		}
		err := bundle.Accepts(kubeconfig.Trust{Host: host, CABundle: test.own})
		if test.refusal == "" && err != nil ||
			test.refusal != "" && (err == nil || !strings.Contains(err.Error(), test.refusal)) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	added := trustbundle.Names(trustbundle.Added(old.CertPEM(), append(bytes.Clone(old.CertPEM()), next.CertPEM()...)))
	if strings.ContainsAny(added, "\x1b\n") || !strings.Contains(added, print(next.CertPEM())) {
		t.Errorf("it is called %q", added)
	}
}

func TestExpected(t *testing.T) {
	t.Parallel()
	one := ca(t, "one", time.Now(), time.Hour).CertPEM()
	print := certs.Fingerprint(trustbundle.Added(nil, one)[0].Raw)
	for _, test := range []struct {
		given   string
		wrong   bool
		refuses bool
	}{
		{given: print},
		{given: " SHA256:" + print},
		{given: "sha256:" + strings.ToUpper(print)},
		{given: strings.Repeat("0", 64), refuses: true},
		{given: "none", refuses: true},
		{given: "abc", wrong: true},
		{given: "", wrong: true},
	} {
		expected, err := trustbundle.ParseExpected([]string{test.given})
		if (err != nil) != test.wrong {
			t.Errorf("%q: %v", test.given, err)
		}
		policy := trustbundle.Policy{Expected: expected}
		if got := policy.Unexpected(one) != nil; err == nil && got != test.refuses {
			t.Errorf("%q: refused: %v", test.given, got)
		}
		if err == nil && policy.Unexpected(nil) == nil {
			t.Errorf("%q: system roots are taken", test.given)
		}
	}
}
