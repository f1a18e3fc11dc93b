package integration

import (
	"bufio"
	"context"
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
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// repeat is a container that prints its input, and ends at "bye".
const repeat = `while read -r line; do [ "$line" = bye ] && exit 0; echo "$line"; done`

// streamProtocols are the protocols with which kubectl opens streams.
var streamProtocols = []struct {
	name        string
	method      string // of the request for the stream
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
	home       string   // keeps the user's credential between runs of kubectl
	protocol   []string // environment that selects the protocol
}

// startStreams adds a node to the cluster until the test ends.
func startStreams(t *testing.T) *streams {
	t.Helper()
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	name := "node-" + strings.ToLower(t.Name())
	node := must.Get(kubelet.Start(t.Context(), w.Cluster, name))(t)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("closing the node: %v", err)
		}
		_ = w.admin.Delete(context.WithoutCancel(t.Context()), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
	s := &streams{world: w, node: node, home: t.TempDir()}
	w.permit(t, "pinny", "create", "pods/exec", "pods/attach", "pods/portforward")
	// A websocket is requested with GET, for which the API server requires get in addition to create.
	w.permit(t, "pinny", "get", "pods", "pods/log", "pods/exec", "pods/attach", "pods/portforward")
	s.kubeconfig = w.userKubeconfig(t, "pinny:password123")
	s.run(t, "warm-up", repeat)
	// A denial may still be cached, and the API server may not have noticed that the APIs are available again after the
	// test before stopped the agents.
	testkit.Eventually(t, 30*time.Second, func() error { return s.kubectl(t, nil, "exec", "warm-up", "--", "true").err() })
	return s
}

// over returns a copy whose kubectl uses another protocol.
func (s *streams) over(environment []string) *streams {
	other := *s
	other.protocol = environment
	return &other
}

// run starts a pod until the end of the test, and returns its directory.
func (s *streams) run(t *testing.T, name, script string) string {
	t.Helper()
	directory := t.TempDir()
	must.Do(t, s.node.Run(
		t.Context(),
		kubelet.Pod{Namespace: "default", Name: name, Command: []string{"sh", "-c", script}, Dir: directory},
	))
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

// emptyMessage is what kubectl prints if the empty message with which an API server starts a websocket arrives before
// kubectl has created its side of the stream. This happens without the proxy, too. The tests would notice lost output.
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

// background is a kubectl that runs in the background.
type background struct {
	*exec.Cmd
	stdin  io.WriteCloser
	lines  chan string // of stdout; closed at its end
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
	b.stdin = must.Get(command.StdinPipe())(t)
	out := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
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
	must.Get(io.WriteString(b.stdin, line+"\n"))(t)
}

// next returns the next line of stdout.
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

// finished waits until kubectl exits, and returns its exit code.
func (b *background) finished(t *testing.T) int {
	t.Helper()
	for range b.lines { // until the end of its output
	}
	_ = b.Wait()
	return b.ProcessState.ExitCode()
}

// permit grants a user a verb on resources everywhere, until the end of the test.
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
	w.create(t, role, binding)
}

// user returns a client configuration and a kubeconfig for the proxy, of a user with a certificate of the cluster's CA.
func (w *world) user(t *testing.T, name string) (*rest.Config, string) {
	t.Helper()
	config := must.Get(w.Cluster.User(name))(t)
	config.Host, config.CAData = "https://"+w.endpoint(), w.pki.CertPEM()
	path := filepath.Join(t.TempDir(), name+".kubeconfig")
	must.Do(t, w.Cluster.WriteKubeconfig(path, config))
	return config, path
}

// audited returns the verbs of the API server's audit events for a pod's subresource.
func (w *world) audited(t *testing.T, pod, subresource string) (verbs []string) {
	t.Helper()
	for event := range w.audit(t) {
		if event.ObjectRef.Name == pod && event.ObjectRef.Subresource == subresource {
			verbs = append(verbs, event.Verb+" by "+event.as())
		}
	}
	return verbs
}
