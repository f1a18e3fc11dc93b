package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// loadBalancers pass TLS through, and end connections on which nothing was sent for 3 seconds.
var loadBalancers = []struct {
	name, debian, config string
	args                 []string // before the path of the configuration
}{
	{"haproxy", "haproxy", `
defaults
    mode tcp
    timeout connect 10s
    timeout client 3s
    timeout server 3s
listen passthrough
    bind 127.0.0.1:%d
    server agent %s
`, []string{"-db", "-f"}},
	{"nginx", "nginx-light libnginx-mod-stream", `
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {}
stream {
    server {
        listen 127.0.0.1:%d;
        proxy_pass %s;
        proxy_timeout 3s;
    }
}
`, []string{"-p", ".", "-c"}},
}

// TestLoadBalancers has users come through load balancers with short idle timeouts.
func TestLoadBalancers(t *testing.T) {
	s := startStreams(t)
	s.permit(t, "pinny", "list", "pods")
	s.permit(t, "pinny", "watch", "pods")
	for _, lb := range loadBalancers {
		t.Run(lb.name, func(t *testing.T) {
			endpoint := s.startLoadBalancer(t, lb.name, lb.debian, lb.config, lb.args)
			s.asAdmin(t, "ip-tls", "set", "--external-endpoint="+endpoint).ok(t)
			through := *s
			through.kubeconfig = s.userKubeconfig(t, "pinny:password123")
			// Without the variable, kubectl sends the first ping after 30 seconds.
			through.protocol = []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS=1"}
			execStreams(t, &through, "warm-up")

			pod := "behind-" + lb.name
			watch := through.start(t, "get", "pods", "--watch-only", "-o", "name")
			silence := time.After(6 * time.Second)
			select {
			case line, open := <-watch.lines:
				t.Fatalf("the silent watch ended, or said %q (open: %v): %s", line, open, watch.errOut)
			case <-silence:
			}
			through.run(t, pod, repeat)
			if line := watch.next(t); line != "pod/"+pod {
				t.Errorf("the watch said %q", line)
			}
		})
	}
}

// startLoadBalancer starts a load balancer in front of the first agent until the test ends, and returns its endpoint.
func (w *world) startLoadBalancer(t *testing.T, name, debian, config string, args []string) string {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		program = "/usr/sbin/" + name
		if _, err := os.Stat(program); err != nil {
			t.Skipf("needs %s (Debian: apt-get install %s)", name, debian)
		}
	}
	port := must.Get(w.Cluster.ReservePort())(t)
	command := exec.CommandContext(t.Context(), program, append(args, name+".conf")...)
	command.Dir = t.TempDir()
	text := fmt.Appendf(nil, config, port, w.agents[0].ProxyAddress())
	must.Do(t, os.WriteFile(filepath.Join(command.Dir, name+".conf"), text, 0o600))
	log := &testkit.Buffer{}
	command.Stdout, command.Stderr = log, log
	must.Do(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
	})
	testkit.Eventually(t, 10*time.Second, func() error {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return fmt.Errorf("%w; %s says: %s", err, name, strings.TrimSpace(log.String()))
		}
		return conn.Close()
	})
	return fmt.Sprintf("localhost:%d", port)
}
