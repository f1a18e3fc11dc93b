// Package devinstall installs pinniped on a local control plane from its manifests. That cluster has no node, so the
// agent and the local-user-authenticator run as local processes, each with the identity of its own service account. So
// the demo and the tests have exactly the permissions in the manifests.
package devinstall

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

// Names in the manifests.
const (
	Namespace          = "pinniped-concierge"
	CredentialIssuer   = "pinniped-concierge-config"
	AgentAccount       = "pinniped-concierge"
	APIService         = "pinniped-concierge-api"
	LocalUserNamespace = "local-user-authenticator"
)

// aggregated are the APIServices of the agent.
var aggregated = []string{"v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"}

// Installation is an installation of pinniped on one cluster.
type Installation struct {
	Cluster *devcluster.Cluster
	// Binary is the path of bin/pinniped-agent.
	Binary string
	// Deploy is the directory deploy of the repository.
	Deploy string
	// APIService is the Service in front of the agent's APIs; empty for that in the manifests. The APIServices must
	// name it.
	APIService string
	// Config is the configuration file of agents that are started afterwards, as YAML; empty for the defaults.
	Config string
	// AgentEnv are environment variables of agents that are started afterwards, each as NAME=VALUE.
	AgentEnv []string
	// Apart keeps StartAgent from pointing the cluster's aggregated APIs at the agent.
	Apart bool
}

// Build builds bin/pinniped and bin/pinniped-agent of the repository at root into a directory.
func Build(ctx context.Context, root, folder string) error {
	for name, source := range map[string]string{"pinniped": "./cmd/pinniped", "pinniped-agent": "./cmd/agent"} {
		build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", filepath.Join(folder, name), source)
		build.Dir = root
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", source, err, output)
		}
	}
	return nil
}

// Install applies the manifests and the CredentialIssuer, which agents here do not create, because they are started
// without the default configuration file. It starts no program.
func (i *Installation) Install(ctx context.Context) error {
	return i.Cluster.Install(
		ctx,
		filepath.Join(i.Deploy, "concierge"),
		filepath.Join(i.Deploy, "concierge", "credentialissuer.yaml"),
		filepath.Join(i.Deploy, "local-user-authenticator"),
	)
}

// Agent is a replica of the agent.
type Agent struct {
	*devcluster.Program
	APIPort, ProxyPort, MetricsPort int
}

// ProxyAddress returns the address of this replica's impersonation proxy: 127.0.0.1:PORT.
func (a *Agent) ProxyAddress() string { return loopback(a.ProxyPort) }

// MetricsAddress returns the address of this replica's metrics and profiles: 127.0.0.1:PORT.
func (a *Agent) MetricsAddress() string { return loopback(a.MetricsPort) }

// StartAgent starts a replica and, unless Apart is set, points the cluster's aggregated APIs at it. It returns when the
// replica's APIs respond; the replica may become ready later: see WaitReady. Its ports stay the same when the Program
// is restarted. settings are added to the configuration, each as KEY=VALUE, such as names.apiService=own.
func (i *Installation) StartAgent(ctx context.Context, name string, settings ...string) (*Agent, error) {
	kubeconfig, err := i.accountKubeconfig(ctx, name, Namespace, AgentAccount)
	if err != nil {
		return nil, err
	}
	agent := &Agent{}
	for _, port := range []*int{&agent.APIPort, &agent.ProxyPort, &agent.MetricsPort} {
		if *port, err = i.Cluster.ReservePort(); err != nil {
			return nil, err
		}
	}
	config, err := i.writeConfig(name, append([]string{
		"aggregatedAPIServerPort=" + strconv.Itoa(agent.APIPort),
		"impersonationProxyServerPort=" + strconv.Itoa(agent.ProxyPort),
		"metrics.address=" + agent.MetricsAddress(),
		"metrics.pprof=local",
	}, settings...))
	if err != nil {
		return nil, fmt.Errorf("writing the configuration of %q: %w", name, err)
	}
	program, err := filepath.Abs(i.Binary)
	if err != nil {
		return nil, err
	}
	agent.Program, err = i.Cluster.StartProgram(ctx, devcluster.ProgramOptions{
		Name: name, Path: program, Env: i.AgentEnv,
		Args: []string{
			"concierge", "--config=" + config, "--kubeconfig=" + kubeconfig, "--bind-address=" + loopbackAddress,
			"--namespace=" + Namespace, "--pod-name=" + name,
		},
		Ready: func(ctx context.Context) error { return agent.probe(ctx, "/livez") },
	})
	if err != nil {
		return nil, err
	}
	if i.Apart {
		return agent, nil
	}
	return agent, i.PointAt(ctx, agent)
}

