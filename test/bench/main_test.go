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
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	if err := devinstall.Build(t.Context(), root, programs); err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(programs, "pinniped-agent")
	o, err := parseOptions([]string{
		"-rounds=1", "-duration=50ms", "-objects=20", "-listed=60", "-watches=5", "-baseline",
		"-agent=" + agent, "-other=" + agent, "-deploy=" + filepath.Join(root, "deploy"),
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := s.write(&out, "get", &target{name: "direct"}); err != nil {
		t.Fatal(err)
	}
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
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for after := before; after == before; {
		if after, err = cpuTime(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if all, anonymous, err := residentMemory(os.Getpid()); err != nil || anonymous <= 0 || all < anonymous {
		t.Errorf("memory: %d, %d, %v", all, anonymous, err)
	}
}
