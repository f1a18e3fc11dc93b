package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
)

// repeat is a container that says what it is told, and ends when it is told "bye".
const repeat = `while read -r line; do [ "$line" = bye ] && exit 0; echo "$line"; done`

// streamProtocols are the ways in which kubectl opens streams.
var streamProtocols = []struct {
	name        string
	method      string // with which the stream is asked for
	environment []string
}{
	{"websocket", "get", nil}, // the default
	{"SPDY", "create", []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"}},
}

// streams is a node with pods, and a user who may open streams to them through the proxy.
type streams struct {
	*world
	node       *kubelet.Kubelet
	kubeconfig string   // of user pinny
	home       string   // keeps the user's credential between calls of kubectl
	protocol   []string // environment that chooses the protocol
}

// startStreams adds a node to the cluster until the test ends.
func startStreams(t *testing.T) *streams {
	t.Helper()
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	name := "node-" + strings.ToLower(t.Name())
	node, err := kubelet.Start(t.Context(), w.Cluster, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("closing the node: %v", err)
		}
		_ = w.admin.Delete(context.WithoutCancel(t.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
	s := &streams{world: w, node: node, home: t.TempDir()}
	w.permit(t, "pinny", "create", "pods/exec", "pods/attach", "pods/portforward")
	// A websocket is asked for with GET, for which the API server wants get besides create.
	w.permit(t, "pinny", "get", "pods", "pods/log", "pods/exec", "pods/attach", "pods/portforward")
	s.kubeconfig = w.userKubeconfig(t, "pinny:password123")
	s.run(t, "warm-up", repeat)
	// What was refused a moment ago may still be remembered, and the API server may still take the APIs of agents that the
	// test before has stopped for unavailable.
	testkit.Eventually(t, 30*time.Second, func() error {
		if got := s.kubectl(t, nil, "exec", "warm-up", "--", "true"); got.code != 0 {
			return fmt.Errorf("kubectl exec: %s", got.errOut)
		}
		return nil
	})
	return s
}

// over returns the same, with kubectl speaking another protocol.
func (s *streams) over(environment []string) *streams {
	other := *s
	other.protocol = environment
	return &other
}

// run starts a pod that lives until the test ends, and returns its directory.
func (s *streams) run(t *testing.T, name, script string) string {
	t.Helper()
	directory := t.TempDir()
	if err := s.node.Run(
		t.Context(),
		kubelet.Pod{Namespace: "default", Name: name, Command: []string{"sh", "-c", script}, Dir: directory},
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		if err := s.admin.Delete(
			context.WithoutCancel(t.Context()),
			pod,
			&client.DeleteOptions{GracePeriodSeconds: &now},
		); err != nil {
			t.Errorf("deleting the pod: %v", err)
		}
	})
	return directory
}

func (s *streams) environment() []string { return append([]string{"HOME=" + s.home}, s.protocol...) }

// emptyMessage is what kubectl says when the empty message, with which an API server begins to speak over a
// websocket, arrives before kubectl has opened its side of the stream. It says so without the proxy, too. Had it
// thrown away more than that, the output would lack it.
var emptyMessage = regexp.MustCompile(`(?m)^E\d{4} .* Unknown stream id 1, discarding message\r?(\n|$)`)

// kubectl runs kubectl as user pinny through the proxy.
func (s *streams) kubectl(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	got := s.runWith(
		t,
		s.environment(),
		stdin,
		s.world.kubectl,
		append([]string{"--kubeconfig=" + s.kubeconfig}, args...)...)
	got.errOut = emptyMessage.ReplaceAllString(got.errOut, "")
	return got
}

// background is a kubectl that goes on while the test does.
type background struct {
	*exec.Cmd
	stdin  io.WriteCloser
	lines  chan string // of standard output; closed at its end
	errOut *testkit.Buffer
}

func (s *streams) start(t *testing.T, args ...string) *background {
	t.Helper()
	command := exec.CommandContext(
		t.Context(),
		s.world.kubectl,
		append([]string{"--kubeconfig=" + s.kubeconfig}, args...)...)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH")}, s.environment()...)
	b := &background{Cmd: command, lines: make(chan string, 1000), errOut: &testkit.Buffer{}}
	command.Stderr = b.errOut
	var err error
	if b.stdin, err = command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			b.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return b
}

func (b *background) say(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(b.stdin, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// next returns the next line of standard output.
func (b *background) next(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-b.lines:
		if !ok {
			t.Fatalf("kubectl has ended: %s", b.errOut)
		}
		return line
	case <-time.After(15 * time.Second):
		t.Fatalf("kubectl says nothing: %s", b.errOut)
		return ""
	}
}

// finished waits for kubectl's end and returns its exit code.
func (b *background) finished(t *testing.T) int {
	t.Helper()
	for range b.lines { // until the end of its output
	}
	_ = b.Wait()
	return b.ProcessState.ExitCode()
}

// permit lets a user do something everywhere, until the test ends.
func (w *world) permit(t *testing.T, user, verb string, resources ...string) {
	t.Helper()
	name := strings.ReplaceAll(strings.ToLower(fmt.Sprintf("%s-%s-%s-%s", t.Name(), user, verb, resources[0])), "/", ":")
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: resources, Verbs: []string{verb}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	for _, object := range []client.Object{role, binding} {
		if err := w.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.admin.Delete(context.WithoutCancel(t.Context()), object) })
	}
}

// user makes a client configuration and a kubeconfig for a user with a certificate of the cluster's CA, through the
// proxy.
func (w *world) user(t *testing.T, name string) (*rest.Config, string) {
	t.Helper()
	config, err := w.Cluster.User(name)
	if err != nil {
		t.Fatal(err)
	}
	config.Host, config.CAData = "https://"+w.endpoint(), w.pki.CertPEM()
	path := filepath.Join(t.TempDir(), name+".kubeconfig")
	if err := w.Cluster.WriteKubeconfig(path, config); err != nil {
		t.Fatal(err)
	}
	return config, path
}

// audited returns the verbs of the API server's audit events that are about a pod's subresource.
func (w *world) audited(t *testing.T, pod, subresource string) []string {
	t.Helper()
	log, err := os.Open(w.Cluster.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // only read
	var verbs []string
	for decoder := json.NewDecoder(log); ; {
		var event struct {
			Verb             string
			ObjectRef        struct{ Name, Subresource string }
			ImpersonatedUser struct{ Username string }
		}
		if err := decoder.Decode(&event); err != nil {
			return verbs // the last event may be half-written
		}
		if event.ObjectRef.Name == pod && event.ObjectRef.Subresource == subresource {
			verbs = append(verbs, event.Verb+" by "+event.ImpersonatedUser.Username)
		}
	}
}
