package integration

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster/kubelet"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// testClients runs clients of several makes below `pinniped run`, with a kubeconfig that does not say as whom to act.
// They list, watch, and open streams.
func (w *world) testClients(t *testing.T, kubeconfig string) {
	t.Helper()
	node := must.Get(kubelet.Start(t.Context(), w.Cluster, "node-of-clients"))(t)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("closing the node: %v", err)
		}
	})
	const pod = "for-clients"
	must.Do(t, node.Run(t.Context(), kubelet.Pod{
		Namespace: "default", Name: pod, Command: []string{"sh", "-c", greet}, Dir: t.TempDir(),
	}))
	w.permit(t, "pinny", "*", "configmaps", "pods", "pods/exec", "pods/log", "pods/portforward", "secrets")
	environment := []string{"TOKEN=pinny:password123", "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=localhost"}
	run := []string{"run", "--kubeconfig=" + kubeconfig, "--"}
	for _, client := range clientPrograms(pod) {
		t.Run(client.name, func(t *testing.T) {
			client.check(t, w.runWith(t, environment, nil, w.cli, append(run, client.command(t)...)...))
		})
	}
	t.Run("kubectl port-forward", func(t *testing.T) { w.testForward(t, environment, kubeconfig, pod) })
	t.Run("kubectl as somebody else", func(t *testing.T) {
		w.runWith(t, environment, nil, w.cli, "kubectl", "--kubeconfig="+kubeconfig, "get", "pods", "--as=bob").
			fails(t, "cannot impersonate another user: omit --as")
	})
}

// greet is a container that repeat describes, and that logs a line first.
const greet = "echo says hello; " + repeat

// TestClients has programs with a kubeconfig whose plugin logs in.
func TestClients(t *testing.T) {
	s := startStreams(t)
	s.permit(t, "pinny", "*", "configmaps", "pods", "pods/exec", "pods/log", "secrets")
	const pod = "for-clients"
	s.run(t, pod, greet)
	testkit.Eventually(t, 20*time.Second, func() error { // a permission may still be cached as refused
		return s.kubectl(t, nil, "get", "secrets,pods").err()
	})
	environment := append(s.environment(), "KUBECONFIG="+s.kubeconfig)
	for _, client := range clientPrograms(pod) {
		t.Run(client.name, func(t *testing.T) {
			command := client.command(t)
			client.check(t, s.runWith(t, environment, nil, command[0], command[1:]...))
		})
	}
}

// clientProgram is a client of Kubernetes as its users install it.
type clientProgram struct {
	name    string
	command func(*testing.T) []string
	want    []string
}

// check fails the test unless the program succeeded and wrote what is wanted.
func (c clientProgram) check(t *testing.T, got result) {
	t.Helper()
	for _, want := range c.want {
		if !strings.Contains(got.out+got.errOut, want) {
			t.Errorf("no %q in: %s%s", want, got.out, got.errOut)
		}
	}
	if got.code != 0 {
		t.Errorf("it ended with %d: %s", got.code, got.errOut)
	}
}

