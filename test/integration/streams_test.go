package integration

import (
	"bufio"
	"bytes"
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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

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
