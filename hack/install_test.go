// Package hack tests the scripts in this directory.
package hack

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

// TestInstall runs `make install` twice: an installation, and an upgrade after an administrator changed the
// configuration.
func TestInstall(t *testing.T) {
	t.Parallel()
	a := newAdministrator(t, devcluster.Options{})
	run := func(program string, arguments ...string) { t.Helper(); a.does(t, program, arguments...) }
	first := "registry.example.com:5000/team/pinniped-agent@sha256:" + strings.Repeat("1", 64)
	run("./install.sh", first)
	if got := a.image(t); got != first {
		t.Errorf("got image %q, want %q", got, first)
	}
	run(a.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", issuers)
	run(a.kubectl, "apply", "--server-side", "--filename=../bin/manifests/credentialissuer.yaml")
	run(a.kubectl, "patch", issuers, "pinniped-concierge-config", "--type=merge",
		`--patch={"spec": {"impersonationProxy": {"externalEndpoint": "proxy.example.com"}}}`)
	for _, next := range []string{
		"registry.example.com:5000/team/pinniped-agent@sha256:" + strings.Repeat("2", 64),
		"registry.example.com:5000/team/pinniped-agent:v2.0.0",
	} {
		run("./install.sh", next)
		if got := a.image(t); got != next {
			t.Errorf("got image %q, want %q", got, next)
		}
	}
	if got := a.issuer(t); !strings.Contains(got, `"externalEndpoint":"proxy.example.com"`) {
		t.Errorf("got %s: a new version changed the configuration", got)
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
