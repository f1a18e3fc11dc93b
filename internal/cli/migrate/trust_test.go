package migrate

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TestTrust checks in both directions whether clients that work now keep working.
func TestTrust(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	ca := func(name string) *certs.CA {
		made, err := certs.NewCA(name, now.Add(-400*24*time.Hour), 4000*24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	company, another := ca("Company CA"), ca("Another CA")
	issue := func(by *certs.CA, life time.Duration, names ...string) *corev1.Secret {
		pair, err := by.IssueServing(certs.SANs{DNSNames: names}, now.Add(-48*time.Hour), 48*time.Hour+life)
		if err != nil {
			t.Fatal(err)
		}
		return &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
			"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": by.CertPEM(),
		}}
	}
	const month = 30 * 24 * time.Hour
	good := issue(company, month, "proxy.example.com", "old.example.com")
	without := func(secret *corev1.Secret, key string) *corev1.Secret {
		less := secret.DeepCopy()
		delete(less.Data, key)
		return less
	}
	chain := func(secret *corev1.Secret) (told serving.Published) {
		told.Chain, _ = certs.ParseBundle(secret.Data["tls.crt"])
		told.Endpoint, told.Bundle = "https://proxy.example.com", company.CertPEM()
		return told
	}
	remembered, _ := serving.History{}.Append(chain(good), now.Add(-24*time.Hour), serving.DefaultRetention)
	remembered, _ = remembered.Used(remembered.Current().ID, "", now)
	publishes := func(secretName string) map[string]any {
		leaf := chain(good).Chain[0]
		var object map[string]any
		text := fmt.Sprintf(`{"spec": {"impersonationProxy": {"mode": "enabled", "service": {"type": "None"},
			"externalEndpoint": "proxy.example.com", "tls": {"secretName": %q}}},
			"status": {"servingCertificate": {"source": "Secret", "sha256": %q}, "strategies": [
			{"type": "ImpersonationProxy", "status": "Success", "reason": "Listening", "frontend": {
			"type": "ImpersonationProxy", "impersonationProxyInfo": {"endpoint": "https://proxy.example.com",
			"certificateAuthorityData": %q}}}]}}`,
			secretName, certs.Fingerprint(leaf.Raw), base64.StdEncoding.EncodeToString(company.CertPEM()))
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	for _, tt := range []struct {
		name   string
		secret *corev1.Secret
		of     string // name of the Secret in the spec
		back   bool
		want   result.MigrationReason // empty: nothing blocks
		says   string
	}{
		{name: "the agent serves what Pinniped serves", secret: good},
		{
			name: "the agent refuses a certificate with which others than those of the endpoint work", says: "NameNotCovered",
			secret: issue(company, month, "old.example.com"), want: result.MigrationCertificateRefused,
		},
		{
			name: "clients verified the certificate that has expired", secret: issue(company, -time.Hour, "proxy.example.com"),
			want: result.MigrationCertificateRefused, says: "Expired",
		},
		{name: "nobody works with a certificate of another CA", secret: issue(another, month, "proxy.example.com")},
		{name: "there is no Secret"},
		{name: "Pinniped serves what the agent serves", secret: good, back: true},
		{
			name: "Pinniped serves a certificate of another CA", secret: issue(another, month, "proxy.example.com"), back: true,
			want: result.MigrationClientsBroken, says: "BundleDoesNotVerify",
		},
		{
			name: "Pinniped serves a certificate that lacks a name", secret: issue(company, month, "proxy.example.com"),
			back: true, want: result.MigrationClientsBroken, says: "old.example.com",
		},
		{
			name: "Pinniped has no key", secret: without(good, "tls.key"), back: true,
			want: result.MigrationClientsBroken, says: "SwitchedOff",
		},
		{name: "the Secret is gone", back: true, want: result.MigrationClientsBroken, says: "SwitchedOff"},
		{
			name: "the Secret is of another namespace", of: "shared/proxy-tls", back: true,
			want: result.MigrationClientsBroken, says: "secrets/proxy-tls",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			program := pinnipedProgram
			if tt.back {
				program = agentProgram
			}
			s := seen(program, func(s *state) {
				s.secret, s.now, s.issuer = tt.secret, now, publishes("proxy-tls")
				if tt.of != "" {
					s.issuer = publishes(tt.of)
				}
				if tt.back {
					s.history = remembered
				}
			})
			m, err := decide(s, tt.back, newKubectl(factory.ClusterFlags{}))
			if err != nil {
				t.Fatal(err)
			}
			text := string((&Options{}).text(m))
			switch {
			case m.InTheWay != (tt.want != ""):
				t.Errorf("in the way: %v\n%s", m.InTheWay, text)
			case m.InTheWay && (m.Findings[0].Reason != tt.want || !strings.Contains(text, tt.says)):
				t.Errorf("it says, and not %s with %q:\n%s", tt.want, tt.says, text)
			}
		})
	}
}