// writeConfig writes an agent's configuration file, and returns its path.
func (i *Installation) writeConfig(name string, settings []string) (string, error) {
	config := map[string]any{}
	if err := yaml.Unmarshal([]byte(i.Config), &config); err != nil {
		return "", err
	}
	for _, setting := range settings {
		key, text, _ := strings.Cut(setting, "=")
		var value any = text
		if number, err := strconv.ParseInt(text, 10, 32); err == nil {
			value = number
		}
		if err := unstructured.SetNestedField(config, value, strings.Split(key, ".")...); err != nil {
			return "", fmt.Errorf("setting %s: %w", key, err)
		}
	}
	content, err := yaml.Marshal(config)
	if err != nil {
		return "", err
	}
	path := filepath.Join(i.Cluster.Dir(), name+".yaml")
	return path, os.WriteFile(path, content, 0o600)
}

// PointAt points the cluster's aggregated APIs at a replica.
func (i *Installation) PointAt(ctx context.Context, agent *Agent) error {
	if err := i.Cluster.PointServiceAt(ctx, Namespace, cmp.Or(i.APIService, APIService), agent.APIPort); err != nil {
		return err
	}
	for _, name := range aggregated {
		if err := i.Cluster.PointAPIServiceAt(ctx, name, agent.APIPort); err != nil {
			return err
		}
	}
	return nil
}

// WaitAvailable waits until the API server reports the aggregated APIs as available, or ctx ends.
func (i *Installation) WaitAvailable(ctx context.Context) error {
	client, err := apiregistrationv1client.NewForConfig(i.Cluster.AdminConfig())
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	for _, name := range aggregated {
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			service, err := client.APIServices().Get(ctx, name, metav1.GetOptions{})
			return err == nil && helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available), nil
		})
		if err != nil {
			return fmt.Errorf("waiting for APIService %q: %w", name, err)
		}
	}
	return nil
}

// Ready returns nil when the replica's readiness probe succeeds.
func (a *Agent) Ready(ctx context.Context) error { return a.probe(ctx, "/readyz") }

// Live returns nil when the replica's liveness probe succeeds.
func (a *Agent) Live(ctx context.Context) error { return a.probe(ctx, "/livez") }

// probe sends a probe as the kubelet does, without verifying the certificate.
func (a *Agent) probe(ctx context.Context, path string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+loopback(a.APIPort)+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("probing the agent: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // only the status counts
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the agent's %s says: %s", path, response.Status)
	}
	return nil
}

// WaitReady waits until the replica is ready, or ctx ends.
func (a *Agent) WaitReady(ctx context.Context) error {
	for {
		err := a.Ready(ctx)
		if err == nil {
			return nil
		}
		if !a.Running() {
			return fmt.Errorf("the agent has ended; its log is %q", a.Log())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the agent, whose log is %q: %w", a.Log(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// LocalUsers is a running local-user-authenticator.
type LocalUsers struct {
	*devcluster.Program
	Port int
}

// Endpoint returns the webhook's URL for a WebhookAuthenticator.
func (l *LocalUsers) Endpoint() string {
	return "https://" + net.JoinHostPort("localhost", strconv.Itoa(l.Port)) + "/authenticate"
}

// StartLocalUsers starts the local-user-authenticator, which listens on localhost.
func (i *Installation) StartLocalUsers(ctx context.Context) (*LocalUsers, error) {
	const name = "local-user-authenticator"
	kubeconfig, err := i.accountKubeconfig(ctx, name, LocalUserNamespace, name)
	if err != nil {
		return nil, err
	}
	port, err := i.Cluster.ReservePort()
	if err != nil {
		return nil, err
	}
	program, err := i.Cluster.StartProgram(ctx, devcluster.ProgramOptions{
		Name: name, Path: i.Binary,
		Args: []string{
			"local-user-authenticator", "--kubeconfig=" + kubeconfig, "--namespace=" + LocalUserNamespace,
			"--listen-address=" + loopback(port), "--serving-name=localhost",
		},
		Ready: devcluster.Listening(loopback(port)),
	})
	if err != nil {
		return nil, err
	}
	return &LocalUsers{Program: program, Port: port}, nil
}

// accountKubeconfig writes a kubeconfig with the identity of a service account.
func (i *Installation) accountKubeconfig(ctx context.Context, name, namespace, account string) (string, error) {
	config, err := i.Cluster.ServiceAccountConfig(ctx, namespace, account)
	if err != nil {
		return "", err
	}
	path := filepath.Join(i.Cluster.Dir(), name+".kubeconfig")
	return path, i.Cluster.WriteKubeconfig(path, config)
}

const loopbackAddress = "127.0.0.1"

func loopback(port int) string { return net.JoinHostPort(loopbackAddress, strconv.Itoa(port)) }
