// Package devinstall installs the product on a local control plane. It applies the shipped manifests. That cluster
// has no node to run pods on, so the agent and the local-user-authenticator run as processes next to it, each with the
// identity of its own service account. So the demo and the tests have exactly the permissions of the shipped
// manifests.
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
)

// Names of the shipped manifests.
const (
	Namespace          = "pinniped-concierge"
	CredentialIssuer   = "pinniped-concierge-config"
	AgentAccount       = "pinniped-concierge"
	APIService         = "pinniped-concierge-api"
	LocalUserNamespace = "local-user-authenticator"
)

// aggregated are the APIServices that lead to the agent.
var aggregated = []string{"v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"}

// Installation is the product on one cluster.
type Installation struct {
	Cluster *devcluster.Cluster
	// Binary is bin/pinniped-agent.
	Binary string
	// Deploy is the folder deploy of the repository.
	Deploy string
	// APIService is the Service in front of the agent's APIs, if it is not the shipped one. The APIServices must name it.
	APIService string
	// Config is the configuration file of the agents that are started from now on, as YAML. Empty is the defaults.
	Config string
	// AgentEnv are variables for the agents that are started from now on, each as NAME=VALUE.
	AgentEnv []string
	// Apart leaves the cluster's aggregated APIs alone when agents are started.
	Apart bool
}

// Build builds bin/pinniped and bin/pinniped-agent of the repository at root into a folder.
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

// Install applies the shipped manifests, and the CredentialIssuer: agents here are started without the shipped
// configuration, from which they would make it. Nothing runs yet.
func (i *Installation) Install(ctx context.Context) error {
	return i.Cluster.Install(
		ctx,
		filepath.Join(i.Deploy, "concierge"),
		filepath.Join(i.Deploy, "concierge", "credentialissuer.yaml"),
		filepath.Join(i.Deploy, "local-user-authenticator"),
	)
}

// Agent is one replica of the agent.
type Agent struct {
	*devcluster.Program
	APIPort, ProxyPort, MetricsPort int
}

// ProxyAddress is where this replica's impersonation proxy listens: 127.0.0.1:PORT.
func (a *Agent) ProxyAddress() string { return loopback(a.ProxyPort) }

// APIAddress is where this replica's Concierge APIs listen: 127.0.0.1:PORT.
func (a *Agent) APIAddress() string { return loopback(a.APIPort) }

// MetricsAddress is where this replica serves its metrics: 127.0.0.1:PORT. In tests it serves profiles there, too.
func (a *Agent) MetricsAddress() string { return loopback(a.MetricsPort) }

// StartAgent starts a replica and points the cluster's aggregated APIs at it. It returns when the replica's APIs
// answer. The replica may become ready later: see WaitReady. Its ports stay the same when the Program is restarted.
// settings are added to the configuration, each as KEY=VALUE, such as names.apiService=own.
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

// PointAt leads the cluster's aggregated APIs to a replica.
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

// WaitAvailable waits until the cluster's API server has found the aggregated APIs, or ctx ends.
func (i *Installation) WaitAvailable(ctx context.Context) error {
	client, err := dynamic.NewForConfig(i.Cluster.AdminConfig())
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	services := client.Resource(
		schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	)
	for _, name := range aggregated {
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			service, err := services.Get(ctx, name, metav1.GetOptions{})
			return err == nil && available(service), nil
		})
		if err != nil {
			return fmt.Errorf("waiting for APIService %q: %w", name, err)
		}
	}
	return nil
}

func available(service *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
	for _, item := range conditions {
		if condition, ok := item.(map[string]any); ok && condition["type"] == "Available" {
			return condition["status"] == "True"
		}
	}
	return false
}

// Ready returns nil when the replica says that it is ready, as the kubelet would ask.
func (a *Agent) Ready(ctx context.Context) error { return a.probe(ctx, "/readyz") }

// Live returns nil when the replica says that it is alive, as the kubelet would ask.
func (a *Agent) Live(ctx context.Context) error { return a.probe(ctx, "/livez") }

// probe asks the replica in the way of a kubelet, which does not verify certificates either.
func (a *Agent) probe(ctx context.Context, path string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.APIAddress()+path, nil)
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

// Endpoint is the webhook's URL, as a WebhookAuthenticator needs it.
func (l *LocalUsers) Endpoint() string {
	return "https://" + net.JoinHostPort("localhost", strconv.Itoa(l.Port)) + "/authenticate"
}

// StartLocalUsers starts the local-user-authenticator, reachable as localhost.
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
		Ready: func(ctx context.Context) error {
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", loopback(port))
			if err != nil {
				return err
			}
			return connection.Close()
		},
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
