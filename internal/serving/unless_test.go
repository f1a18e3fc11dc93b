package serving

import (
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func sansOf(t *testing.T, names ...string) certs.SANs {
	t.Helper()
	var all certs.SANs
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			all.IPAddresses = append(all.IPAddresses, ip)
		} else {
			all.DNSNames = append(all.DNSNames, name)
		}
	}
	return all
}

// served returns a certificate that could be served instead, issued at this time.
func served(t *testing.T, names certs.SANs, at time.Time) *Certificate {
	t.Helper()
	ca := must.Get(certs.NewCA("test CA", noon.Add(-100*day), 3650*day))(t)
	pair := must.Get(ca.IssueServing(names, at, 10*day))(t)
	certificate := must.Get(keyPair(pair.CertPEM, pair.KeyPEM))(t)
	return &Certificate{Certificate: certificate, Source: SourceGenerated}
}

// TestUnless evaluates a certificate for proxy.example.com, while clients use another name, against alternatives.
func TestUnless(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	wrong := issue(t, ca, noon, 90*day)
	for _, test := range []struct {
		name         string
		verification configv1alpha1.TLSVerification
		instead      []string      // names of the alternative; nil if there is none
		issued       time.Duration // when the alternative was issued, relative to now
		refused      bool
	}{
		{"refuses it for one that covers all names", "", []string{"clients.example.com", "10.0.0.1"}, 0, true},
		{"serves it where there is nothing else", "", nil, 0, false},
		{"serves it where the other is no better", "", []string{"clients.example.com"}, 0, false},
		{"serves it where the other has expired", "", []string{"clients.example.com", "10.0.0.1"}, -20 * day, false},
		{"serves it where the other is not valid yet", "", []string{"clients.example.com", "10.0.0.1"}, day, false},
		{"serves it when told to", "Warn", []string{"clients.example.com", "10.0.0.1"}, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var instead *Certificate
			if test.instead != nil {
				instead = served(t, sansOf(t, test.instead...), noon.Add(test.issued))
			}
			got := Evaluate(External(ExternalInput{
				Secret: &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
					"tls.crt": wrong.CertPEM, "tls.key": wrong.KeyPEM, "ca.crt": ca.CertPEM(),
				}},
				Spec:     configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "cert", Verification: test.verification},
				Endpoint: "clients.example.com:8443",
				Names: []certs.Name{
					{Value: "10.0.0.1", Source: "Service"}, {Value: "lb.example.com", Source: "Service", Advisory: true},
				},
				Now: noon,
			}), Situation{InService: instead, Revisions: func() (History, bool) { return History{}, true }, Now: noon})
			if refused := got.Refusal != nil; refused != test.refused || refused == (got.Certificate != nil) {
				t.Fatalf("refused: %v, to be served: %v", got.Refusal, got.Certificate != nil)
			}
			if !test.refused {
				if len(got.Warnings) < 2 {
					t.Errorf("it does not warn: %v", got.Warnings)
				}
				return
			}
			if code := got.Refusal.Finding.Code; code != certs.NameNotCovered || !strings.Contains(got.Refusal.Error(), "Warn") {
				t.Errorf("refused as %s", got.Refusal)
			}
			told := len(got.Further)
			for _, warning := range got.Warnings {
				if warning.Message == got.Refusal.Finding.Message {
					t.Errorf("told twice: %s", warning.Message)
				}
			}
			if told != 1 {
				t.Errorf("the other name is not told: %v", got.Further)
			}
		})
	}
}

func TestUnlessLeavesARefusal(t *testing.T) {
	t.Parallel()
	missing := External(ExternalInput{Now: noon})
	if got := Evaluate(
		missing,
		Situation{InService: served(t, sansOf(t, "a.example.com"), noon), Now: noon},
	); got.Refusal != missing.Refusal {
		t.Errorf("got %v", got.Refusal)
	}
}
