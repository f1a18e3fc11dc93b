package credentialissuer

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/servingcert"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TestOldClientsProblem looks at a new certificate with the eyes of clients that have the CA bundle from before.
func TestOldClientsProblem(t *testing.T) {
	t.Parallel()
	now := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	newCA := func(name string) *certs.CA {
		t.Helper()
		ca, err := certs.NewCA(name, now, 1000*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	one, two := newCA("CA one"), newCA("CA two")
	serving := func(ca *certs.CA, bundle []byte) *servingcert.ServingCertificate {
		t.Helper()
		pair, err := ca.IssueServing(certs.SANs{DNSNames: []string{"proxy.example.com"}}, now, 100*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return &servingcert.ServingCertificate{Certificate: certificate, Bundle: bundle}
	}
	both := certs.UnionBundle(one.CertPEM(), two.CertPEM())
	for _, test := range []struct {
		name    string
		before  []byte
		serving *servingcert.ServingCertificate
		at      time.Time
		want    string
	}{
		{name: "is silent about a renewal by the same CA", before: one.CertPEM(), serving: serving(one, one.CertPEM())},
		{
			name: "names both CAs after a renewal by another one", before: one.CertPEM(), serving: serving(two, two.CertPEM()),
			want: `they trust "CN=CA one", and the certificate that is served now is issued by "CN=CA two"`,
		},
		{
			name: "tells it where the new one needs no CA bundle", before: one.CertPEM(), serving: serving(two, nil),
			want: `issued by "CN=CA two"`,
		},
		{
			name:   "tells it where both CAs are advertised only now",
			before: one.CertPEM(), serving: serving(two, both), want: `they trust "CN=CA one"`,
		},
		{name: "is silent where both were advertised in time", before: both, serving: serving(two, two.CertPEM())},
		{name: "does not know system roots", serving: serving(two, two.CertPEM())},
		{name: "does not know a bundle that is none", before: []byte("x"), serving: serving(two, two.CertPEM())},
		{
			name:   "leaves it to others that a certificate has expired",
			before: one.CertPEM(), serving: serving(two, two.CertPEM()), at: now.Add(200 * time.Hour),
		},
		{name: "is silent where nothing is served", before: one.CertPEM()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			at := test.at
			if at.IsZero() {
				at = now
			}
			got := oldClientsProblem(test.before, test.serving, at)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
