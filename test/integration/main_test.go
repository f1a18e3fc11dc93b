// Package integration tests the whole line on a real API server: certificate, Secret, `pinniped ip-tls set`, the
// agent, `pinniped get kubeconfig`, kubectl. Everything runs as a user runs it: programs as processes, with the
// shipped manifests.
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
)

// world is what all tests share: one cluster with the product installed, two replicas of the agent, a webhook with
// user pinny.
type world struct {
	*devinstall.Installation
	admin   client.Client
	agents  []*devinstall.Agent
	users   *devinstall.LocalUsers
	cli     string // bin/pinniped
	kubectl string
	pki     *certs.CA
	// freshLog is what the replicas logged until the tests began.
	freshLog []string
	// ownPermissions says that the agent has other rights here than the shipped ones.
	ownPermissions bool
	// signs says that the cluster issues certificates: deploy/clustersigner is tested.
	signs bool
}

var shared *world

// clusters is the folder of the control planes of all worlds. Their audit logs are read when all tests are done.
var (
	clusters string
	rights   watchedPermissions
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run()) // each test says that it is left out
	}
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // the node's library complains of every stream that is broken off, and thousands are
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
	shared, err = newWorld(ctx, directory)
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
	if err := rights.check(shared.Deploy, os.Stderr); err != nil {
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

// newWorld starts a cluster. Nothing is installed yet. The programs are those of the shared world, which builds them.
func newWorld(ctx context.Context, directory string) (*world, error) {
	return newWorldOn(ctx, directory, devcluster.Options{})
}

// auditPolicy has each request logged, without its content.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules: [{level: Metadata}]
omitStages: [RequestReceived]
`

// newWorldOn is newWorld with a cluster of another kind.
func newWorldOn(ctx context.Context, directory string, options devcluster.Options) (*world, error) {
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
	rights.watch(w)
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

// start installs the product and starts two replicas.
func (w *world) start(ctx context.Context) error {
	if err := w.Install(ctx); err != nil {
		return err
	}
	return w.startAll(ctx, nil, "agent-a", "agent-b")
}

// startAll starts the webhook, and replicas of the agent with the same settings. It makes user pinny.
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

// result is how a command ended.
type result struct {
	out, errOut string
	code        int
}

// run runs a program in an environment of its own: no home, no kubeconfig but the ones in the arguments.
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
	return result{out.String(), errOut.String(), command.ProcessState.ExitCode()}
}

// succeed runs a program that must succeed and returns its output.
func (w *world) succeed(t *testing.T, program string, args ...string) string {
	t.Helper()
	got := w.run(t, program, args...)
	if got.code != 0 {
		t.Fatalf(
			"%s %s ended with %d\nstdout: %s\nstderr: %s",
			filepath.Base(program),
			strings.Join(args, " "),
			got.code,
			got.out,
			got.errOut,
		)
	}
	return got.out
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
