package iptls_test

import (
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// accepts parses a command line with the real tree of commands, as far as no file and no cluster is needed.
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

// TestNextCommands shows that what `ip-tls status` says to type is a command of ours or kubectl's, for every code, and
// that ours take these flags and arguments.
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
