package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestStreams opens every kind of stream with kubectl through the proxy, over both protocols.
func TestStreams(t *testing.T) {
	s := startStreams(t)
	for _, protocol := range streamProtocols {
		s, pod := s.over(protocol.environment), "pod-"+strings.ToLower(protocol.name)
		directory := s.run(t, pod, repeat)
		t.Run(protocol.name, func(t *testing.T) {
			t.Run("exec", func(t *testing.T) { execStreams(t, s, pod) })
			t.Run("terminal", func(t *testing.T) { terminalStreams(t, s, pod) })
			t.Run("port-forward", func(t *testing.T) { portForwardStreams(t, s, pod) })
			t.Run("cp", func(t *testing.T) { copies(t, s, pod, directory) })
			t.Run("attach and logs", func(t *testing.T) { attachAndLogs(t, s, pod) }) // the container ends with it
			for _, subresource := range []string{"exec", "portforward", "attach"} {
				// kubectl falls back to SPDY when websockets fail: check the API server's audit log.
				want := protocol.method + " by pinny"
				if verbs := s.audited(t, pod, subresource); len(verbs) == 0 ||
					slices.ContainsFunc(verbs, func(v string) bool { return v != want }) {
					t.Errorf("the API server saw %q for %s, want only %q", verbs, subresource, want)
				}
			}
		})
	}
}

func execStreams(t *testing.T, s *streams, pod string) {
	t.Helper()
	payload := randomBytes(1 << 20)
	got := s.kubectl(t, bytes.NewReader(payload), "exec", "-i", pod, "--", "cat")
	if got.code != 0 || got.out != string(payload) {
		t.Errorf("cat ended with %d and gave %d bytes, of %d and %t the same: %s", got.code, len(got.out), len(payload),
			got.out == string(payload), got.errOut)
	}
	got = s.kubectl(t, nil, "exec", pod, "--", "sh", "-c", "echo to out; echo to err >&2; exit 42")
	if got.code != 42 || got.out != "to out\n" || !strings.HasPrefix(got.errOut, "to err\n") {
		t.Errorf("it ended with %d, out %q, err %q", got.code, got.out, got.errOut)
	}
	// Before the end of its input.
	got = s.kubectl(t, strings.NewReader("first\nsecond\n"), "exec", "-i", pod, "--", "sh", "-c",
		"read a; echo got $a; exit 3")
	if got.code != 3 || got.out != "got first\n" {
		t.Errorf("it ended with %d, out %q, err %q", got.code, got.out, got.errOut)
	}
}

func terminalStreams(t *testing.T, s *streams, pod string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), s.world.kubectl, "--kubeconfig="+s.kubeconfig, "exec", "-it", pod, "--",
		"sh", "-c",
		`trap "stty size; exit 7" WINCH; stty size; tty >/dev/null && echo terminal; while :; do sleep 0.02; done`)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TERM=xterm"}, s.environment()...)
	terminal := must.Get(pty.StartWithSize(command, &pty.Winsize{Rows: 31, Cols: 101}))(t)
	defer terminal.Close() //nolint:errcheck // only read
	ended := make(chan string, 1)
	lines := make(chan string, 100)
	go func() {
		var all strings.Builder
		for scanner := bufio.NewScanner(terminal); scanner.Scan(); { // until EIO, when kubectl has exited
			line := strings.TrimSpace(scanner.Text())
			if emptyMessage.MatchString(line) {
				continue
			}
			all.WriteString(line + "\n")
			lines <- line
		}
		ended <- all.String()
	}()
	for _, want := range []string{"31 101", "terminal"} {
		select {
		case line := <-lines:
			if line != want {
				t.Errorf("want %q, got %q", want, line)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %q", want)
		}
	}
	must.Do(t, pty.Setsize(terminal, &pty.Winsize{Rows: 44, Cols: 111}))
	select {
	case said := <-ended:
		if !strings.Contains(said, "44 111\n") {
			t.Errorf("the new size did not arrive: %q", said)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the program did not notice the new size")
	}
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("kubectl ended with %v, want exit code 7", err)
	}
}

