package kubeconfig_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// mergerVariable makes this test binary merge into the kubeconfig at this path until it is killed.
const mergerVariable = "KUBECONFIG_TEST_MERGER"

func TestMain(m *testing.M) {
	if path := os.Getenv(mergerVariable); path != "" {
		mergeForever(path)
	}
	os.Exit(m.Run())
}

func mergeForever(path string) {
	for i := 0; ; i++ {
		source := &kubeconfig.Source{
			ContextName: "dev", ClusterName: "dev", UserName: "dev",
			Cluster: &clientcmdapi.Cluster{Server: "https://dev.example.com"},
		}
		made, err := kubeconfig.Build(kubeconfig.Input{
			Source: source, Exec: kubeconfig.Exec{Command: "pinniped", Static: &kubeconfig.Static{TokenEnv: fmt.Sprint("T", i)}},
		})
		if err == nil {
			_, err = kubeconfig.MergeFile(context.Background(), path, made, false)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// TestMergeIsKilled kills a process at a random time during a merge: the kubeconfig is valid and keeps its other
// entries.
func TestMergeIsKilled(t *testing.T) {
	t.Parallel()
	const head, tail = "# Ann's\nkind: Config\n", "users: []\n# the end\n"
	path := filepath.Join(t.TempDir(), "config")
	must.Do(t, os.WriteFile(path, []byte(head+tail), 0o600))
	wrote := 0
	for i := range 25 {
		before := must.Get(os.ReadFile(path))(t)
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), mergerVariable+"="+path)
		var stderr strings.Builder
		command.Stderr = &stderr
		must.Do(t, command.Start())
		time.Sleep(time.Duration(20+7*i) * time.Millisecond)
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
		after := must.Get(os.ReadFile(path))(t)
		if !strings.HasPrefix(string(after), head) || !strings.Contains(string(after), "# the end\n") {
			t.Fatalf("kill %d: the file has lost something:\n%s", i, after)
		}
		if _, err := kubeconfig.Load(path); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: %s", i, &stderr)
		}
		if string(before) != string(after) {
			wrote++
		}
		_ = os.Remove(path + ".lock") // as the error about a stale lock says
	}
	if wrote == 0 {
		t.Error("no process has written anything: nothing was tried")
	}
}
