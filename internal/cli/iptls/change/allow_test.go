package change

import (
	"net"
	"slices"
	"testing"
	"time"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestAllowIsOfferedWhereItWorks checks for all codes, with an agent that decides like the real one, that --allow leads
// to a certificate in service, and that it is not offered for what the agent refuses.
func TestAllowIsOfferedWhereItWorks(t *testing.T) {
	t.Parallel()
	issue := func(t *testing.T, w *iptlstest.World, names certs.SANs, from time.Time, lifetime time.Duration) {
		t.Helper()
		pair := must.Get(w.CA.IssueServing(names, from, lifetime))(t)
		w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	}
	worlds := map[certs.Code]func(*testing.T, *iptlstest.World){
		certs.OldClientsBreak: func(*testing.T, *iptlstest.World) {},
		certs.NameNotCovered: func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			issue(t, w, certs.SANs{IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}, time.Now(), 90*24*time.Hour)
		},
		certs.ExpiresSoon: func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			issue(t, w, iptlstest.Loopback(), time.Now().Add(-99*time.Hour), 100*time.Hour)
		},
		// Only for system roots: those of clients may differ from those of this machine.
		certs.ChainIncomplete: func(_ *testing.T, w *iptlstest.World) { delete(w.Cluster.TLSSecret.Data, "ca.crt") },
		certs.BundleDoesNotVerify: func(_ *testing.T, w *iptlstest.World) {
			delete(w.Cluster.TLSSecret.Data, "ca.crt")
			chain := slices.Concat(w.Pair.CertPEM, w.CA.CertPEM())
			w.Cluster.TLSSecret.Data["tls.crt"] = chain
		},
	}
	for _, code := range certs.Codes() {
		explained, _ := certs.Explain(code)
		if explained.Severity != certs.SeverityError {
			continue
		}
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Judge(t)
			prepare, offered := worlds[code]
			if !offered {
				runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.Allow = []string{string(code)} }).
					Check(t, 2, "this error cannot be accepted")
				return
			}
			prepare(t, w)
			allowed := []string{"OldClientsBreak"}
			runSet(t.Context(), w, func(o *SetOptions) {
				o.Certificate.Allow = slices.DeleteFunc(slices.Clone(allowed), func(c string) bool { return c == string(code) })
			}).Check(t, 3, string(code)+":", "--allow "+string(code))
			runSet(t.Context(), w, func(o *SetOptions) {
				o.Certificate.Allow = append(allowed, string(code))
			}).Check(t, 0, "configured", "presents the certificate")
		})
	}
}

// TestAllowIsNotOfferedForAPublishedBundle checks a CA bundle that does not verify the certificate, which the agent
// also refuses.
func TestAllowIsNotOfferedForAPublishedBundle(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.TLSSecret.Data["ca.crt"] = iptlstest.NewCA(t, "Other CA").CertPEM()
	r := runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.Allow = []string{"OldClientsBreak", "BundleDoesNotVerify"}
	})
	r.Check(t, 3, "BundleDoesNotVerify:")
	r.Lacks(t, "--allow BundleDoesNotVerify")
}

// TestFinalVerdictEndsTheWait checks that the wait ends when the agent refuses what the CLI accepted, unless its status
// is about an earlier configuration, or the problem may resolve itself.
func TestFinalVerdictEndsTheWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, code string
		reason     configv1alpha1.StrategyReason
		seen       int64 // how far the agent's observed generation is behind
		final      bool
	}{
		{name: "a refused certificate", code: "WeakKey", reason: configv1alpha1.ReasonErrorDuringSetup, final: true},
		{name: "a refused spec", code: "SpecInvalid", reason: configv1alpha1.ReasonErrorDuringSetup, final: true},
		{name: "a verdict on an earlier spec", code: "WeakKey", reason: configv1alpha1.ReasonErrorDuringSetup, seen: 1},
		{name: "a Secret that is not permitted yet", code: "SecretNotPermitted", reason: configv1alpha1.ReasonErrorDuringSetup},
		{name: "something that the agent tries again", code: "WriteConflict", reason: configv1alpha1.ReasonPending},
		{name: "trouble that may end", code: "SecretUnreadable", reason: configv1alpha1.ReasonErrorDuringSetup},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Cluster.Issuer.Generation = 4
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
				c.Issuer.Generation++
				c.Issuer.Status.ObservedGeneration = c.Issuer.Generation - tt.seen
				failed := iptlstest.FailedReport(tt.reason, tt.code+": so it is")
				failed.Findings = []configv1alpha1.StrategyFinding{
					{Code: tt.code, Severity: configv1alpha1.FindingError, Message: "so it is"},
				}
				c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{failed}
			}
			timeout, says := iptlstest.TooShort, "The endpoint did not present the certificate within"
			if tt.final {
				timeout, says = time.Minute, "pinniped explain "+tt.code
			}
			r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = timeout })
			r.Check(t, 5, says, "the previous configuration was restored")
			if SpecOf(w).TLS != nil {
				t.Errorf("the configuration is %+v", SpecOf(w))
			}
		})
	}
}
