//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/scenario"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// patience limits each command; some wait for a cloud.
const patience = 15 * time.Minute

// administrator runs commands in a folder of the test, with the administrator's kubeconfig.
type administrator struct {
	*scenario.Screen
	shell      *scenario.Shell
	dir        string
	kubeconfig string
	repository string
	manifests  string // the folder of the manifests for the agent
}

// newAdministrator creates an administrator. kubectl is the program's path, or "" for the one on the PATH.
func newAdministrator(t *testing.T, kubeconfig, kubectl string) *administrator {
	t.Helper()
	repository := must.Get(filepath.Abs(filepath.Join("..", "..")))(t)
	a := &administrator{
		Screen:     &scenario.Screen{Out: t.Output()},
		dir:        t.TempDir(),
		kubeconfig: kubeconfig,
		repository: repository,
	}
	a.manifests = filepath.Join(a.dir, "manifests")
	programs := os.Getenv(programsEnv)
	if programs == "" {
		programs = t.TempDir()
		must.Do(t, devinstall.Build(interrupted, repository, programs))
	}
	folders := []string{programs}
	if kubectl != "" {
		folders = append(folders, filepath.Dir(kubectl))
	}
	a.shell = scenario.OpenShell(a.Screen, a.dir, kubeconfig, folders...)
	return a
}

// tries runs a command, and returns its output.
func (a *administrator) tries(command string) (string, error) {
	ctx, cancel := context.WithTimeout(interrupted, patience)
	defer cancel()
	return a.shell.Run(ctx, command)
}

// does runs a command that must succeed, and returns its output.
func (a *administrator) does(t *testing.T, command string) string {
	t.Helper()
	text, err := a.tries(command)
	if err != nil {
		t.Fatal(errors.Join(err, interrupted.Err()))
	}
	return text
}

// fails runs a command that must fail with a message that contains want.
func (a *administrator) fails(t *testing.T, command, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(interrupted, patience)
	defer cancel()
	if err := a.shell.Fails(ctx, command, want); err != nil {
		t.Fatal(errors.Join(err, interrupted.Err()))
	}
}

// soon runs a command until it succeeds, and returns its output.
func (a *administrator) soon(t *testing.T, command string) string {
	t.Helper()
	text, err := a.shell.Soon(interrupted, command, time.Minute)
	if err != nil {
		t.Fatal(errors.Join(err, interrupted.Err()))
	}
	return text
}

// reads runs a command without logging it, and returns its output.
func (a *administrator) reads(command string) (string, error) {
	quiet := *a.shell
	quiet.Screen = &scenario.Screen{Out: io.Discard}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(interrupted), time.Minute)
	defer cancel()
	text, err := quiet.Run(ctx, command)
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return text, nil
}

// afterwards runs a command at the end of the test, even if it fails.
func (a *administrator) afterwards(t *testing.T, command string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(interrupted), patience)
		defer cancel()
		if _, err := a.shell.Run(ctx, command); err != nil {
			t.Errorf("cleaning up: %v\nrun it by hand, in %s: %s", err, a.dir, command)
		}
	})
}

// background runs a command until the end of the test. It returns when the command has printed want.
func (a *administrator) background(t *testing.T, command, want string) (*scenario.Background, error) {
	t.Helper()
	a.Command(command + " &")
	quiet := *a.shell
	quiet.Screen = &scenario.Screen{Out: io.Discard}
	running := must.Get(quiet.Start(context.WithoutCancel(interrupted), command))(t)
	t.Cleanup(running.Stop)
	if err := running.WaitFor(interrupted, want, time.Minute); err != nil {
		return nil, fmt.Errorf("%q: %w; it printed:\n%s", command, err, running.Text())
	}
	return running, nil
}

// mayBegin fails unless the cluster has no Concierge, or one that may be used. It changes nothing.
func (a *administrator) mayBegin(t *testing.T, use bool) {
	t.Helper()
	a.Title("Look what is there")
	nodes := a.does(t, "kubectl get nodes --output name")
	found := a.does(t, `kubectl get --ignore-not-found --output name \
    customresourcedefinitions/credentialissuers.config.concierge.pinniped.dev namespaces/pinniped-concierge`)
	users := a.does(t, "kubectl get --ignore-not-found --output name namespaces/local-user-authenticator")
	switch {
	case nodes == "":
		t.Fatal("refused: the cluster has no nodes on which the agent could run; nothing was changed")
	case found != "" && !use:
		t.Fatalf("refused: a Concierge is installed on this cluster; nothing was changed. It has\n%s"+
			"hint: %s=use uses it: for some minutes its users meet other certificates, and then its configuration is put back",
			found, installedEnv)
	case strings.Count(found, "\n") != 2 && use:
		t.Fatalf("refused: %s=use, but no Concierge is installed in the namespace pinniped-concierge; nothing was changed",
			installedEnv)
	case users != "":
		t.Fatal("refused: the test installs a local-user-authenticator, and there is one; nothing was changed. " +
			"It belongs to somebody: take another cluster, or remove the namespace local-user-authenticator")
	}
}

