//go:build unix

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// place is what differs between clusters.
type place interface {
	// startUsers starts the local-user-authenticator, and returns the URL at which the agent reaches it.
	startUsers(t *testing.T, a *administrator) string
	// usersImage returns the image of the local-user-authenticator.
	usersImage() string
	// proxyPort returns the port of the agent's pods on which the impersonation proxy listens.
	proxyPort() int
	// balance may simulate a cloud's load balancer for a Service.
	balance(t *testing.T, a *administrator, service string) error
}

// cluster is a place that runs pods.
type cluster struct{ image string }

func (c *cluster) usersImage() string { return c.image }

func (c *cluster) proxyPort() int { return 8444 }

func (c *cluster) startUsers(t *testing.T, a *administrator) string {
	t.Helper()
	a.does(
		t,
		"kubectl rollout status --namespace local-user-authenticator deployment/local-user-authenticator --timeout=5m",
	)
	return "https://local-user-authenticator.local-user-authenticator.svc/authenticate"
}

func (c *cluster) balance(*testing.T, *administrator, string) error { return nil }

// controlPlane is the test's own cluster. It cannot run pods, so the programs run as processes with the identities of
// their service accounts. A pod of a fake node forwards to the agent.
type controlPlane struct {
	cluster *devcluster.Cluster
	node    *kubelet.Kubelet
	install *devinstall.Installation
	agent   *devinstall.Agent
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	programs := t.TempDir()
	must.Do(t, devinstall.Build(interrupted, filepath.Join("..", ".."), programs))
	t.Setenv(programsEnv, programs)
	// Without controllers, the namespaces of the scenario would not be deleted.
	own := &controlPlane{cluster: testkit.Cluster(t, devcluster.Options{ControllerManager: true})}
	own.install = &devinstall.Installation{
		Cluster: own.cluster, Binary: filepath.Join(programs, "pinniped-agent"), Deploy: filepath.Join("..", "..", "deploy"),
	}
	own.node = must.Get(kubelet.Start(t.Context(), own.cluster, "node"))(t)
	testkit.Cleanup(t, own.node.Close)
	return own
}

func (own *controlPlane) kubectl(t *testing.T) string {
	t.Helper()
	path := must.Get(own.cluster.Kubectl())(t)
	return path
}

func (own *controlPlane) usersImage() string {
	return "registry.example.com/team/pinniped-agent:v1.0.0"
}

func (own *controlPlane) proxyPort() int { return own.agent.ProxyPort }

// startAgent starts the agent, and a pod that forwards to it, until the end of the test.
func (own *controlPlane) startAgent(t *testing.T, a *administrator) {
	t.Helper()
	own.agent = must.Get(own.install.StartAgent(interrupted, "agent"))(t)
	testkit.Cleanup(t, own.agent.Stop)
	must.Do(t, own.install.WaitAvailable(interrupted))
	a.does(t, "kubectl wait --for=create --timeout=1m --namespace pinniped-concierge serviceaccount/default")
	const pod = "agent"
	a.afterwards(t, "kubectl delete pod --namespace pinniped-concierge --ignore-not-found --force "+pod)
	must.Do(t, own.node.Run(interrupted, kubelet.Pod{
		Namespace: devinstall.Namespace, Name: pod, Dir: a.dir,
		Labels:  map[string]string{"app": "pinniped-concierge", "deployment.pinniped.dev": "concierge"},
		Command: []string{"sleep", "3600"},
	}))
}

func (own *controlPlane) startUsers(t *testing.T, _ *administrator) string {
	t.Helper()
	users := must.Get(own.install.StartLocalUsers(interrupted))(t)
	testkit.Cleanup(t, users.Stop)
	return users.Endpoint()
}

// balance forwards port 443 of the loopback address to the Service, if this process may listen on that port.
func (own *controlPlane) balance(t *testing.T, a *administrator, service string) error {
	t.Helper()
	if _, err := a.toService(t, service).listen(t, a, "127.0.0.1:443"); err != nil {
		return err
	}
	a.does(t, "kubectl patch --namespace pinniped-concierge service/"+service+` --subresource status --type merge \
    --patch '{"status": {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}}}'`)
	return nil
}

// child is this test in another process, on the cluster of a kubeconfig.
type child struct {
	command *exec.Cmd
	printed *testkit.Buffer
	done    chan struct{}
}

// child starts the test on this control plane, as `make test-e2e` does on an existing cluster.
func (own *controlPlane) child(t *testing.T, a *administrator) *child {
	t.Helper()
	c := &child{printed: &testkit.Buffer{}, done: make(chan struct{})}
	ctx := context.WithoutCancel(t.Context())
	c.command = exec.CommandContext(ctx, os.Args[0], "-test.run=^TestEndToEnd$", "-test.v", "-test.timeout=10m")
	c.command.Env = append(
		slices.Clone(a.shell.Env),
		kubeconfigEnv+"="+own.cluster.AdminKubeconfig(),
		imageEnv+"="+own.usersImage(),
	)
	c.command.Stdout, c.command.Stderr = c.printed, c.printed
	c.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // like a shell, so that Ctrl-C reaches all processes
	must.Do(t, c.command.Start())
	go func() {
		defer close(c.done)
		_ = c.command.Wait() // the exit code is checked elsewhere
	}()
	t.Cleanup(func() {
		_ = c.command.Process.Kill() // if it still runs
		<-c.done
	})
	return c
}

func (c *child) waitFor(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func() error {
		select {
		case <-c.done:
			t.Fatalf("it ended before it printed %q:\n%s", want, c.printed)
		default:
		}
		if !strings.Contains(c.printed.String(), want) {
			return errors.New(c.printed.String())
		}
		return nil
	})
}

// interrupt sends what Ctrl-C sends.
func (c *child) interrupt(t *testing.T) {
	t.Helper()
	must.Do(t, syscall.Kill(-c.command.Process.Pid, syscall.SIGINT))
}

func (c *child) ended(t *testing.T) (int, string) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(6 * time.Minute): // kubectl waits for 5 minutes
		t.Fatalf("it does not end:\n%s", c.printed)
	}
	return c.command.ProcessState.ExitCode(), c.printed.String()
}
