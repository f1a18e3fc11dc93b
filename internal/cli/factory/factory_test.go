package factory_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/viper"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// newFactory returns a Factory with the given environment and home directory.
func newFactory(env map[string]string, home string) *factory.Factory {
	return &factory.Factory{
		IOStreams: genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}},
		Getenv:    func(name string) string { return env[name] },
		HomeDir: func() (string, error) {
			if home == "" {
				return "", errors.New("no home")
			}
			return home, nil
		},
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestApplyConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		file string
		env  map[string]string
		args []string
		want time.Duration
		says string
	}{
		{name: "keeps the flag's default", want: time.Minute},
		{name: "takes the file over the default", file: "timeout: 2m", want: 2 * time.Minute},
		{
			name: "takes the environment over the file", file: "timeout: 2m", env: map[string]string{"PINNIPED_TIMEOUT": "3m"},
			want: 3 * time.Minute,
		},
		{
			name: "takes the flag over all", file: "timeout: 2m", env: map[string]string{"PINNIPED_TIMEOUT": "3m"},
			args: []string{"--timeout=4m"}, want: 4 * time.Minute,
		},
		{
			name: "passes over an empty variable", file: "timeout: 2m", env: map[string]string{"PINNIPED_TIMEOUT": ""},
			want: 2 * time.Minute,
		},
		{
			name: "passes over other variables of this prefix",
			env:  map[string]string{"PINNIPED_DEBUG": "true", "PINNIPED_PASSWORD": "x"}, want: time.Minute,
		},
		{name: "refuses unknown keys", file: "timeuot: 2m\nkube: x", says: `unknown key "kube", "timeuot"`},
		{name: "refuses a wrong value in the file", file: "timeout: soon", says: `invalid value "soon" for "timeout" in`},
		{name: "refuses a list for one value", file: "kubeconfig: [a, b]", says: `"kubeconfig" in`},
		{
			name: "refuses a wrong value in the environment", env: map[string]string{"PINNIPED_TIMEOUT": "later"},
			says: `invalid value "later" for "timeout" in the environment variable PINNIPED_TIMEOUT`,
		},
		{name: "refuses a file that is not YAML", file: "a: [", says: "config.yaml"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			if test.file != "" {
				write(t, filepath.Join(home, ".config", "pinniped", "config.yaml"), test.file)
			}
			f := newFactory(test.env, home)
			var got time.Duration
			cmd := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return nil }}
			cmd.Flags().DurationVar(&got, "timeout", time.Minute, "")
			factory.Bind(cmd.Flags(), "timeout", factory.KeyTimeout)
			if err := cmd.ParseFlags(test.args); err != nil {
				t.Fatal(err)
			}
			err := f.ApplyConfig(viper.New(), cmd)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) || ui.ExitCodeOf(err) != ui.ExitUsage {
					t.Errorf("want wrong usage that says %q, got %v", test.says, err)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("want %s, got %s, %v", test.want, got, err)
			}
			if cmd.Flags().Changed("timeout") != (test.args != nil) {
				t.Error("want only a flag on the command line to count as changed")
			}
		})
	}
}

func TestApplyConfigNeedsNoHome(t *testing.T) {
	t.Parallel()
	if err := newFactory(nil, "").ApplyConfig(viper.New(), &cobra.Command{Use: "x"}); err != nil {
		t.Error(err)
	}
}

