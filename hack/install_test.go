// Package hack tests the scripts beside it.
package hack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

// TestInstall runs what `make install` runs, twice: an installation, and a new version beside a configuration that an
// administrator has changed.
func TestInstall(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	cluster, err := devcluster.Start(t.Context(), devcluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() })
	kubectl, err := cluster.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	run := func(program string, arguments ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), program, arguments...)
		command.Env = append(os.Environ(), "KUBECONFIG="+cluster.AdminKubeconfig(), "TIMEOUT=0",
			"PATH="+filepath.Dir(kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", program, arguments, err, out)
		}
		return string(out)
	}
	installed := func() string {
		return run(kubectl, "get", "deployment", "--namespace=pinniped-concierge", "pinniped-concierge",
			"--output=jsonpath={.spec.template.spec.containers[0].image}")
	}

	first := "registry.example.com:5000/team/pinniped-agent@sha256:" + strings.Repeat("1", 64)
	run("./install.sh", first)
	if got := installed(); got != first {
		t.Errorf("got image %q, want %q", got, first)
	}
	run(kubectl, "patch", "credentialissuers.config.concierge.pinniped.dev", "pinniped-concierge-config", "--type=merge",
		`--patch={"spec": {"impersonationProxy": {"externalEndpoint": "proxy.example.com"}}}`)
	for _, next := range []string{
		"registry.example.com:5000/team/pinniped-agent@sha256:" + strings.Repeat("2", 64),
		"registry.example.com:5000/team/pinniped-agent:v2.0.0",
	} {
		run("./install.sh", next)
		if got := installed(); got != next {
			t.Errorf("got image %q, want %q", got, next)
		}
	}
	endpoint := run(kubectl, "get", "credentialissuers.config.concierge.pinniped.dev", "pinniped-concierge-config",
		"--output=jsonpath={.spec.impersonationProxy.externalEndpoint}")
	if endpoint != "proxy.example.com" {
		t.Errorf("got externalEndpoint %q: a new version changed the configuration", endpoint)
	}
}

func TestInstallNeedsAnImage(t *testing.T) {
	t.Parallel()
	for _, arguments := range [][]string{nil, {""}, {"a", "b"}} {
		out, err := exec.CommandContext(t.Context(), "./install.sh", arguments...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "make install REGISTRY=") {
			t.Errorf("%s: got %v and %q, want an error that names the way out", fmt.Sprint(arguments), err, out)
		}
	}
}
