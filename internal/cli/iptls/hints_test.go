package iptls_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/delegate"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/history"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/manifest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// accepts parses a command line with the real command tree, without files and without a cluster.
func accepts(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	cmd, rest, err := cli.New(factory.New([]string{})).Find(words[1:])
	if err != nil {
		t.Errorf("%q: %v", line, err)
		return
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%q: %v", line, err)
		return
	}
	if cmd.HasSubCommands() {
		t.Errorf("%q names no command", line)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%q: %v", line, err)
	}
}

// TestNextCommands checks that the commands that `ip-tls status` suggests for each code exist, and that ours accept
// their flags and arguments.
func TestNextCommands(t *testing.T) {
	t.Parallel()
	codes := []string{
		"", "AgentNotRunning", configv1alpha1.CodeSpecInvalid, configv1alpha1.CodeServiceAddressPending,
		configv1alpha1.CodeDisabledBySpec, configv1alpha1.CodeProxyNotStarted, configv1alpha1.CodePermissionUnknown,
	}
	for _, code := range certs.Codes() {
		codes = append(codes, string(code))
	}
	for _, code := range codes {
		for _, renewer := range []*result.Renewer{nil, {Kind: result.CertManagerCertificate, Name: "proxy"}} {
			commands := status.NextCommands(code, status.Place{
				Namespace: "pinniped-concierge",
				Issuer:    "credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config",
				Secret:    "shared/proxy-tls",
				Service:   "proxy",
				Endpoint:  "proxy.example.com:443",
				Renewer:   renewer,
			})
			if len(commands) == 0 {
				t.Errorf("nothing to type for %q", code)
			}
			for _, command := range commands {
				switch {
				case strings.HasPrefix(command, "pinniped "):
					accepts(t, command)
				case !strings.HasPrefix(command, "kubectl "):
					t.Errorf("%s: what is %q?", code, command)
				}
			}
		}
	}
}

