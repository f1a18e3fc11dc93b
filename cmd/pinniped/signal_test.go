//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
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
