package check

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// TestExpiredIsReportedOnce checks, and sets, an expired certificate of an expired CA, while another CA is published.
func TestExpiredIsReportedOnce(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	w := iptlstest.New(t)
	ca, err := certs.NewCA("Short CA", time.Now().Add(-30*day), 5*day)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueServing(certs.SANs{
		DNSNames: []string{"proxy.example.com"}, IPAddresses: iptlstest.Loopback().IPAddresses,
	}, time.Now().Add(-30*day), 10*day)
	if err != nil {
		t.Fatal(err)
	}
	w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	w.Cluster.TLSSecret.Data["ca.crt"] = ca.CertPEM()
	checked, _ := runCheck(t, w, func(o *Options) { o.Certificate.Secret, o.Session.Output = "proxy-tls", "text" })
	checked.Check(t, 3, "Expired: the serving certificate expired on ")
	set := runSet(context.Background(), w, "proxy-tls")
	set.Check(t, 3, "Expired: the serving certificate expired on ")
	for name, r := range map[string]*iptlstest.Run{"check": checked, "set": set} {
		said := r.Out.String() + r.ErrOut.String()
		for _, code := range []certs.Code{certs.BundleDoesNotVerify, certs.OldClientsBreak} {
			if strings.Contains(said, "✗ "+string(code)) || strings.Contains(said, string(code)+": ") {
				t.Errorf("%s tells of %s as well:\n%s", name, code, said)
			}
		}
	}
}