// clientPrograms returns clients of several makes. They list, watch and open streams to a pod that prints its input.
func clientPrograms(pod string) []clientProgram {
	installed := func(name, from string, args ...string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			t.Helper()
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("needs %s: go install %s", name, from)
			}
			return append([]string{path}, args...)
		}
	}
	const script = "kubectl auth whoami -o jsonpath='user: {.status.userInfo.username}' && " +
		"kubectl get pods --namespace=default && kubectl exec --namespace=default %s -- echo from kubectl"
	return []clientProgram{
		{"kubectl", installed("sh", "", "-c", fmt.Sprintf(script, pod)), []string{"user: pinny", pod, "from kubectl"}},
		{"kubectl over SPDY", installed("env", "", "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "kubectl", "exec",
			"--namespace=default", pod, "--", "echo", "from SPDY"), []string{"from SPDY"}},
		{"python", func(t *testing.T) []string {
			t.Helper()
			return []string{pythonWithKubernetes(t), "testdata/clients/client.py", pod}
		}, []string{"user: pinny", "pods: " + pod, "watched: ADDED " + pod, "exec: from python"}},
		{"node", func(t *testing.T) []string {
			t.Helper()
			return []string{nodeWithKubernetes(t), "testdata/clients/client.mjs", pod}
		}, []string{"user: pinny", "pods: " + pod, "watched: ADDED " + pod, "exec: from node"}},
		{"helm 4", withHelm(helm), []string{"STATUS: deployed", "from-helm", "uninstalled"}},
		{"helm 3", withHelm(func(t *testing.T) string {
			t.Helper()
			return installed("helm3", "helm.sh/helm/v3/cmd/helm@v3, as helm3")(t)[0]
		}), []string{"STATUS: deployed", "from-helm", "uninstalled"}},
		{
			"stern", installed("stern", "github.com/stern/stern@v1", "--no-follow", "--namespace=default", pod),
			[]string{pod, "says hello"},
		},
		{"k9s", func(t *testing.T) []string {
			t.Helper()
			k9s := installed("k9s", "github.com/derailed/k9s@v0")(t)[0]
			// It needs a terminal, and ends only by a key.
			return []string{
				"script",
				"--quiet",
				"--return",
				"--command",
				"stty rows 40 cols 150; TERM=xterm timeout --foreground 15 " + k9s + " --readonly --namespace default --command pods || true",
				"/dev/null",
			}
		}, []string{pod}},
	}
}

// withHelm installs a chart, lists it and uninstalls it.
func withHelm(path func(*testing.T) string) func(*testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		return []string{"sh", "-ec", `"$0" install from-helm testdata/clients/chart --namespace default --wait
"$0" list --namespace default
"$0" uninstall from-helm --namespace default --wait`, path(t)}
	}
}

// testForward forwards a port, for as long as the client runs.
func (w *world) testForward(t *testing.T, environment []string, kubeconfig, pod string) {
	t.Helper()
	web := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }),
	)
	defer web.Close()
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	command := exec.CommandContext(t.Context(), w.cli, "kubectl", "--kubeconfig="+kubeconfig, "port-forward",
		"--namespace=default", "--address=127.0.0.1", "pod/"+pod, ":"+port)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environment...)
	out := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:45617 -> 8080
	words := strings.Fields(line)
	if err != nil || len(words) != 5 {
		t.Fatalf("kubectl says %q, %v", line, err)
	}
	response, err := (&http.Client{Timeout: 20 * time.Second}).Get("http://" + words[2])
	must.Do(t, err)
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || string(body) != "hello" {
		t.Errorf("got %q, %v", body, err)
	}
	must.Do(t, command.Process.Signal(os.Interrupt))
	_ = command.Wait() // by the signal
	testkit.Eventually(t, 10*time.Second, func() error {
		conn, err := net.DialTimeout("tcp", words[2], time.Second)
		if err != nil {
			return nil
		}
		_ = conn.Close()
		return errors.New("the port is open after the end")
	})
}

// pythonWithKubernetes returns a Python that has Kubernetes' official client.
func pythonWithKubernetes(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if path, err := exec.LookPath(name); err == nil &&
			exec.CommandContext(t.Context(), path, "-c", "import kubernetes").Run() == nil {
			return path
		}
	}
	t.Skip("needs Python's client (Debian: apt-get install python3-kubernetes)")
	return ""
}

// nodeWithKubernetes returns a node, for which Kubernetes' official client is installed.
func nodeWithKubernetes(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node (Debian: apt-get install nodejs npm)")
	}
	if _, err := os.Stat("testdata/clients/node_modules/@kubernetes/client-node"); err != nil {
		t.Skip(`needs node's client: run "make node-modules", with npm installed`)
	}
	return path
}

func helm(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/helm")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		if path, err = exec.LookPath("helm"); err != nil {
			t.Skip(fmt.Sprint(`needs helm: run "make bin/helm": `, err))
		}
	}
	return path
}
