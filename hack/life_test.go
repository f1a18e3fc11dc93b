package hack

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
)

const issuers = "credentialissuers.config.concierge.pinniped.dev"

// administrator runs shell commands on a new cluster.
type administrator struct {
	*devcluster.Cluster
	kubectl, helm string
	environment   []string
}

func newAdministrator(t *testing.T, options devcluster.Options) *administrator {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	cluster, err := devcluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() })
	a := &administrator{Cluster: cluster}
	if a.kubectl, err = cluster.Kubectl(); err != nil {
		t.Fatal(err)
	}
	if a.helm, err = filepath.Abs("../bin/helm"); err != nil {
		t.Fatal(err)
	}
	path := []string{filepath.Dir(a.kubectl), filepath.Dir(a.helm), os.Getenv("PATH")}
	a.environment = append(os.Environ(), "KUBECONFIG="+cluster.AdminKubeconfig(), "TIMEOUT=0", "HOME="+t.TempDir(),
		"PATH="+strings.Join(path, string(os.PathListSeparator)))
	return a
}

// tries runs a program and returns its output, including stderr.
func (a *administrator) tries(
	ctx context.Context,
	stdin io.Reader,
	program string,
	arguments ...string,
) (string, error) {
	command := exec.CommandContext(ctx, program, arguments...)
	command.Stdin, command.Env = stdin, a.environment
	out, err := command.CombinedOutput()
	return string(out), err
}

func (a *administrator) does(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	out, err := a.tries(t.Context(), nil, program, arguments...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, arguments, err, out)
	}
	return out
}

// types runs the shell blocks of a document that contain a text, unchanged.
func (a *administrator) types(t *testing.T, document, text string) string {
	t.Helper()
	blocks, err := documents.Read("..", document)
	if err != nil {
		t.Fatal(err)
	}
	blocks = slices.DeleteFunc(blocks, func(b documents.Block) bool {
		return b.RunBy != t.Name() || !strings.Contains(b.Text, text)
	})
	if len(blocks) == 0 {
		t.Fatalf("no block of %s says that %s runs it, and contains %q", document, t.Name(), text)
	}
	var printed strings.Builder
	for _, block := range blocks {
		printed.WriteString(a.does(t, "bash", "-euo", "pipefail", "-c", "cd ..\n"+block.Text))
	}
	return printed.String()
}

func (a *administrator) image(t *testing.T) string {
	t.Helper()
	return a.does(t, a.kubectl, "get", "deployment", "--namespace=pinniped-concierge", "pinniped-concierge",
		"--output=jsonpath={.spec.template.spec.containers[0].image}")
}

// issuer returns the part of the CredentialIssuer that administrators own.
func (a *administrator) issuer(t *testing.T) string {
	t.Helper()
	return a.does(t, a.kubectl, "get", issuers, "pinniped-concierge-config",
		`--output=jsonpath={.metadata.uid} {.metadata.generation} {.spec}`)
}

