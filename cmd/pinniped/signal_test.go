//go:build unix

package main

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestInterrupt interrupts the command while it waits: it ends at once with 130, and writes nothing.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	program := must.Get(exec.LookPath("pinniped"))(t) // testscript puts this test binary on the PATH as pinniped
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			server := must.Get(discoverytest.New(apis.DefaultGroupSuffix))(t)
			t.Cleanup(server.Close)
			must.Do(t, server.Put(discoverytest.Issuer(apis.DefaultGroupSuffix, "issuer", discoverytest.FailedStrategy(
				configv1alpha1.StrategyImpersonationProxy,
				configv1alpha1.ReasonPending,
				"waiting for load balancer",
			))))
			dir := t.TempDir()
			admin, output := filepath.Join(dir, "admin.yaml"), filepath.Join(dir, "user.yaml")
			must.Do(t, clientcmd.WriteToFile(*server.Kubeconfig(), admin))
			command := exec.CommandContext(t.Context(), program, "get", "kubeconfig", "--kubeconfig", admin, "--static-token",
				"x", "-o", output)
			command.Env = append(os.Environ(), "HOME="+dir)
			stderr := must.Get(command.StderrPipe())(t)
			must.Do(t, command.Start())
			var text strings.Builder
			lines := bufio.NewScanner(stderr)
			var sent time.Time
			for lines.Scan() {
				text.WriteString(lines.Text() + "\n")
				if sent.IsZero() && strings.Contains(lines.Text(), "waiting") {
					sent = time.Now()
					must.Do(t, command.Process.Signal(signal))
				}
			}
			_ = command.Wait() // the exit code is checked below
			if code := command.ProcessState.ExitCode(); code != 130 ||
				!strings.HasSuffix(text.String(), "error: interrupted\n") {
				t.Errorf("want code 130 and \"error: interrupted\", got %d:\n%s", code, &text)
			}
			if took := time.Since(sent); took > 5*time.Second {
				t.Errorf("want an end at once, it took %s", took)
			}
			if _, err := os.Stat(output); !os.IsNotExist(err) {
				t.Errorf("want no file, got %v", err)
			}
		})
	}
}

// TestInterruptedChanges interrupts `ip-tls set` at random moments. Each run sets a certificate from files together
// with its endpoint. After an interrupt the cluster has both or neither. The last run is not interrupted, and
// completes.
func TestInterruptedChanges(t *testing.T) {
	t.Parallel()
	program := must.Get(exec.LookPath("pinniped"))(t)
	server := must.Get(discoverytest.New(apis.DefaultGroupSuffix))(t)
	t.Cleanup(server.Close)
	// No agent reports, so no change takes effect.
	issuer := discoverytest.Issuer(apis.DefaultGroupSuffix, "issuer")
	issuer.Spec.ImpersonationProxy.Service.Type = "None"
	issuer.Spec.ImpersonationProxy.ExternalEndpoint = "p0.example.com"
	must.Do(t, server.Put(issuer))
	server.SlowDown(100 * time.Millisecond)
	client := must.Get(discovery.Connect(server.Config(), apis.DefaultGroupSuffix))(t)
	ca := must.Get(certs.NewCA("Company CA", time.Now(), 365*24*time.Hour))(t)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, content, 0o600))
		return path
	}
	admin, bundle := filepath.Join(dir, "admin.yaml"), write("ca.pem", ca.CertPEM())
	must.Do(t, clientcmd.WriteToFile(*server.Kubeconfig(), admin))

	runs := 40
	if testing.Short() {
		runs = 10
	}
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	current, pairs, seen := 0, []*certs.KeyPair{nil}, map[bool]int{}
	for i := 1; i <= runs; i++ {
		pair := must.Get(ca.IssueServing(certs.SANs{DNSNames: []string{"*.example.com"}}, time.Now(), 90*24*time.Hour))(t)
		pairs = append(pairs, pair)
		number := strconv.Itoa(i)
		command := exec.CommandContext(t.Context(), program, "ip-tls", "set", "--kubeconfig", admin, "--secret", "proxy-tls",
			"--timeout", "5m", "--cert", write("cert"+number, pair.CertPEM), "--key", write("key"+number, pair.KeyPEM),
			"--ca-bundle", bundle, "--external-endpoint", "p"+number+".example.com")
		command.Env = append(os.Environ(), "HOME="+dir)
		var stderr bytes.Buffer
		command.Stderr = &stderr
		must.Do(t, command.Start())
		within := 450 * time.Millisecond
		if i%2 == 0 {
			within = 80 * time.Millisecond // mostly before the first write
		}
		moment := time.Duration(random.Int64N(int64(within)))
		time.Sleep(moment) // interrupt at this moment
		must.Do(t, command.Process.Signal([]os.Signal{syscall.SIGINT, syscall.SIGTERM}[i/2%2]))
		_ = command.Wait() // the exit code is checked below
		code := command.ProcessState.ExitCode()
		killed := code == -1 // before the program handled signals
		if code != 130 && !killed {
			t.Errorf("run %d, interrupted after %s: exit code %d:\n%s", i, moment, code, &stderr)
		}
		now := must.Get(client.CredentialIssuer(t.Context(), "issuer"))(t)
		changed := now.Spec.ImpersonationProxy.ExternalEndpoint == "p"+number+".example.com"
		if changed {
			current = i
		}
		seen[changed]++
		if want := "p" + strconv.Itoa(current) + ".example.com"; now.Spec.ImpersonationProxy.ExternalEndpoint != want {
			t.Fatalf("run %d, interrupted after %s: the endpoint is %q, want %q", i, moment,
				now.Spec.ImpersonationProxy.ExternalEndpoint, want)
		}
		secret, err := client.Secret(t.Context(), "pinniped-concierge", "proxy-tls")
		if current == 0 {
			if err == nil {
				t.Fatalf("run %d, interrupted after %s: a Secret is there, the CredentialIssuer is as it was:\n%s", i, moment,
					&stderr)
			}
			continue
		}
		must.Do(t, err)
		if !bytes.Equal(secret.Data["tls.crt"], pairs[current].CertPEM) ||
			!bytes.Equal(secret.Data["tls.key"], pairs[current].KeyPEM) {
			t.Fatalf("run %d, interrupted after %s: the Secret is not of the configuration in place:\n%s", i, moment, &stderr)
		}
	}
	t.Logf("interrupted before the change %d times, after it %d times", seen[false], seen[true])
}
