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

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// BenchmarkWarmLogin compares the CPU time of logins with a warm cache to that of `pinniped version` and of an empty Go
// program. The factors hardly depend on the machine; the first should be below two. It also reports the size of the
// binary, which should be below 25 MB.
func BenchmarkWarmLogin(b *testing.B) {
	dir := b.TempDir()
	program, empty := filepath.Join(dir, "pinniped-measured"), filepath.Join(dir, "empty")
	must.Do(b, os.WriteFile(empty+".go", []byte("package main\n\nfunc main() {}\n"), 0o600))
	for output, source := range map[string]string{program: ".", empty: empty + ".go"} {
		build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", output, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, output)
		}
	}
	binary := must.Get(os.Stat(program))(b)
	if binary.Size() > 25_000_000 {
		b.Errorf("the CLI has %d bytes", binary.Size())
	}
	server := must.Get(discoverytest.New(apis.DefaultGroupSuffix))(b)
	b.Cleanup(server.Close)
	server.Users["token"] = discoverytest.User{Name: "pinny"}
	must.Do(b, server.Put(discoverytest.Webhook(apis.DefaultGroupSuffix, "local")))
	issuer := must.Get(oidctest.New())(b)
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
	run := func(b *testing.B, program string, args ...string) time.Duration {
		b.Helper()
		// kubectl asks once. Repeated requests would look like rejected credentials if this record of them stayed.
		_ = os.Remove(filepath.Join(dir, ".config", "pinniped", "credentials.yaml.asked"))
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
			run(b, program, args...) // warms the cache
			before := len(server.Requests())
			var nothing, version, login time.Duration
			for range b.N {
				nothing += run(b, empty)
				version += run(b, program, "version")
				login += run(b, program, args...)
			}
			if len(server.Requests()) != before {
				b.Error("the cache is not used")
			}
			b.ReportMetric(float64(login)/float64(version), "×version")
			b.ReportMetric(float64(login)/float64(nothing), "×empty")
			b.ReportMetric(float64(binary.Size())/1e6, "MB")
		})
	}
}