// startsTheAgent runs the agent next to the cluster, with its ConfigMap.
func (a *administrator) startsTheAgent(t *testing.T) *devinstall.Agent {
	t.Helper()
	node := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"worker"}}` // mode auto needs a node
	if out, err := a.tries(t.Context(), strings.NewReader(node), a.kubectl, "apply", "--filename=-"); err != nil {
		t.Fatalf("making a node: %v\n%s", err, out)
	}
	programs := t.TempDir()
	if err := devinstall.Build(t.Context(), "..", programs); err != nil {
		t.Fatal(err)
	}
	config := a.does(t, a.kubectl, "get", "configmap", "--namespace=pinniped-concierge", "pinniped-concierge-agent",
		`--output=jsonpath={.data.pinniped\.yaml}`)
	installation := &devinstall.Installation{
		Cluster: a.Cluster, Binary: filepath.Join(programs, "pinniped-agent"), Apart: true,
		Config: config,
	}
	agent, err := installation.StartAgent(t.Context(), "agent", "shutdownDelay=0s")
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := agent.WaitReady(waiting); err != nil {
		log, _ := os.ReadFile(agent.Log())
		t.Fatalf("%v\n%s", err, log)
	}
	return agent
}

const (
	installation = "docs/howto/install.md"
	removal      = "docs/howto/uninstall.md"
)

// TestLifeByHelm installs the chart with helm, upgrades, rolls back, uninstalls and reinstalls it, while an
// administrator changes the CredentialIssuer that the agent created.
func TestLifeByHelm(t *testing.T) {
	t.Parallel()
	a := newAdministrator(t, devcluster.Options{})
	told := a.types(t, installation, "helm install") // from docs/howto/install.md
	if !strings.Contains(told, "kubectl rollout status --namespace pinniped-concierge") ||
		!strings.Contains(told, "pinniped ip-tls status") {
		t.Errorf("it does not say how to go on:\n%s", told)
	}
	agent := a.startsTheAgent(t)
	if made := a.issuer(t); !strings.Contains(made, `"mode":"auto"`) ||
		!strings.Contains(made, "aws-load-balancer-connection-idle-timeout") {
		t.Errorf("the agent has made %s", made)
	}
	a.does(t, a.kubectl, "patch", issuers, "pinniped-concierge-config", "--type=merge",
		`--patch={"spec": {"impersonationProxy": {"externalEndpoint": "proxy.example.com"}}}`)
	configured := a.issuer(t)
	unchanged := func(after string) {
		t.Helper()
		if diff := cmp.Diff(configured, a.issuer(t)); diff != "" {
			t.Errorf("%s has changed the CredentialIssuer (-before +after):\n%s", after, diff)
		}
	}

	// From here on, use the archive, as in a release.
	folder := t.TempDir()
	a.does(t, a.helm, "package", "../deploy/helm", "--version=1.2.3", "--destination="+folder)
	chart := filepath.Join(folder, "pinniped-concierge-1.2.3.tgz")
	before := a.image(t)
	a.does(t, a.helm, "upgrade", "pinniped-concierge", chart, "--namespace=pinniped-concierge",
		"--set=image=registry.example.com/agent:v2", "--set=config.credentialIssuerSpec.impersonationProxy.mode=disabled")
	if got := a.image(t); got != "registry.example.com/agent:v2" {
		t.Errorf("after the upgrade, the image is %q", got)
	}
	unchanged("an upgrade")
	a.does(t, a.helm, "rollback", "pinniped-concierge", "--namespace=pinniped-concierge")
	if got := a.image(t); got != before {
		t.Errorf("after going back, the image is %q", got)
	}
	unchanged("going back")

	if err := agent.Stop(); err != nil {
		t.Fatal(err)
	}
	uninstall := func() {
		t.Helper()
		a.types(t, removal, "helm uninstall") // from docs/howto/uninstall.md
		if left := a.programs(t); left != "" {
			t.Errorf("the release is gone, and there is\n%s", left)
		}
		unchanged("uninstalling")
	}
	uninstall()
	a.does(t, a.helm, "install", "pinniped-concierge", chart, "--namespace=pinniped-concierge")
	if a.image(t) != before {
		t.Errorf("the second installation did nothing")
	}
	unchanged("a second installation")
	uninstall()

	// Argo CD renders the chart without access to the cluster.
	rendered := a.does(t, a.helm, "template", "pinniped-concierge", chart, "--namespace=pinniped-concierge")
	for range 2 {
		out, err := a.tries(t.Context(), strings.NewReader(rendered), a.kubectl, "apply", "--server-side", "--filename=-")
		if err != nil {
			t.Errorf("applying what helm template prints: %v\n%s", err, out)
		}
		unchanged("helm template")
	}

	// Helm adopts objects that kubectl has applied.
	a.does(t, a.helm, "install", "pinniped-concierge", chart, "--namespace=pinniped-concierge",
		"--take-ownership", "--force-conflicts", "--set=image=registry.example.com/agent:v3")
	if got := a.image(t); got != "registry.example.com/agent:v3" {
		t.Errorf("after taking over, the image is %q", got)
	}
	unchanged("taking over")
}

// programs returns the objects that an uninstall must remove. The revision history is kept with the configuration.
func (a *administrator) programs(t *testing.T) string {
	t.Helper()
	left := a.does(t, a.kubectl, "get", "deployments,configmaps,serviceaccounts,networkpolicies,poddisruptionbudgets,"+
		"roles,rolebindings,clusterroles,clusterrolebindings,apiservices,flowschemas,prioritylevelconfigurations,"+
		"validatingadmissionpolicies,validatingadmissionpolicybindings",
		"--all-namespaces", "--selector=app=pinniped-concierge", "--output=name", "--ignore-not-found")
	return strings.ReplaceAll(left, "configmap/pinniped-concierge-revisions\n", "")
}

// TestLifeByKubectl installs on a new cluster, applies an administrator's CredentialIssuer, removes and reinstalls the
// agent, and removes everything.
func TestLifeByKubectl(t *testing.T) {
	t.Parallel()
	a := newAdministrator(t, devcluster.Options{ControllerManager: true}) // deletes namespaces
	a.types(t, installation, "kubectl apply")                             // from docs/howto/install.md
	agent := a.startsTheAgent(t)
	if made := a.issuer(t); !strings.Contains(made, `"mode":"auto"`) {
		t.Errorf("the agent has made %s", made)
	}
	content, err := os.ReadFile("../deploy/concierge/credentialissuer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	own := strings.Replace(string(content), "mode: auto", "mode: disabled", 1)
	out, err := a.tries(t.Context(), strings.NewReader(own), a.kubectl, "apply", "--server-side", "--filename=-")
	if err != nil {
		t.Fatalf("applying the manifest of a CredentialIssuer: %v\n%s", err, out)
	}
	testkit.Eventually(t, time.Minute, func() error {
		status := a.does(t, a.kubectl, "get", issuers, "pinniped-concierge-config",
			`--output=jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].reason}`)
		if status != "Disabled" {
			return errors.New("the status is " + status)
		}
		return nil
	})
	configured := a.issuer(t)
	if err := agent.Stop(); err != nil {
		t.Fatal(err)
	}

	a.types(t, removal, "deploy/upgrade") // from docs/howto/uninstall.md
	if left := a.programs(t); left != "" {
		t.Errorf("the agent is uninstalled, and there is\n%s", left)
	}
	a.types(t, installation, "kubectl apply")
	if again := a.issuer(t); again != configured {
		t.Errorf("after a second installation, the CredentialIssuer is %s, and was %s", again, configured)
	}
	a.types(t, removal, "kubectl delete") // all of it
	left := a.programs(t) + a.does(t, a.kubectl, "get", "namespaces,customresourcedefinitions", "--output=name")
	if strings.Contains(left, "pinniped") {
		t.Errorf("all is removed, and there is\n%s", left)
	}
}
