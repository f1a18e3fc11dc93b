package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain lets the test's own program be an attacker or the floor, and run in a namespace, as that of bench does.
func TestMain(m *testing.M) {
	if isAttacker() {
		os.Exit(beAttacker())
	}
	if isFloor() {
		os.Exit(beFloor())
	}
	if os.Getenv(insideVariable) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	silenceLibraries()
	os.Exit(m.Run())
}

// TestBench runs some loads for a moment: it shows that they work, not how fast anything is.
func TestBench(t *testing.T) {
	t.Parallel()
	got, said := reportOf(
		t,
		"-rounds=1",
		"-seconds=0.05",
		"-objects=20",
		"-listed=60",
		"-watches=20",
		"-watchers=5",
		"-idle=5",
		"-held=30",
		"-hostile=0.2",
		"-honest=0.02",
		"-other=floor",
		"-loads=size,watch-memory,get,get-token,get-http1,names-1,list,list-plain,list-protobuf,list-http1,create,mixture,connect,idle,watches,held,events,login,exec,honest,hostile",
	)
	want := networkNamespaces
	if err := mayMakeNamespaces(); err != nil {
		t.Logf("The parts were on loopback, not in namespaces: %v", err)
		want = networkLoopback
	}
	if got.Network != want {
		t.Errorf("the network was %q, want %q: %s", got.Network, want, said)
	}
	var names []string
	for _, l := range got.Requests {
		names = append(names, l.Name)
		if l.Ways[direct].Rate.Median <= 0 || l.Ways[proxied].Rate.Median <= 0 || l.Ways[other].Rate.Median <= 0 ||
			l.Compared[proxied].Ratio.Median <= 0 {
			t.Errorf("%s: nothing was measured: %+v", l.Name, l)
		}
	}
	if diff := cmp.Diff([]string{
		"get", "get-token", "get-http1", "names-1", "list", "list-plain", "list-protobuf", "list-http1", "create", "mixture",
		"connect", "exec",
	}, names); diff != "" {
		t.Errorf("loads with requests (-want +got):\n%s", diff)
	}
	if got.Model == nil {
		t.Error("no cost model, although get, list and exec were measured")
	}
	measured := map[string]bool{}
	for _, f := range got.Figures {
		measured[f.Load] = true
	}
	for _, name := range []string{"size", "watch-memory", "idle", "watches", "held", "events", "login", "honest", "hostile"} {
		if !measured[name] {
			t.Errorf("no figure of load %q", name)
		}
	}
}

// reportOf runs loads with the programs of this tree, and returns the report and what was said meanwhile.
func reportOf(t *testing.T, flags ...string) (got report, said string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real etcd and kube-apiserver, which -short leaves out")
	}
	var out, errOut bytes.Buffer
	if code := run(append(programFlags(t), append(flags, "-o=json", "-timeout=5m")...), &out, &errOut); code != exitDone {
		t.Fatalf("it ended with %d: %s", code, errOut.String())
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return got, errOut.String()
}

// programFlags builds the programs that are measured, and says where they are.
func programFlags(t *testing.T) []string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-deploy=" + filepath.Join(root, "deploy")}
	programs := t.TempDir()
	for flag, source := range map[string]string{"cli": "./cmd/pinniped", "agent": "./cmd/agent"} {
		path := filepath.Join(programs, flag)
		build := exec.CommandContext(t.Context(), "go", "build", "-o", path, source)
		build.Dir = root
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", source, err, output)
		}
		args = append(args, "-"+flag+"="+path)
	}
	return args
}

func TestBadUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"refuses an unknown load", []string{"-loads=get,nothing"}, `unknown load "nothing": use size, memory, watch-memory,`},
		{"refuses an unknown preset", []string{"-preset=slow"}, `-preset is "slow": use quick or full`},
		{"refuses an unknown output", []string{"-o=yaml"}, `-o is "yaml": use text, json or markdown`},
		{"refuses an unknown network", []string{"-network=wan"}, `-network is "wan": use auto, namespaces or loopback`},
		{"refuses an unknown attack", []string{"-attacks=reset,nothing"}, `unknown attack "nothing": use usual, all, or some of unread, reset,`},
		{"refuses to attack an unknown port", []string{"-port=http"}, `-port is "http": use proxy or api`},
		{"refuses numbers without sense", []string{"-workers=-1"}, "-workers must be more than zero"},
		{"refuses arguments", []string{"get"}, `unknown argument "get"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			if code := run(test.args, &out, &errOut); code != exitUsage {
				t.Errorf("want code %d, got %d", exitUsage, code)
			}
			if !strings.Contains(errOut.String(), test.want) {
				t.Errorf("want %q in the error, got %q", test.want, errOut.String())
			}
		})
	}
}

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	if code := run(
		[]string{"-network=loopback", "-agent=" + filepath.Join(t.TempDir(), "none")},
		&out,
		&errOut,
	); code != exitFailed {
		t.Errorf("want code %d, got %d", exitFailed, code)
	}
	if want := "looking for the programs, which `make build` builds"; !strings.Contains(errOut.String(), want) {
		t.Errorf("want %q in the error, got %q", want, errOut.String())
	}
}

func proxiedResult(name string, cpu, bytes float64) requestResult {
	one := func(value float64) spread { return spreadOf([]float64{value}) }
	return requestResult{Name: name, Ways: map[string]wayResult{
		proxied: {Rate: one(1), ProxyCPU: one(cpu), Bytes: one(bytes)},
	}}
}

func TestCostModel(t *testing.T) {
	t.Parallel()
	results := []requestResult{
		proxiedResult("get", 200, 1000),
		proxiedResult("list-plain", 1200, 1_001_000),
	}
	if got := costModel(results); got != nil {
		t.Errorf("want no model without exec, got %v", got)
	}
	results = append(results, proxiedResult("exec", 3000, 0))
	got := costModel(results)
	if got == nil {
		t.Fatal("no model")
	}
	if want := "cores = 0.0002·requests/s + 0.003·execs/s + 1e-09·bytes/s"; got.String() != want {
		t.Errorf("want %s, got %s", want, got)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	values := []float64{4, 1, 3, 2}
	if got := median(values); got != 2.5 {
		t.Errorf("median: want 2.5, got %v", got)
	}
	if got := quantile(values, 0.99); got != 4 {
		t.Errorf("p99: want 4, got %v", got)
	}
	if got := median([]time.Duration{}); got != 0 {
		t.Errorf("median of nothing: want 0, got %v", got)
	}
}

func TestReadProcess(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc here")
	}
	before, err := readProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		after, err := readProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if after > before {
			m, err := readMemory(os.Getpid())
			if err != nil || m.all < m.anonymous || m.anonymous == 0 {
				t.Errorf("memory: %+v, %v", m, err)
			}
			return
		}
	}
	t.Error("processor time did not grow while it was used")
}

// TestAttackersStayOnThisMachine shows that an attacker refuses every address that is not loopback.
func TestAttackersStayOnThisMachine(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"192.0.2.1:443", "example.com:443", "[2001:db8::1]:443"} {
		var out bytes.Buffer
		err := runAttacker(strings.NewReader(`{"Attack":"idle","Address":"`+address+`","Seconds":1}`), &out)
		if err == nil || !strings.Contains(err.Error(), "no other is ever attacked") {
			t.Errorf("%s: want a refusal, got %v", address, err)
		}
	}
}

// TestHostileTable checks that the table of attacks has a row for each that was measured.
func TestHostileTable(t *testing.T) {
	t.Parallel()
	r := &report{}
	if got := r.hostileTable(); got != "" {
		t.Errorf("want no table without an attack, got %q", got)
	}
	for name, value := range map[string]float64{
		figureRequests: 900, figureFailed: 0, figureQuiet: 90, figureBeside: 280, figureLater: 100, figureLongest: 900,
		figureMemory: 123, figureTheirs: 2, figureOurs: 1,
	} {
		f := figure{name: "tokens: " + name, value: value}
		switch name {
		case figureFailed, figureMemory, figureOurs:
			f.goal, f.atMost = true, value
		case figureBeside:
			f.goal, f.atMost = true, 270
		}
		r.addFigure("hostile", proxied, f)
	}
	want := "| bad bearer tokens | 0 of 900: met | 90 → 280 ms: missed, 100, 900 ms | 123 MiB: met " +
		"| 2.00 : 1.00 s: met |"
	rows := strings.Split(strings.TrimSpace(r.hostileTable()), "\n")
	if len(rows) != 3 || rows[2] != want {
		t.Errorf("want a head and %s, got %q", want, rows)
	}
}

// TestAloneTable checks that the table of what others spend on attacks has a row for each that was sent to them, and that
// these figures are not taken for those of the proxy.
func TestAloneTable(t *testing.T) {
	t.Parallel()
	r := &report{}
	for way, spent := range map[string]float64{proxied: 1, other: 0.5, direct: 2} {
		name := figureAlone
		if way == proxied {
			name = figureOurs
		}
		for _, f := range []figure{
			{name: figureAsked, value: 1000}, {name: figureTheirs, value: 0.1}, {name: name, value: spent},
		} {
			f.name = "questions: " + f.name
			r.addFigure("hostile", way, f)
		}
	}
	want := "| new questions of one user | 1000: 0.10 : 1.00 s, 100 : 1000 µs each | 1000: 0.10 : 0.50 s, 100 : 500 µs each | " +
		"1000: 0.10 : 2.00 s, 100 : 2000 µs each |"
	rows := strings.Split(strings.TrimSpace(r.aloneTable()), "\n")
	if len(rows) != 3 || rows[2] != want {
		t.Errorf("want a head and %s, got %q", want, rows)
	}
	if got := (&report{}).aloneTable(); got != "" {
		t.Errorf("want no table when nothing was attacked, got %q", got)
	}
}
