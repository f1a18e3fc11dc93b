//go:build unix

// Package e2e tells the whole scenario on a cluster, as an administrator and a user live it: a certificate of a PKI
// goes in front of the cluster, by a load balancer, behind a proxy that passes TLS through, and at an external
// endpoint.
//
// `make test-e2e` runs it on the cluster of KUBECONFIG. Without that variable, and in every other run of the tests, it
// has a control plane of its own, so that a kubeconfig that lies around is never used by accident.
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

// The environment of the test. `make test-e2e` sets it.
const (
	// kubeconfigEnv is the kubeconfig of the cluster to use, as the variable KUBECONFIG would have it.
	kubeconfigEnv = "E2E_KUBECONFIG"
	// imageEnv is the agent's image, in a place where the cluster's nodes find it.
	imageEnv = "E2E_IMAGE"
	// installedEnv is "use" to use the Concierge that is installed.
	installedEnv = "E2E_INSTALLED"
	// programsEnv is a folder with pinniped; without it, the test builds that.
	programsEnv = "E2E_PROGRAMS"
)

// interrupted ends at Ctrl-C. The test then fails, and cleans up; a second Ctrl-C ends it at once.
var interrupted context.Context

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	interrupted = ctx
	os.Exit(m.Run())
}

// TestEndToEnd tells the scenario on the cluster that the environment names, or on a control plane of its own.
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

// onCluster tells the scenario on somebody's cluster.
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
	a.tell(t, there)
}

// onOwnControlPlane tells the scenario where everything that it leaves behind is seen. Before that it is interrupted
// once, and refused once.
func onOwnControlPlane(t *testing.T) {
	t.Helper()
	own := newControlPlane(t)
	a := newAdministrator(t, own.cluster.AdminKubeconfig(), own.kubectl(t))
	empty := a.inventory(t)
	if !t.Run("is interrupted", func(t *testing.T) {
		child := own.child(t, a)
		child.waitFor(t, "Waiting for deployment")
		child.interrupt(t)
		// Whichever is first: the program that runs ends by the signal, or the test by its context.
		if code, text := child.ended(t); code == 0 ||
			!strings.Contains(text, "context canceled") && !strings.Contains(text, "signal: interrupt") {
			t.Errorf("after Ctrl-C it ended with %d:\n%s", code, text)
		}
		a.leaves(t, empty)
	}) {
		return // what it has left would be in the way
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
			a.tell(t, own)
		})
		a.leaves(t, installed)
		testkit.Eventually(t, 30*time.Second, func() error { return a.issuer(t).differs(issuer) })
	})
	a.leaves(t, empty)
}