func portForwardStreams(t *testing.T, s *streams, pod string) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		_, _ = fmt.Fprintf(w, "%s %s %x", req.Method, req.URL.Path, sha256.Sum256(body))
	}))
	defer web.Close()
	afterwards := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t) // responds when the client is done
	defer afterwards.Close()                                    //nolint:errcheck // an error does not affect the test
	go respondAfterwards(afterwards)

	port := func(address net.Addr) string { return strconv.Itoa(address.(*net.TCPAddr).Port) }
	forward := s.start(t, "port-forward", "--address=127.0.0.1", "pod/"+pod, ":"+port(web.Listener.Addr()),
		":"+port(afterwards.Addr()))
	local := map[string]string{}
	for range 2 { // Forwarding from 127.0.0.1:45617 -> 8080
		words := strings.Fields(forward.next(t))
		if len(words) != 5 {
			t.Fatalf("kubectl says %q", words)
		}
		local[words[4]] = words[2]
	}

	payload := randomBytes(1 << 20)
	httpClient := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{}}
	defer httpClient.CloseIdleConnections()
	for range 3 {
		response, err := httpClient.Post(
			"http://"+local[port(web.Listener.Addr())]+"/path",
			"application/octet-stream",
			bytes.NewReader(payload),
		)
		if err != nil {
			t.Fatalf("%v: %s", err, forward.errOut)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if want := fmt.Sprintf("POST /path %x", sha256.Sum256(payload)); err != nil || string(body) != want {
			t.Errorf("want %q, got %q, %v", want, body, err)
		}
	}

	connection := must.Get(net.Dial("tcp", local[port(afterwards.Addr())]))(t)
	defer connection.Close() //nolint:errcheck // read to its end below
	_ = connection.SetDeadline(time.Now().Add(15 * time.Second))
	must.Get(connection.Write(payload))(t)
	must.Do(t, connection.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(connection)
	if err != nil || !bytes.Equal(answer, payload) {
		t.Errorf("after our half was closed, %d bytes came back, %v: %s", len(answer), err, forward.errOut)
	}
}

// respondAfterwards returns all its input when the client has closed its half.
func respondAfterwards(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close() //nolint:errcheck // an error does not affect the test
			if got, err := io.ReadAll(connection); err == nil {
				_, _ = connection.Write(got)
			}
		}()
	}
}

func copies(t *testing.T, s *streams, pod, directory string) {
	t.Helper()
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("kubectl cp needs tar in the container, which is this machine")
	}
	payload, here := randomBytes(3<<20+17), t.TempDir()
	source, back := filepath.Join(here, "source"), filepath.Join(here, "back")
	must.Do(t, os.WriteFile(source, payload, 0o600))
	s.kubectl(t, nil, "cp", source, pod+":"+filepath.Join(directory, "there")).ok(t)
	if there, err := os.ReadFile(filepath.Join(directory, "there")); err != nil || !bytes.Equal(there, payload) {
		t.Errorf("%d bytes arrived, of %d: %v", len(there), len(payload), err)
	}
	s.kubectl(t, nil, "cp", pod+":"+filepath.Join(directory, "there"), back).ok(t)
	if again, err := os.ReadFile(back); err != nil || !bytes.Equal(again, payload) {
		t.Errorf("%d bytes came back, of %d: %v", len(again), len(payload), err)
	}
}

// attachAndLogs attaches one kubectl to a container, and follows its log with another.
func attachAndLogs(t *testing.T, s *streams, pod string) {
	t.Helper()
	attached := s.start(t, "attach", "-i", pod)
	logs := s.start(t, "logs", "-f", pod)
	for i := range 5 { // each line arrives before the next one is written
		line := fmt.Sprintf("line %d", i)
		attached.say(t, line)
		if got := attached.next(t); got != line {
			t.Errorf("attach: want %q, got %q", line, got)
		}
		if got := logs.next(t); got != line {
			t.Errorf("logs -f: want %q, got %q", line, got)
		}
	}
	if got := s.kubectl(t, nil, "logs", "--tail=2", pod); got.code != 0 || got.out != "line 3\nline 4\n" {
		t.Errorf("logs --tail ended with %d, out %q, err %q", got.code, got.out, got.errOut)
	}
	attached.say(t, "bye") // ends the container
	if code := attached.finished(t); code != 0 {
		t.Errorf("attach ended with %d: %s", code, attached.errOut)
	}
	if code := logs.finished(t); code != 0 {
		t.Errorf("logs -f ended with %d: %s", code, logs.errOut)
	}
}

// randomBytes returns incompressible bytes, always the same.
func randomBytes(size int) []byte {
	bytes := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(bytes)
	return bytes
}

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
