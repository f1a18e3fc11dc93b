package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestMain also runs the test binary as the baseline.
func TestMain(m *testing.M) {
	if path := os.Getenv(baselineVariable); path != "" {
		exit(serveBaseline(path))
	}
	os.Exit(m.Run())
}

// TestBench runs each load briefly, to check that it works. It does not check its speed.
func TestBench(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	root := must.Get(filepath.Abs(filepath.Join("..", "..")))(t)
	programs := t.TempDir()
	must.Do(t, devinstall.Build(t.Context(), root, programs))
	agent := filepath.Join(programs, "pinniped-agent")
	o := must.Get(parseOptions([]string{
		"-rounds=1", "-duration=50ms", "-objects=20", "-listed=60", "-watches=5", "-baseline",
		"-agent=" + agent, "-other=" + agent, "-deploy=" + filepath.Join(root, "deploy"),
	}, io.Discard))(t)
	var out, errOut bytes.Buffer
	if err := run(t.Context(), o, &out, &errOut); err != nil {
		t.Fatalf("%v; it printed: %s", err, errOut.String())
	}
	if !strings.Contains(out.String(), "\ngomaxprocs: 1\n") {
		t.Errorf("the agent does not run with the shipped GOMAXPROCS: %s", out.String())
	}
	for _, l := range loads() {
		for _, target := range []string{"direct", "ours", "other", "baseline"} {
			line := regexp.MustCompile(`(?mi)^Benchmark` + l.name + `/workers=\d+/via=` + target + ` [1-9]\d* [1-9]\d* ns/op `)
			if !line.MatchString(out.String()) {
				t.Errorf("no result of %s via %s in:\n%s", l.name, target, out.String())
			}
		}
	}
}

func TestBadUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, arg, want string }{
		{"refuses an unknown load", "-loads=get,nothing", `unknown load "nothing": use get, `},
		{"refuses numbers without sense", "-workers=-1", "numbers must be greater than zero"},
		{"refuses arguments", "get", `unknown argument "get"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if _, err := parseOptions([]string{test.arg}, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want %q, got %v", test.want, err)
			}
		})
	}
}

// TestResultLine checks the benchmark format.
func TestResultLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := sample{workers: 16, operations: 2, elapsed: 4000, latencies: []time.Duration{3000, 1000}, serverCPU: 600}
	must.Do(t, s.write(&out, "get", &target{name: "direct"}))
	want := "BenchmarkGet/workers=16/via=direct 2 2000 ns/op 3000 p50-ns 3000 p99-ns 300 apiserver-cpu-ns/op\n"
	if out.String() != want {
		t.Errorf("want %q, got %q", want, out.String())
	}
}

func TestProcess(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc here")
	}
	before := must.Get(cpuTime(os.Getpid()))(t)
	for after := before; after == before; {
		after = must.Get(cpuTime(os.Getpid()))(t)
	}
	if all, anonymous, err := residentMemory(os.Getpid()); err != nil || anonymous <= 0 || all < anonymous {
		t.Errorf("memory: %d, %d, %v", all, anonymous, err)
	}
}