func TestWithoutConfigCoversSubcommands(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, filepath.Join(home, ".config", "pinniped", "config.yaml"), "a: [")
	parent, child := factory.WithoutConfig(&cobra.Command{Use: "p"}), &cobra.Command{Use: "c"}
	parent.AddCommand(child)
	if err := newFactory(nil, home).ApplyConfig(viper.New(), child); err != nil {
		t.Errorf("want the broken file not read, got %v", err)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	contexts := write(
		t,
		filepath.Join(dir, "contexts.yaml"),
		`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}, {name: b, context: {cluster: b, user: a}}], users: [{name: a, user: {token: t}}]}`,
	)
	clusters := write(
		t,
		filepath.Join(dir, "sub", "clusters.yaml"),
		`{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "https://a.example.com", certificate-authority: ca.pem}}, {name: b, cluster: {server: "https://b.example.com"}}]}`,
	)
	write(t, filepath.Join(dir, "sub", "ca.pem"), "the CA")
	whole := write(
		t,
		filepath.Join(dir, "home", ".kube", "config"),
		`{apiVersion: v1, kind: Config, current-context: h, contexts: [{name: h, context: {cluster: h, user: h}}], users: [{name: h, user: {}}], clusters: [{name: h, cluster: {server: "https://h.example.com"}}]}`,
	)
	broken := write(t, filepath.Join(dir, "broken.yaml"), "apiVersion: [")
	empty := write(t, filepath.Join(dir, "empty.yaml"), "")
	list := strings.Join([]string{filepath.Join(dir, "missing.yaml"), contexts, clusters}, string(os.PathListSeparator))
	for _, test := range []struct {
		name   string
		env    string
		home   string
		flags  factory.ClusterFlags
		server string
		bundle string
		says   string
	}{
		{
			name: "reads a list in KUBECONFIG, with files next to them", env: list, server: "https://a.example.com",
			bundle: "the CA",
		},
		{name: "takes the context", env: list, flags: factory.ClusterFlags{Context: "b"}, server: "https://b.example.com"},
		{name: "reads the usual file", home: filepath.Join(dir, "home"), server: "https://h.example.com"},
		{
			name: "prefers the flag", env: list, flags: factory.ClusterFlags{Kubeconfig: whole}, server: "https://h.example.com",
		},
		{
			name: "misses the flag's file", flags: factory.ClusterFlags{Kubeconfig: filepath.Join(dir, "nope")},
			says: "no such file",
		},
		{
			name: "finds nothing in a list of missing files", env: filepath.Join(dir, "nope"), says: "there is no such file",
		},
		{
			name: "misses the usual file", home: filepath.Join(dir, "nobody"), says: `.kube/config": there is no such file`,
		},
		{
			name: "finds no cluster in an empty file", flags: factory.ClusterFlags{Kubeconfig: empty},
			says: "it has no cluster",
		},
		{name: "names a file that is not a kubeconfig", flags: factory.ClusterFlags{Kubeconfig: broken}, says: "broken.yaml"},
		{
			name: "misses the context", env: list, flags: factory.ClusterFlags{Context: "x"},
			says: `no such context "x" (its contexts: a, b)`,
		},
		{name: "needs a home directory for the usual file", says: "finding the kubeconfig"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cluster, err := newFactory(map[string]string{"KUBECONFIG": test.env}, test.home).Cluster(test.flags)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("want an error that says %q, got %v", test.says, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			bundle, err := cluster.Source.CABundle()
			if err != nil || cluster.Source.Cluster.Server != test.server || cluster.REST.Host != test.server ||
				string(bundle) != test.bundle {
				t.Errorf("want %s with %q, got %+v with %q, %v", test.server, test.bundle, cluster.Source.Cluster, bundle, err)
			}
		})
	}
}

// TestConfigurationIsDocumented compares the reference documentation with the configuration keys.
func TestConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	config := reflect.TypeFor[factory.Config]()
	for i := range config.NumField() {
		key := config.Field(i).Tag.Get("mapstructure")
		variable := "PINNIPED_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
		if row := "| `" + key + "` | `" + variable + "` |"; !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/configuration.md has no row %s", row)
		}
	}
	if rows := strings.Count(string(text), "| `PINNIPED_"); rows != config.NumField() {
		t.Errorf("docs/reference/configuration.md has %d rows, want %d", rows, config.NumField())
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"cert", "kubeconfig", "kubeconfig-context", "namespace", "secret", "timeout"}
	for text, want := range map[string]string{
		"secert": "secret", "kubekonfig": "kubeconfig", "timeuot": "timeout", "name-space": "namespace",
		"kubeconfigcontext": "kubeconfig-context", "": "", "colour": "", "timeout": "timeout",
	} {
		if got := factory.Nearest(text, known); got != want {
			t.Errorf("Nearest(%q) is %q, want %q", text, got, want)
		}
	}
}

// lagging is a context whose deadline has passed, but whose Done and Err do not report that yet.
type lagging struct{ context.Context } //nolint:containedctx // it is one

func (lagging) Deadline() (time.Time, bool) { return time.Now().Add(-time.Nanosecond), true }

