package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestStreamsLeaveNothingBehind ends two thousand streams abruptly in every way, and checks what the agent, the API
// server and the node still hold.
func TestStreamsLeaveNothingBehind(t *testing.T) {
	s := startStreams(t)
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("open files of another process are counted in /proc")
	}
	const pod = "left"
	s.run(t, pod, repeat)
	s.permit(t, "leaver", "get", "pods/exec", "pods/attach", "pods/portforward", "pods/log")
	s.permit(t, "leaver", "create", "pods/exec", "pods/attach", "pods/portforward")
	config, _ := s.user(t, "leaver")
	testkit.Eventually(t, 5*time.Second, func() error {
		got, err := askForStream(t, s, config, "GET", pod+"/exec?command=true&stdout=true", websocketHeaders("exec"))
		if err == nil && got.code != http.StatusSwitchingProtocols {
			err = fmt.Errorf("exec is answered with %d", got.code)
		}
		return err
	})

	for range 4 { // opens the connections to the API server that stay open for reuse
		s.abandon(t, config, pod, 8, false)
	}
	s.kill(t, pod, 2)
	before, goroutines := s.settled(t), scrape(t, s.agents[0])["go_goroutines"]

	const rounds, each = 50, 40
	for range rounds {
		s.abandon(t, config, pod, each, false)
	}
	s.kill(t, pod, 10)
	s.abandon(t, config, pod, each, true)
	var after int
	testkit.Eventually(t, 30*time.Second, func() error {
		// Two: the agent's own timers and watches may open a connection.
		if after = s.settled(t); after > before+2 {
			return fmt.Errorf("the agent has %d open files, before it were %d", after, before)
		}
		return nil
	})
	testkit.Eventually(t, 30*time.Second, func() error {
		// Ten: connections in use have more goroutines than idle ones.
		if n := scrape(t, s.agents[0])["go_goroutines"]; n == 0 || n > goroutines+10 {
			return fmt.Errorf("the agent has %v goroutines, before it were %v", n, goroutines)
		}
		return nil
	})
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := s.node.Connections(); n > 0 {
			return fmt.Errorf("the API server still has %d connections to the node", n)
		}
		return nil
	})
	t.Logf("%d open files before, %d after %d streams", before, after, (rounds+1)*each+20)
	if got := s.kubectl(t, nil, "exec", pod, "--", "echo", "still here"); got.out != "still here\n" {
		t.Errorf("afterwards, kubectl exec ended with %d: %s", got.code, got.errOut)
	}
}

// abandon opens streams of all kinds at once. Then the node drops them, or the client does, in turn with a reset,
// without a close_notify, or with a close of only its half.
func (s *streams) abandon(t *testing.T, config *rest.Config, pod string, count int, byNode bool) {
	t.Helper()
	asks := []struct{ method, path, upgrade string }{
		{"GET", "/exec?command=cat&stdin=true&stdout=true", websocketHeaders("exec")},
		{"POST", "/exec?command=sleep&command=1000&stdout=true", spdyHeaders("exec")},
		{"GET", "/attach?stdin=true&stdout=true", websocketHeaders("attach")},
		{"POST", "/attach?stdout=true", spdyHeaders("attach")},
		{"GET", "/portforward?ports=80", websocketHeaders("portforward")},
		{"POST", "/portforward?ports=80", spdyHeaders("portforward")},
		{"GET", "/log?follow=true", ""},
	}
	var open sync.WaitGroup
	connections := make([]net.Conn, count)
	for i := range count {
		open.Go(func() {
			ask := asks[i%len(asks)]
			connection, err := s.dial(config, s.endpoint())
			if err != nil {
				t.Error(err)
				return
			}
			connections[i] = connection
			//nolint:bodyclose // closing it would wait for the end of the log
			response, err := requestStream(connection, ask.method, pod+ask.path, ask.upgrade)
			if err != nil {
				t.Errorf("%s %s: %v", ask.method, ask.path, err)
				return
			}
			if want := http.StatusSwitchingProtocols; response.StatusCode != want && ask.upgrade != "" {
				t.Errorf("%s %s is answered with %s", ask.method, ask.path, response.Status)
			}
		})
	}
	open.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if byNode {
		s.node.Drop()
	}
	for i, connection := range connections {
		over := connection.(interface{ NetConn() net.Conn })
		tcp := over.NetConn().(*net.TCPConn)
		switch {
		case byNode: // the API server keeps some streams as long as the client does
			_ = tcp.Close()
		case i%3 == 0:
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		case i%3 == 1:
			_ = tcp.Close()
		default: // only closes this half, in TLS
			_ = connection.Close()
		}
	}
}

// kill starts kubectl and kills it in the middle of a stream.
func (s *streams) kill(t *testing.T, pod string, count int) {
	t.Helper()
	for i := range count {
		s := s.over(streamProtocols[i%len(streamProtocols)].environment)
		running := s.start(t, "exec", "-i", pod, "--", "sh", "-c", "echo open; exec cat")
		if got := running.next(t); got != "open" {
			t.Errorf("kubectl says %q: %s", got, running.errOut)
		}
		must.Do(t, running.Process.Kill())
		running.finished(t)
	}
}

// settled waits until the number of the agent's open files is stable, and returns it.
func (s *streams) settled(t *testing.T) int {
	t.Helper()
	last, same := -1, 0
	testkit.Eventually(t, 20*time.Second, func() error {
		now := openFiles(t, s.agents[0].PID())
		if now != last {
			last, same = now, 0
		}
		if same++; same < 25 {
			return fmt.Errorf("the number of open files still changes, and is %d", now)
		}
		return nil
	})
	return last
}

// openFiles returns the number of a process's files and sockets.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries := must.Get(os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd")))(t)
	count := 0
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "fd", entry.Name()))
		if err == nil && (strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, "pipe:")) {
			count++
		}
	}
	return count
}
