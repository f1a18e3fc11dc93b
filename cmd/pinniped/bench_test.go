//go:build unix

package main

import (
	"bytes"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/discovery/discoverytest"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin/oidctest"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

// BenchmarkWarmLogin compares the processor time of logins with a warm cache with that of `pinniped version`: the
// factor, which should stay below two, hardly depends on the machine.
func BenchmarkWarmLogin(b *testing.B) {
	dir := b.TempDir()
	program := filepath.Join(dir, "pinniped-measured")
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, output)
	}
	server, err := discoverytest.New(apis.DefaultGroupSuffix)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Close)
	server.Users["token"] = discoverytest.User{Name: "pinny"}
	if err := server.Put(discoverytest.Webhook(apis.DefaultGroupSuffix, "local")); err != nil {
		b.Fatal(err)
	}
	issuer, err := oidctest.New()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(issuer.Close)
	issuer.Supervisor = true
	server.Login = func(token string) (discoverytest.User, bool) {
		return discoverytest.User{Name: "ann"}, issuer.Accepts(token, oidctest.ClientID)
	}
	concierge := []string{
		"--enable-concierge", "--concierge-authenticator-type=webhook", "--concierge-authenticator-name=local",
		"--concierge-endpoint=" + server.URL, "--concierge-ca-bundle-data=" + server.CAData(),
	}
	logins := map[string][]string{
		"static": append([]string{"login", "static", "--token=token"}, concierge...),
		"oidc": append([]string{
			"login",
			"oidc",
			"--issuer=" + issuer.URL,
			"--ca-bundle-data=" + base64.StdEncoding.EncodeToString(issuer.CA.CertPEM()),
			"--upstream-identity-provider-flow=cli_password",
		}, concierge...),
	}
	run := func(b *testing.B, args ...string) time.Duration {
		b.Helper()
		command := exec.CommandContext(b.Context(), program, args...)
		command.Env = []string{"HOME=" + dir, "PINNIPED_USERNAME=ann", "PINNIPED_PASSWORD=" + issuer.Password}
		var stderr bytes.Buffer
		command.Stderr = &stderr
		if err := command.Run(); err != nil {
			b.Fatalf("%v\n%s", err, &stderr)
		}
		return command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	}
	for name, args := range logins {
		b.Run(name, func(b *testing.B) {
			run(b, args...) // warms the cache
			before := server.Exchanges()
			var version, login time.Duration
			for range b.N {
				version += run(b, "version")
				login += run(b, args...)
			}
			if server.Exchanges() != before {
				b.Error("the cache is not used")
			}
			b.ReportMetric(float64(login)/float64(version), "×version")
		})
	}
}
