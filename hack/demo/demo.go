package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

// The files in the demo's directory.
const (
	adminKubeconfig = "admin-kubeconfig.yaml"
	userKubeconfig  = "pinniped-kubeconfig.yaml"
)

// demo is the state of the scenario, which each step reads and extends.
type demo struct {
	*scenario.Screen
	shell      *scenario.Shell
	repository string
	programs   string // directory with pinniped and pinniped-agent
	dir        string // output directory

	cluster *devcluster.Cluster
	install *devinstall.Installation
	agent   *devinstall.Agent
	users   *devinstall.LocalUsers
	pki     *scenario.PKI
	// certificate is the first one from the PKI.
	certificate *x509.Certificate
}

func newDemo(s *scenario.Screen, repository string) *demo {
	return &demo{Screen: s, repository: repository, programs: filepath.Join(repository, "bin")}
}

// tell runs the steps in order. Those after the start of the cluster may take up to limit, and none longer than ctx.
func (d *demo) tell(ctx context.Context, limit time.Duration) error {
	d.Say(
		"This demo puts a Kubernetes API behind a certificate of your own. It starts a real Kubernetes API server here, " +
			"installs the product, " +
			"and then does what an administrator and a user called pinny would do. Lines that begin with $ are the commands; " +
			"they are really run.",
	)
	if err := d.startCluster(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	steps := []func(context.Context) error{
		d.applyManifests, d.startPrograms, d.makeCertificate, d.setCertificate, d.addUser, d.makeKubeconfig,
		d.useKubeconfig, d.compareCAs, d.fetchKubeconfig, d.renewCertificate,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return d.withLogs(err)
		}
	}
	return nil
}

// endpoint returns the impersonation proxy's endpoint for users.
func (d *demo) endpoint() string {
	return net.JoinHostPort("localhost", strconv.Itoa(d.agent.ProxyPort))
}

// stop stops all programs. It may be called at any time.
func (d *demo) stop() error {
	if d.cluster == nil {
		return nil
	}
	d.Print("\n")
	if err := d.cluster.Stop(); err != nil {
		return fmt.Errorf("stopping the control plane: %w", err)
	}
	return nil
}

// withLogs adds the last lines of our programs' logs to an error.
func (d *demo) withLogs(err error) error {
	var logs []string
	if d.agent != nil {
		logs = append(logs, d.agent.Log())
	}
	if d.users != nil {
		logs = append(logs, d.users.Log())
	}
	for _, path := range logs {
		text, readErr := os.ReadFile(path)
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		err = fmt.Errorf("%w\n\nThe end of %s:\n%s", err, path, tail(string(text), 5, 400))
	}
	return err
}

// tail returns the last lines of text, truncated to width bytes each.
func tail(text string, count, width int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-count):]
	for i, line := range lines {
		if len(line) > width {
			lines[i] = strings.ToValidUTF8(line[:width], "") + "…"
		}
	}
	return strings.Join(lines, "\n")
}

// explainKeep prints how to use the running demo.
func (d *demo) explainKeep() {
	d.Say("Everything is left running, until you press Ctrl-C here. In another terminal:")
	d.Command(strings.Join(d.exports(), "\n"))
	d.Say("You are then the administrator. As pinny, add the kubeconfig that pinniped made:")
	d.Command("kubectl get pods -A --kubeconfig " + userKubeconfig + "\npinniped whoami --kubeconfig " + userKubeconfig)
	d.Say("In a browser, https://" + d.endpoint() + " shows users how to get their kubeconfig. " +
		"The browser does not know the demo's CA, and warns.")
	d.Say("The agent's log is " + d.agent.Log() + " and that of the local-user-authenticator is " + d.users.Log() + ".")
}

// exports returns the shell commands for the demo's environment.
func (d *demo) exports() []string {
	lines := []string{"cd " + scenario.Quote(d.dir)}
	for _, entry := range d.shell.Env {
		name, value, _ := strings.Cut(entry, "=")
		switch name {
		case "KUBECONFIG", "XDG_CONFIG_HOME":
			lines = append(lines, "export "+name+"="+scenario.Quote(value))
		case "PATH":
			added, _, _ := strings.Cut(value, string(os.PathListSeparator)+os.Getenv("PATH"))
			lines = append(lines, "export PATH="+scenario.Quote(added)+`:"$PATH"`)
		}
	}
	return lines
}

// findRepository returns the root of this repository, from the working directory.
func findRepository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "demo", "demo.go")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%q is not in the repository", start)
		}
	}
}