// install installs the agent until the end of the test, as `make install` does.
func (a *administrator) install(t *testing.T, image, timeout string) {
	t.Helper()
	a.Title("Install the agent")
	installed := scenario.Quote(filepath.Join(a.manifests, "install.yaml"))
	a.afterwards(
		t,
		"if [ -e "+installed+" ]; then kubectl delete --ignore-not-found --timeout=5m --filename "+installed+"; fi",
	)
	a.does(t, "MANIFESTS="+scenario.Quote(a.manifests)+" TIMEOUT="+timeout+" "+
		scenario.Quote(filepath.Join(a.repository, "hack", "install.sh"))+" "+scenario.Quote(image))
	if timeout == "0" { // no pod runs with the configuration from which the agent creates it
		a.does(
			t,
			"kubectl apply --server-side --filename "+scenario.Quote(filepath.Join(a.manifests, "credentialissuer.yaml")),
		)
	}
}

// issuer is the part of a CredentialIssuer that administrators own.
type issuer struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec map[string]any `json:"spec"`
}

func (a *administrator) issuer(t *testing.T) *issuer {
	t.Helper()
	text := must.Get(a.reads("kubectl get credentialissuer pinniped-concierge-config --output json"))(t)
	read := &issuer{}
	must.Do(t, json.Unmarshal([]byte(text), read))
	return read
}

// differs returns an error with the difference to other.
func (i *issuer) differs(other *issuer) error {
	if diff := cmp.Diff(other.Spec, i.Spec); diff != "" {
		return fmt.Errorf("the CredentialIssuer's spec has changed (-before +after):\n%s", diff)
	}
	if !maps.Equal(other.Metadata.Annotations, i.Metadata.Annotations) {
		return fmt.Errorf("the CredentialIssuer has annotations %v, not %v",
			i.Metadata.Annotations, other.Metadata.Annotations)
	}
	return nil
}

// keepConfiguration restores the CredentialIssuer at the end of the test.
func (a *administrator) keepConfiguration(t *testing.T) {
	t.Helper()
	before := a.issuer(t)
	annotations := before.Metadata.Annotations
	if annotations == nil {
		annotations = map[string]string{}
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/spec", "value": before.Spec},
		{"op": "add", "path": "/metadata/annotations", "value": annotations},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(a.dir, "configuration-before.json"), patch, 0o600)
	}
	must.Do(t, err)
	a.afterwards(t, `kubectl patch credentialissuer pinniped-concierge-config --type json \
    --patch-file configuration-before.json`)
}

// waitForReason waits until the impersonation proxy has this reason.
func (a *administrator) waitForReason(t *testing.T, reason string) {
	t.Helper()
	a.does(t, `kubectl wait --timeout=2m credentialissuer pinniped-concierge-config \
    --for='jsonpath={.status.strategies[?(@.type=="ImpersonationProxy")].reason}=`+reason+`'`)
}

// passing matches kinds whose objects come and go by themselves.
const passing = "^(events|events.events.k8s.io|leases.coordination.k8s.io|endpoints|endpointslices.discovery.k8s.io)$"

// inventory lists all objects of the cluster.
func (a *administrator) inventory(t *testing.T) []string {
	t.Helper()
	all := must.Get(a.listed())(t)
	return all
}

func (a *administrator) listed() ([]string, error) {
	text, err := a.reads(`kubectl get --all-namespaces --no-headers --ignore-not-found \
    --output custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name \
    "$(kubectl api-resources --verbs=list,delete --output name | grep -vE ` + scenario.Quote(passing) + ` | paste -sd, -)"`)
	return strings.Split(strings.TrimSpace(text), "\n"), err
}

// leaves waits until the cluster has the same objects as before.
func (a *administrator) leaves(t *testing.T, before []string) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func() error {
		after, err := a.listed()
		if err != nil {
			return err
		}
		if diff := cmp.Diff(before, after); diff != "" {
			return fmt.Errorf("something is left, or missing (-before +after):\n%s", diff)
		}
		return nil
	})
}