// TestHintsFix runs the first suggested command in realistic states, and checks that clients that trust the Company CA
// work afterwards.
func TestHintsFix(t *testing.T) {
	t.Parallel()
	const company = "Company CA"
	for _, tt := range []struct {
		name  string
		world func(*testing.T, *iptlstest.World, func(func(*session.Session) factory.Command))
		hint  string
		fixes bool
		fresh bool // the generated certificate was never published
	}{
		{
			name: "somebody removed spec.tls", hint: "pinniped ip-tls undo", fixes: true,
			world: func(t *testing.T, w *iptlstest.World, _ func(func(*session.Session) factory.Command)) {
				t.Helper()
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = nil
				w.Cluster.Bump()
				w.Cluster.AfterApply(w.Cluster)
			},
		},
		{
			name: "a delegation was revoked", hint: "pinniped ip-tls delegate shared/proxy-tls",
			world: func(_ *testing.T, w *iptlstest.World, _ func(func(*session.Session) factory.Command)) {
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = nil
				w.Cluster.AfterApply(w.Cluster)
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "shared/proxy-tls"}
				failed := &w.Cluster.Issuer.Status.Strategies[0]
				failed.Status, failed.Reason = configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup
				failed.Findings = []configv1alpha1.StrategyFinding{
					{Code: configv1alpha1.CodePermissionWithdrawn, Severity: configv1alpha1.FindingError, Message: "withdrawn"},
				}
			},
		},
		{
			name: "a renewal waits", fresh: true, hint: "pinniped ip-tls history",
			world: func(_ *testing.T, w *iptlstest.World, _ func(func(*session.Session) factory.Command)) {
				w.Cluster.Issuer.Status.Transition = &configv1alpha1.TransitionStatus{Phase: configv1alpha1.TransitionPrepared}
			},
		},
		{
			name: "a name was dropped", fresh: true, hint: "pinniped ip-tls manifest --issuer ClusterIssuer/NAME --secret proxy-tls",
			world: func(t *testing.T, w *iptlstest.World, _ func(func(*session.Session) factory.Command)) {
				t.Helper()
				names := iptlstest.Loopback()
				names.DNSNames = nil
				pair := iptlstest.Serving(t, w.CA, names)
				w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
				w.Cluster.AfterApply(w.Cluster)
			},
		},
		{
			name: "the certificate does not fit the CA bundle of the spec", fresh: true, fixes: true,
			hint: "pinniped ip-tls set --secret proxy-tls --cert FILE --key FILE",
			world: func(t *testing.T, w *iptlstest.World, _ func(func(*session.Session) factory.Command)) {
				t.Helper()
				next := iptlstest.NewCA(t, "Next CA")
				pair := iptlstest.Serving(t, next, iptlstest.Loopback())
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData = base64.StdEncoding.EncodeToString(w.CA.CertPEM())
				w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
				failed := &w.Cluster.Issuer.Status.Strategies[0]
				failed.Status, failed.Reason = configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup
				failed.Findings = []configv1alpha1.StrategyFinding{
					{Code: "BundleDoesNotVerify", Severity: configv1alpha1.FindingError, Message: "it does not verify"},
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.RecordSince(t, time.Now().Add(-40*24*time.Hour))
			w.Obey(t)
			obey, at := w.Cluster.AfterApply, time.Now().Add(-39*24*time.Hour)
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
				obey(c)
				w.RecordSince(t, at)
				at = at.Add(38 * 24 * time.Hour) // nearly all clients are older than the next change
			}
			w.Cluster.AfterSecret = w.Cluster.AfterApply
			run := func(command func(*session.Session) factory.Command) *iptlstest.Run {
				t.Helper()
				return sessiontest.Run(t.Context(), w, command)
			}
			run(func(s *session.Session) factory.Command { return set(s, "proxy-tls") }).Check(t, 0)
			if tt.fresh {
				w.Cluster.Revisions.Data = map[string]string{}
				w.RecordSince(t, time.Now().Add(-38*24*time.Hour))
			}
			tt.world(t, w, func(command func(*session.Session) factory.Command) { run(command).Check(t, 0) })
			look := func() result.Status {
				t.Helper()
				r := run(func(s *session.Session) factory.Command {
					s.Output = "json"
					return &status.Options{Session: s, KubeconfigsFrom: []string{t.TempDir()}}
				})
				var found result.Status
				if err := json.Unmarshal(r.Out.Bytes(), &found); err != nil {
					t.Fatalf("%v: %s", err, r.Out.String())
				}
				return found
			}
			before := look()
			if len(before.Users.Next) == 0 || !strings.HasPrefix(before.Users.Next[0], tt.hint) {
				t.Fatalf("%q is to be typed, want %q: %+v", before.Users.Next, tt.hint, before.Users)
			}
			run(func(s *session.Session) factory.Command { return commandOf(t, w, s, before.Users.Next[0]) }).Check(t, 0)
			for _, state := range look().Clients {
				if tt.fixes && strings.Contains(state.CABundle.String(), company) && state.Refused() {
					t.Errorf("after %q, still refused: %+v", before.Users.Next[0], state)
				}
			}
		})
	}
}

// commandOf returns the command of a suggested command line.
func commandOf(t *testing.T, w *iptlstest.World, s *session.Session, line string) factory.Command {
	t.Helper()
	accepts(t, line)
	words := strings.Fields(line)[2:]
	value := func(flag string) (found string) {
		for i, word := range words {
			if word == "--"+flag {
				found = words[i+1]
			}
		}
		return found
	}
	var allow []string
	if code := value("allow"); code != "" {
		allow = []string{code}
	}
	switch words[0] {
	case "set":
		o := set(s, value("secret"))
		o.Certificate.Allow = allow
		if value("cert") != "" { // FILE is a new certificate of the CA that clients trust
			pair := iptlstest.Serving(t, w.CA, iptlstest.Loopback())
			o.Cert, o.Key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
			for path, content := range map[string][]byte{o.Cert: pair.CertPEM, o.Key: pair.KeyPEM} {
				must.Do(t, os.WriteFile(path, content, 0o600))
			}
		}
		return o
	case "undo":
		return &change.UndoOptions{Session: s, Flags: flags(), Allow: allow}
	case "delegate":
		return &delegate.Options{Session: s, Grant: delegate.Grant{Secret: words[1]}, DryRun: session.DryRunNone}
	case "history":
		return &history.Options{Session: s}
	case "manifest":
		s.Output = "yaml"
		return &manifest.Options{
			Session:      s,
			For:          "cert-manager",
			Issuer:       value("issuer"),
			Secret:       value("secret"),
			KeyAlgorithm: "ecdsa",
		}
	}
	t.Fatalf("what is %q?", line)
	return nil
}
