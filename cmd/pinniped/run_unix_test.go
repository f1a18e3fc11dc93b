//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// runner runs `pinniped run` with a cluster that needs no login.
type runner struct{ program, home, kubeconfig string }

func newRunner(t *testing.T) *runner {
	t.Helper()
	program := must.Get(exec.LookPath("pinniped"))(t)
	server := must.Get(discoverytest.New(apis.DefaultGroupSuffix))(t)
	t.Cleanup(server.Close)
	home := t.TempDir()
	r := &runner{program, home, filepath.Join(home, "admin.yaml")}
	must.Do(t, clientcmd.WriteToFile(*server.Kubeconfig(), r.kubeconfig))
	return r
}

func (r *runner) environ() []string {
	return append(os.Environ(), "HOME="+r.home, "XDG_RUNTIME_DIR=", "KUBECONFIG="+r.kubeconfig)
}

// leftovers returns the directories of runs.
func (r *runner) leftovers(t *testing.T) []string {
	t.Helper()
	found := must.Get(filepath.Glob(filepath.Join(r.home, ".config/pinniped/run/run-*")))(t)
	return found
}

// start starts a script in its own session, without a terminal, and returns when it has printed a line.
func (r *runner) start(t *testing.T, script string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	command := exec.CommandContext(t.Context(), r.program, "run", "--", "sh", "-c", script)
	command.Env, command.SysProcAttr = r.environ(), &syscall.SysProcAttr{Setsid: true}
	out := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	reader := bufio.NewReader(out)
	if line, err := reader.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the program said %q, %v", line, err)
	}
	return command, reader
}

// TestRunPassesSignalsOn checks that the program gets each signal once, and that no files are left behind.
func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		signal syscall.Signal
		trap   string
		code   int
	}{
		{syscall.SIGTERM, `trap 'echo got; exit 9' TERM`, 9},
		{syscall.SIGINT, `trap 'echo got; exit 8' INT`, 8},
		{syscall.SIGHUP, `trap 'echo got; exit 7' HUP`, 7},
		{syscall.SIGUSR1, `trap 'echo got; exit 6' USR1`, 6},
		{syscall.SIGTERM, `:`, 128 + 15},
	} {
		t.Run(test.signal.String()+" "+test.trap, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t)
			command, out := r.start(t, test.trap+`; echo ready; while :; do sleep 0.05; done`)
			must.Do(t, command.Process.Signal(test.signal))
			var text strings.Builder
			_, _ = out.WriteTo(&text) // until the program exits
			_ = command.Wait()        // the exit code is checked below
			if code := command.ProcessState.ExitCode(); code != test.code {
				t.Errorf("got code %d, want %d", code, test.code)
			}
			if got := strings.Count(text.String(), "got"); test.code < 128 && got != 1 {
				t.Errorf("the program got the signal %d times", got)
			}
			if left := r.leftovers(t); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestRunIsKilled kills `pinniped run` with SIGKILL, and checks that the program is terminated, even if it ignores
// SIGTERM, and that the files are deleted. It forwards a signal first, so that the watchdog has the PID.
func TestRunIsKilled(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a program that ends":     `echo told; exec sleep 600`,
		"a program that does not": `trap "" TERM; echo told; while :; do sleep 0.1; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t)
			command, out := r.start(t, `trap told=yes USR1; echo ready; echo $$; until [ "$told" ]; do sleep 0.1; done; `+script)
			pid := must.Get(out.ReadString('\n'))(t)
			must.Do(t, command.Process.Signal(syscall.SIGUSR1))
			must.Get(out.ReadString('\n'))(t)
			process := must.Get(strconv.Atoi(strings.TrimSpace(pid)))(t)
			must.Do(t, command.Process.Kill())
			_ = command.Wait() // it was killed
			testkit.Eventually(t, 20*time.Second, func() error {
				if left := r.leftovers(t); len(left) > 0 {
					return fmt.Errorf("left behind: %v", left)
				}
				if state := stateOf(t, strings.TrimSpace(pid)); syscall.Kill(process, 0) == nil && state != "Z" {
					return fmt.Errorf("the program is in state %q", state)
				}
				return nil
			})
		})
	}
}

// TestRunOnATerminal checks job control: Ctrl-Z stops the program and pinniped, fg continues both, and Ctrl-C reaches
// the program once.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash, for its job control: ", err)
	}
	r := newRunner(t)
	shell := exec.CommandContext(t.Context(), bash, "--norc", "--noprofile", "-i")
	shell.Env = append(r.environ(), "PS1=prompt ", "TERM=dumb", "PROGRAM="+r.program, "HISTFILE=")
	terminal := must.Get(pty.Start(shell))(t)
	defer terminal.Close() //nolint:errcheck // the shell has exited
	screen := &screen{lines: make(chan string)}
	go screen.read(terminal)
	send := func(keys string) {
		t.Helper()
		must.Get(terminal.WriteString(keys))(t)
	}
	screen.wait(t, "prompt ")
	send(`"$PROGRAM" run -- sh -c 'n=0; trap "n=\$((n+1)); echo interrupt-\$n" INT; echo re""ady-$$-; read line; ` +
		`echo line-$line; while [ $n = 0 ]; do sleep 0.1; done; sleep 0.3; echo end-$n; exit 5'` + "\n")
	screen.wait(t, "ready-")
	program := screen.wait(t, "-")
	send("\x1a")
	screen.wait(t, "Stopped")
	screen.wait(t, "prompt ")
	// The shell waits until pinniped stops, not the program, which would get the next key until then.
	testkit.Eventually(t, 10*time.Second, func() error {
		if state := stateOf(t, program); state != "T" {
			return fmt.Errorf("the state of process %q is %q", program, state)
		}
		return nil
	})
	send("fg\n")
	screen.wait(t, "exit 5'") // fg prints the command line
	send("typed\n")
	screen.wait(t, "line-typed")
	send("\x03")
	screen.wait(t, "end-1")
	screen.wait(t, "prompt ")
	send("echo co\"\"de-$?\n")
	screen.wait(t, "code-5")
	screen.wait(t, "prompt ")
	send("exit\n")
	_ = shell.Wait() // exit code of the last command
	if left := r.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// screen is the output of a terminal.
type screen struct {
	lines chan string
	seen  strings.Builder
}

func (s *screen) read(from *os.File) {
	defer close(s.lines)
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		s.lines <- string(buffer[:n])
	}
}

// wait waits until text is printed. It returns and discards the output before it.
func (s *screen) wait(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(time.Minute)
	for !strings.Contains(s.seen.String(), text) {
		select {
		case more, open := <-s.lines:
			if !open {
				t.Fatalf("the terminal was closed before it showed %q:\n%s", text, &s.seen)
			}
			s.seen.WriteString(more)
		case <-limit:
			t.Fatalf("the terminal does not show %q:\n%s", text, &s.seen)
		}
	}
	before, rest, _ := strings.Cut(s.seen.String(), text)
	s.seen.Reset()
	s.seen.WriteString(rest)
	return before
}

// stateOf returns the state of a process as in ps: T is stopped.
func stateOf(t *testing.T, process string) string {
	t.Helper()
	if status, err := os.ReadFile("/proc/" + process + "/stat"); err == nil { // on Linux, ps may be missing
		_, rest, _ := strings.Cut(string(status), ") ")
		return rest[:1]
	}
	state, _ := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", process).Output()
	return string(state[:min(1, len(state))])
}