func TestOver(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := factory.Over(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	ahead, cancel := factory.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if err := factory.Over(ahead); err != nil {
		t.Errorf("its deadline is ahead: %v", err)
	}
	if err := factory.Over(lagging{t.Context()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its deadline is past: %v", err)
	}
}

func TestExpandPath(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	f := newFactory(nil, home)
	for path, want := range map[string]string{
		"": "", "-": "-", "a/~/b": "a/~/b", "./~": "./~", "/abs": "/abs",
		"~": home, "~/.kube/config": filepath.Join(home, ".kube", "config"), "~//x": filepath.Join(home, "x"),
	} {
		if got, err := f.ExpandPath(path); err != nil || got != want {
			t.Errorf("%q: want %q, got %q, %v", path, want, got, err)
		}
	}
	for _, path := range []string{"~ann/x", "~x"} {
		if got, err := f.ExpandPath(path); err == nil {
			t.Errorf("%q: want an error, got %q", path, got)
		}
	}
	if got, err := newFactory(nil, "").ExpandPath("~/x"); err == nil {
		t.Errorf("without a home directory: want an error, got %q", got)
	}
}

func TestExpandPathFlags(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	cmd := &cobra.Command{Use: "x"}
	one := cmd.Flags().String("merge-into", "", "")
	several := cmd.Flags().StringArray("kubeconfigs", nil, "")
	other := cmd.Flags().String("static-token", "", "")
	if err := cmd.ParseFlags(
		[]string{"--merge-into=~/a,b", "--kubeconfigs=~/c,d", "--kubeconfigs=e", "--static-token=~/t"},
	); err != nil {
		t.Fatal(err)
	}
	if err := newFactory(nil, home).ExpandPathsIn(cmd.Flags()); err != nil {
		t.Fatal(err)
	}
	got := append([]string{*one, *other}, *several...)
	want := []string{filepath.Join(home, "a,b"), "~/t", filepath.Join(home, "c,d"), "e"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := cmd.ParseFlags([]string{"--merge-into=~ann/a"}); err != nil {
		t.Fatal(err)
	}
	if err := newFactory(nil, home).ExpandPathsIn(cmd.Flags()); err == nil {
		t.Error("want an error for another user's home directory")
	}
}

// TestKubeconfigHints checks the hint for each cause of a missing cluster.
func TestKubeconfigHints(t *testing.T) {
	t.Parallel()
	const give, choose, fix = "set the cluster's kubeconfig", "choose a context", "fix the file first"
	const cluster = "clusters: [{name: a, cluster: {server: 'https://a.example.com'}}]\nusers: [{name: a, user: {}}]\n"
	for name, test := range map[string]struct {
		text    string // kubeconfig; "-" for none
		context string
		want    string
	}{
		"no file":                      {text: "-", want: give},
		"an empty file":                {want: give},
		"text":                         {text: "hello", want: give},
		"a damaged file":               {text: "kind: Config\nclusters: [{name: a, cluster: {server: [1]}}]\n", want: fix},
		"no contexts":                  {text: cluster, want: give},
		"no current context":           {text: cluster + "contexts: [{name: a, context: {cluster: a, user: a}}]\n", want: choose},
		"another context":              {text: cluster + "contexts: [{name: a, context: {cluster: a, user: a}}]\n", context: "b", want: choose},
		"a context that leads nowhere": {text: cluster + "contexts: [{name: a, context: {cluster: x, user: a}}]\ncurrent-context: a\n", want: give},
		"one of many that leads nowhere": {
			text:    cluster + "contexts: [{name: a, context: {cluster: x, user: a}}, {name: b, context: {cluster: a, user: a}}]\n",
			context: "a", want: choose,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config")
			if test.text != "-" {
				write(t, path, test.text)
			}
			for _, flags := range []factory.ClusterFlags{{Kubeconfig: path}, {}} {
				flags.Context = test.context
				_, err := newFactory(map[string]string{"KUBECONFIG": path}, "").Cluster(flags)
				if err == nil || !strings.HasPrefix(ui.HintOf(err), test.want) {
					t.Errorf("want %q, got %v, hint %q", test.want, err, ui.HintOf(err))
				}
			}
		})
	}
}
