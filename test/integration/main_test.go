// Package integration tests the product end to end on a real API server: certificate, Secret, `pinniped ip-tls set`,
// the agent, `pinniped get kubeconfig`, kubectl. Programs run as processes, with the shipped manifests.
package integration

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// world is the environment of the tests, usually shared: a cluster with the product installed, two replicas of the
// agent, and a webhook with user pinny.
type world struct {
	*devinstall.Installation
	admin   client.Client
	agents  []*devinstall.Agent
	users   *devinstall.LocalUsers
	cli     string // bin/pinniped
	kubectl string
	pki     *certs.CA
	// issuerName is the name of the CredentialIssuer, if it is not the default one.
	issuerName string
	// freshLog is the replicas' log from before the tests.
	freshLog []string
	// ownPermissions means that the agent has other permissions than the shipped ones.
	ownPermissions bool
	// signs means that the cluster issues certificates: deploy/clustersigner is tested.
	signs bool
}

var shared *world

// clusters is the folder of the control planes of all worlds. Their audit logs are read after all tests.
var (
	clusters    string
	permissions watchedPermissions
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run()) // each test reports that it is skipped
	}
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // the node's library logs every broken stream, and there are thousands
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	directory, err := os.MkdirTemp("", "pinniped-integration-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(directory) //nolint:errcheck // a temporary directory
	clusters = directory
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	shared, err = newWorld(ctx, directory, devcluster.Options{})
	if shared != nil && shared.Installation != nil {
		defer shared.Cluster.Stop() //nolint:errcheck // the process ends
	}
	if err == nil {
		err = shared.start(ctx)
	}
	if err != nil {
		return complain(err)
	}
	code := m.Run()
	if code != 0 {
		for _, agent := range shared.agents {
			showTail(agent.Log())
		}
		return code
	}
	if err := permissions.check(shared.Deploy, os.Stderr); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func complain(err error) int {
	_, _ = fmt.Fprintln(os.Stderr, "setting up the integration tests:", err)
	return 1
}

func showTail(path string) {
	content, err := os.ReadFile(path)
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	lines = lines[max(0, len(lines)-25):]
	_, _ = fmt.Fprintf(os.Stderr, "--- the end of %s\n%s\n", path, strings.Join(lines, "\n"))
}

// auditPolicy logs every request, without its body.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules: [{level: Metadata}]
omitStages: [RequestReceived]
`

// newWorld starts a cluster without the product. It uses the programs of the shared world, which builds them.
func newWorld(ctx context.Context, directory string, options devcluster.Options) (*world, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	w := &world{signs: options.ControllerManager}
	var agentBinary string
	if shared != nil {
		w.cli, agentBinary = shared.cli, shared.Binary
	} else {
		if err := devinstall.Build(ctx, root, directory); err != nil {
			return nil, err
		}
		w.cli, agentBinary = filepath.Join(directory, "pinniped"), filepath.Join(directory, "pinniped-agent")
	}
	if options.Dir, err = os.MkdirTemp(clusters, "cluster-"); err != nil {
		return nil, err
	}
	options.AuditPolicy = []byte(auditPolicy)
	cluster, err := devcluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	permissions.watch(w)
	w.Installation = &devinstall.Installation{Cluster: cluster, Binary: agentBinary, Deploy: filepath.Join(root, "deploy")}
	if w.kubectl, err = cluster.Kubectl(); err != nil {
		return w, err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return w, err
	}
	apis.AddToScheme(scheme, apis.DefaultGroupSuffix)
	if w.admin, err = client.New(cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return w, err
	}
	if w.pki, err = certs.NewCA("Example Corporate CA", time.Now(), 100*24*time.Hour); err != nil {
		return w, err
	}
	return w, nil
}

// ownWorld returns a world without the product that only this test uses.
func ownWorld(t *testing.T, options devcluster.Options) *world {
	t.Helper()
	needsCluster(t)
	w, err := newWorld(t.Context(), t.TempDir(), options)
	if w != nil && w.Installation != nil {
		testkit.Cleanup(t, w.Cluster.Stop)
	}
	testkit.SkipWithoutControllerManager(t, err)
	must.Do(t, err)
	return w
}

// start installs the product and starts two replicas.
func (w *world) start(ctx context.Context) error {
	if err := w.Install(ctx); err != nil {
		return err
	}
	return w.startAll(ctx, nil, "agent-a", "agent-b")
}

// startAll starts the webhook, and replicas of the agent with the same settings. It creates user pinny.
func (w *world) startAll(ctx context.Context, settings []string, replicas ...string) error {
	var err error
	if w.users, err = w.StartLocalUsers(ctx); err != nil {
		return err
	}
	for _, name := range replicas {
		agent, err := w.StartAgent(ctx, name, settings...)
		if err != nil {
			return err
		}
		w.agents = append(w.agents, agent)
	}
	if err := w.WaitAvailable(ctx); err != nil {
		return err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte("password123"), bcrypt.MinCost)
	if err != nil {
		return err
	}
	if err := w.createUser(ctx, "pinny", string(hash), "group-for-mtls"); err != nil {
		return err
	}
	if err := w.createWebhookAuthenticator(ctx); err != nil {
		return err
	}
	w.freshLog, _, err = w.logLines(nil)
	return err
}

// result is the result of a command.
type result struct {
	command, out, errOut string
	code                 int
}

func (r result) String() string {
	return fmt.Sprintf("%s ended with %d\nstdout: %s\nstderr: %s", r.command, r.code, r.out, r.errOut)
}

// ok stops the test unless the command succeeded.
func (r result) ok(t *testing.T) result {
	t.Helper()
	if r.code != 0 {
		t.Fatal(r)
	}
	return r
}

// err returns an error unless the command succeeded.
func (r result) err() error {
	if r.code != 0 {
		return errors.New(r.String())
	}
	return nil
}

// exits checks the exit code, and the output: that on stdout if the command should succeed, else that on stderr.
func (r result) exits(t *testing.T, code int, want string) result {
	t.Helper()
	said := r.errOut
	if code == 0 {
		said = r.out
	}
	if r.code != code || !strings.Contains(said, want) {
		t.Fatalf("want exit code %d and %q: %s", code, want, r)
	}
	return r
}

// fails checks that the command failed with this error.
func (r result) fails(t *testing.T, want string) {
	t.Helper()
	if r.code == 0 || !strings.Contains(r.errOut, want) {
		t.Errorf("want the error %q: %s", want, r)
	}
}

// run runs a program in its own environment: without a home directory, and with no kubeconfig except in the arguments.
func (w *world) run(t *testing.T, program string, args ...string) result {
	t.Helper()
	return w.runWith(t, nil, nil, program, args...)
}

func (w *world) runWith(t *testing.T, environment []string, stdin io.Reader, program string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environment...)
	command.Stdin, command.Stdout, command.Stderr = stdin, &out, &errOut
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", program, err)
	}
	line := filepath.Base(program) + " " + strings.Join(args, " ")
	return result{line, out.String(), errOut.String(), command.ProcessState.ExitCode()}
}

// succeed runs a program that must succeed and returns its output.
func (w *world) succeed(t *testing.T, program string, args ...string) string {
	t.Helper()
	return w.run(t, program, args...).ok(t).out
}

// kubectlAs runs kubectl with a kubeconfig.
func (w *world) kubectlAs(t *testing.T, kubeconfig string, args ...string) result {
	t.Helper()
	return w.run(t, w.kubectl, append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
}

// kubectlDoes runs kubectl as the administrator. It must succeed.
func (w *world) kubectlDoes(t *testing.T, args ...string) string {
	t.Helper()
	return w.kubectlAs(t, w.Cluster.AdminKubeconfig(), args...).ok(t).out
}

// asAdmin runs the CLI with the administrator's kubeconfig.
func (w *world) asAdmin(t *testing.T, args ...string) result {
	t.Helper()
	return w.run(t, w.cli, append(args, "--kubeconfig="+w.Cluster.AdminKubeconfig())...)
}

func needsCluster(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("it needs a real API server, and -short leaves those out")
	}
	return shared
}
