package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/scenario"
)

// startCluster starts the control plane, and creates the shell for the later steps.
func (d *demo) startCluster(ctx context.Context) error {
	d.Title("Start a Kubernetes API server")
	d.Say(
		"A real etcd and a real kube-apiserver start on this machine's loopback address. That takes neither root nor " +
			"containers. " +
			"There are no nodes, so pods are only stored here and never run.",
	)
	d.Print("\n")
	err := d.building(ctx, func() (err error) {
		d.cluster, err = devcluster.Start(ctx, devcluster.Options{Dir: filepath.Join(d.dir, "cluster"), Log: d.Output()})
		return err
	})
	if err != nil {
		return fmt.Errorf("starting the control plane: %w", err)
	}
	var kubectl string
	err = d.building(ctx, func() (err error) {
		kubectl, err = d.cluster.Kubectl()
		return err
	})
	if err != nil {
		return fmt.Errorf("looking for kubectl: %w", err)
	}
	if err := d.cluster.WriteKubeconfig(filepath.Join(d.dir, adminKubeconfig), d.cluster.AdminConfig()); err != nil {
		return fmt.Errorf("writing the administrator's kubeconfig: %w", err)
	}
	d.openShell(kubectl)
	d.Say("The commands below are run in a shell that was set up like this. You are its administrator.")
	d.Command(strings.Join(d.exports(), "\n"))
	_, err = d.shell.Run(ctx, "kubectl version")
	return err
}

func (d *demo) openShell(kubectl string) {
	programs := []string{d.programs}
	if found, err := exec.LookPath("kubectl"); err != nil || found != kubectl {
		programs = append(programs, filepath.Dir(kubectl))
	}
	d.shell = scenario.OpenShell(d.Screen, d.dir, filepath.Join(d.dir, adminKubeconfig), programs...)
}

// building retries try after building the control plane programs that it misses.
func (d *demo) building(ctx context.Context, try func() error) error {
	for built := map[string]bool{}; ; {
		err := try()
		missing := new(devcluster.MissingProgramError)
		if !errors.As(err, &missing) || built[missing.Program] {
			return err
		}
		built[missing.Program] = true
		build := exec.CommandContext(ctx, filepath.Join(d.repository, "hack", "controlplane", "build.sh"), missing.Program)
		build.Stdout, build.Stderr = d.Output(), d.Output()
		if err := build.Run(); err != nil {
			return fmt.Errorf("building %s: %w", missing.Program, err)
		}
	}
}

func (d *demo) binary(name string) string { return filepath.Join(d.programs, name) }

// applyManifests installs the manifests of the product.
func (d *demo) applyManifests(ctx context.Context) error {
	d.Title("Install the product")
	d.Say(
		"These are the manifests that you would apply to your cluster: first the new kinds of object, then the agent with " +
			"its configuration, the CredentialIssuer, and then the local-user-authenticator. That one is a small identity provider for demonstrations, whose users are Secrets.",
	)
	deploy := filepath.Join(d.repository, "deploy")
	for _, command := range []string{
		"kubectl apply --server-side -k " + scenario.Quote(filepath.Join(deploy, "crds")),
		"kubectl wait --for=condition=Established --timeout=60s crd --all",
		"kubectl apply --server-side -k " + scenario.Quote(filepath.Join(deploy, "concierge")),
		"kubectl apply --server-side -f " + scenario.Quote(filepath.Join(deploy, "concierge", "credentialissuer.yaml")),
		"kubectl apply --server-side -k " + scenario.Quote(filepath.Join(deploy, "local-user-authenticator")),
	} {
		if _, err := d.shell.Run(ctx, command); err != nil {
			return err
		}
	}
	d.install = &devinstall.Installation{Cluster: d.cluster, Binary: d.binary("pinniped-agent"), Deploy: deploy}
	return nil
}

// startPrograms starts the programs of the Deployments, as there are no nodes.
func (d *demo) startPrograms(ctx context.Context) (err error) {
	d.Title("Run the agent and the local-user-authenticator")
	d.Say(
		"On your cluster the two Deployments have started pods by now. This cluster has no node to run pods on, so the " +
			"same program is started " +
			"twice as a process on this machine, with the rights of the service accounts from the manifests and no more. " +
			"The Services that lead to the pods are pointed at this machine instead.",
	)
	if d.users, err = d.install.StartLocalUsers(ctx); err != nil {
		return fmt.Errorf("starting the local-user-authenticator: %w", err)
	}
	d.started(d.users.CommandLine())
	if d.agent, err = d.install.StartAgent(ctx, "agent"); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	d.started(d.agent.CommandLine())
	d.Say("The agent serves two APIs of its own through the API server. It is up when the API server has found them.")
	_, err = d.shell.Run(ctx, `kubectl wait --for=condition=Available --timeout=60s apiservice \
    v1alpha1.login.concierge.pinniped.dev v1alpha1.identity.concierge.pinniped.dev`)
	return err
}

// started prints the command line of a background program.
func (d *demo) started(args []string) {
	var words []string
	for _, arg := range args {
		arg = strings.Replace(arg, d.dir+string(filepath.Separator), "", 1)
		words = append(words, scenario.Quote(arg))
	}
	d.Command(strings.Join(words, " \\\n    ") + " &")
}
