//go:build unix

// Package e2e runs the whole scenario of an administrator and a user on a cluster: a certificate of a PKI is served at
// a load balancer, behind a proxy that passes TLS through, and at an external endpoint.
//
// `make test-e2e` runs it on the cluster of KUBECONFIG. Without that variable, and in every other test run, it starts
// its own control plane, so that it never uses a kubeconfig by accident.
package e2e

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// Environment variables of the test, which `make test-e2e` sets.
const (
	// kubeconfigEnv is the kubeconfig of the cluster. It is not KUBECONFIG, which may be set for something else.
	kubeconfigEnv = "E2E_KUBECONFIG"
	// imageEnv is the agent's image, from which the cluster's nodes can pull.
	imageEnv = "E2E_IMAGE"
	// installedEnv is "use" to use the installed Concierge.
	installedEnv = "E2E_INSTALLED"
	// programsEnv is a folder with pinniped. Without it, the test builds pinniped.
	programsEnv = "E2E_PROGRAMS"
)

// interrupted is done at Ctrl-C. The test then fails and cleans up; a second Ctrl-C ends it at once.
var interrupted context.Context

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	interrupted = ctx
	os.Exit(m.Run())
}

// TestEndToEnd runs the scenario on the cluster of the environment, or on its own control plane.
func TestEndToEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a real API server, and -short leaves those out")
	}
	if kubeconfig := os.Getenv(kubeconfigEnv); kubeconfig != "" {
		onCluster(t, kubeconfig)
		return
	}
	onOwnControlPlane(t)
}

// onCluster runs the scenario on an existing cluster.
func onCluster(t *testing.T, kubeconfig string) {
	t.Helper()
	a := newAdministrator(t, kubeconfig, "")
	use := os.Getenv(installedEnv) == "use"
	a.mayBegin(t, use)
	there := &cluster{image: os.Getenv(imageEnv)}
	if there.image == "" {
		t.Fatalf("refused: %s does not name the agent's image; nothing was changed", imageEnv)
	}
	if !use {
		a.install(t, there.image, "5m")
	}
	a.runScenario(t, there)
}

// onOwnControlPlane runs the scenario and checks that it leaves nothing behind. Before, one run is interrupted and one
// is refused.
func onOwnControlPlane(t *testing.T) {
	t.Helper()
	own := newControlPlane(t)
	a := newAdministrator(t, own.cluster.AdminKubeconfig(), own.kubectl(t))
	empty := a.inventory(t)
	if !t.Run("is interrupted", func(t *testing.T) {
		child := own.child(t, a)
		child.waitFor(t, "Waiting for deployment")
		child.interrupt(t)
		// Either the running program ends by the signal, or the test by its context.
		if code, text := child.ended(t); code == 0 ||
			!strings.Contains(text, "context canceled") && !strings.Contains(text, "signal: interrupt") {
			t.Errorf("after Ctrl-C it ended with %d:\n%s", code, text)
		}
		a.leaves(t, empty)
	}) {
		return // it may have left objects behind
	}
	t.Run("installs", func(t *testing.T) {
		a.install(t, "registry.example.com/team/pinniped-agent:v1.0.0", "0")
		own.startAgent(t, a)
		a.does(t, `kubectl patch credentialissuer pinniped-concierge-config --type merge --patch \
    '{"spec": {"impersonationProxy": {"mode": "enabled", "externalEndpoint": "proxy.example.com", "service": {"type": "None"}}}}'`)
		a.waitForReason(t, "Listening")
		installed, issuer := a.inventory(t), a.issuer(t)
		t.Run("refuses to begin", func(t *testing.T) {
			code, text := own.child(t, a).ended(t)
			if code == 0 || !strings.Contains(text, "refused: a Concierge is installed") {
				t.Errorf("it ended with %d:\n%s", code, text)
			}
			a.leaves(t, installed)
		})
		t.Run("tells the scenario", func(t *testing.T) {
			a.mayBegin(t, true)
			a.runScenario(t, own)
		})
		a.leaves(t, installed)
		testkit.Eventually(t, 30*time.Second, func() error { return a.issuer(t).differs(issuer) })
	})
	a.leaves(t, empty)
}
