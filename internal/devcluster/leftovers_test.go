package devcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests in this file run the test binary itself as the process that owns a cluster: see TestMain.
const (
	helperDirEnv  = "DEVCLUSTER_TEST_TMPDIR"
	helperModeEnv = "DEVCLUSTER_TEST_MODE"

	modeNoHandler = "no handler" // a signal kills the process
	modeStops     = "stops"      // on a signal, the process calls Stop
	modeExits     = "exits"      // the process exits without Stop
)

// runHelper starts a cluster in a temporary directory below dir, reports that on standard output, and waits.
func runHelper(dir, mode string) int {
	ctx := context.Background()
	if mode == modeStops {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		fmt.Println(err)
		return 1
	}
	cluster, err := Start(ctx, Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	if mode == modeExits {
		return 0
	}
	// The test kills this process, or closes its standard input when it is done.
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	if err := cluster.Stop(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 130
}

func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	needPrograms(t)

	for _, test := range []struct {
		name string
		mode string
		end  func(t *testing.T, owner int)
	}{
		{
			name: "after kill -9",
			mode: modeNoHandler,
			end:  func(t *testing.T, owner int) { t.Helper(); kill(t, owner, syscall.SIGKILL) },
		},
		{
			name: "after Ctrl-C that nobody handles",
			mode: modeNoHandler,
			end:  func(t *testing.T, owner int) { t.Helper(); kill(t, -owner, syscall.SIGINT) },
		},
		{
			name: "after Ctrl-C that stops the cluster",
			mode: modeStops,
			end:  func(t *testing.T, owner int) { t.Helper(); kill(t, -owner, syscall.SIGINT) },
		},
		{
			name: "after an end without Stop",
			mode: modeExits,
			end:  func(*testing.T, int) {},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			owner := startHelper(t, dir, test.mode)
			if test.mode != modeExits {
				// Otherwise this test would check nothing.
				if running := processesOf(t, dir); len(running) < 3 {
					t.Fatalf("want etcd, kube-apiserver and the guard to run before, got %q", running)
				}
			}
			test.end(t, owner.Process.Pid)
			err := owner.Wait()
			if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := owner.ProcessState.ExitCode(); test.mode == modeStops && code != 130 {
				t.Errorf("want the owner to stop its cluster without an error, got exit code %d", code)
			}
			eventually(t, 30*time.Second, func() error {
				if left := processesOf(t, dir); len(left) > 0 {
					return fmt.Errorf("processes are left: %q", left)
				}
				return nil
			})
			eventually(t, 15*time.Second, func() error {
				if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
					return fmt.Errorf("files are left: %q (%w)", left, errors.Join(err, errStillThere))
				}
				return nil
			})
		})
	}
}

// startHelper starts an owner of a cluster in its own process group, as a shell does, and waits until it is ready.
func startHelper(t *testing.T, dir, mode string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(self)
	owner.Env = append(os.Environ(), helperDirEnv+"="+dir, helperModeEnv+"="+mode)
	owner.Stderr = os.Stderr
	owner.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close() })
	stdout, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if lines.Text() == "ready" {
			return owner
		}
	}
	t.Fatalf("the owner did not start a cluster: %v: %s", owner.Wait(), strings.Join(said, "\n"))
	return nil
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// processesOf returns the command lines of all processes that contain dir, except zombies.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	output, err := exec.Command("ps", "-axww", "-o", "pid=,stat=,command=").Output()
	if err != nil {
		t.Fatalf("ps: %v", err)
	}
	var found []string
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && !strings.HasPrefix(fields[1], "Z") && strings.Contains(line, dir+string(filepath.Separator)) {
			found = append(found, strings.Join(append(fields[:3:3], fields[len(fields)-1]), " "))
		}
	}
	return found
}

func TestReservePort(t *testing.T) {
	t.Parallel()
	for name, reserve := range map[string]func() (*port, error){
		"for etcd and kube-apiserver": reservePort, "for programs in Go": reserveGoPort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := map[int]bool{}
			for range 50 {
				reserved, err := reserve()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(reserved.release)
				if seen[reserved.number] {
					t.Fatalf("port %d was reserved twice", reserved.number)
				}
				seen[reserved.number] = true
			}
		})
	}
}
