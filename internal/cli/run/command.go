// Package run implements `pinniped run` and `pinniped kubectl`: they run a program with its own kubeconfig, and renew
// the credential while the program runs.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// Session logs in as the kubeconfig's context says.
type Session interface {
	// Credential returns a credential that is valid for at least left, or a new one.
	Credential(ctx context.Context, left time.Duration) (*login.Credential, error)
	// Unattended makes later calls of Credential fail if the user would have to log in.
	Unattended()
}

// Options holds the inputs of the commands; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Progress *ui.Progress

	Cluster factory.ClusterFlags
	Direct  bool     // without a proxy: the program gets the credential
	Command []string // program and arguments

	// Connect loads the kubeconfig. Session is nil for a context that does not use "pinniped login".
	Connect    func(factory.ClusterFlags) (*factory.Cluster, Session, error)
	Executable func() (string, error)
	Environ    func() []string
	// Directory returns the parent directory of the runs' files.
	Directory func() (string, error)
	Now       func() time.Time
	// RetryInterval is the time between attempts to renew the credential.
	RetryInterval time.Duration
}

func newOptions(f *factory.Factory) *Options {
	return &Options{
		IOStreams: f.IOStreams,
		Connect: func(flags factory.ClusterFlags) (*factory.Cluster, Session, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return nil, nil, err
			}
			session, err := login.NewSession(f, cluster)
			if errors.Is(err, login.ErrNotALogin) {
				return cluster, nil, nil
			}
			return cluster, session, err
		},
		Executable:    f.Executable,
		Environ:       os.Environ,
		Directory:     func() (string, error) { return runsDirectory(f) },
		Now:           f.Now,
		RetryInterval: 10 * time.Second,
	}
}

// runsDirectory returns a directory that only this user can write to, which excludes /tmp.
func runsDirectory(f *factory.Factory) (string, error) {
	if dir := f.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "pinniped"), nil
	}
	dir, err := f.ConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "run"), nil
}

// NewCommand returns `pinniped run`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := newOptions(f)
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGUMENT...]",
		Short: "Run a program with a credential that is kept fresh",
		Long: `Run a program with a credential that is kept fresh. The command logs in with the kubeconfig's context and sets the
program's KUBECONFIG to a kubeconfig for this run only. That kubeconfig points to a local proxy and has a token that works
only for this run. The proxy forwards requests with the current credential and, for service account tokens, with
impersonation headers. So every client works, even if it does not support credential plugins or impersonation. Only you can
read the kubeconfig, and it is deleted when the program ends. If the context does not use "pinniped login", the program gets
the context unchanged.

With --direct, there is no proxy. The credential is in a file, which the command renews while the program runs. The program
must support "tokenFile" and "as"; all clients based on client-go do. If the credential is a client certificate that is
valid for less than 12 minutes, the program runs "pinniped login" as a credential plugin instead, because client-go rereads
files only every 5 minutes.

The command forwards signals to the program. It exits with the program's exit code, or with 128 plus the number of the
signal that ended the program. The exit code is 126 if the program cannot be run, and 127 if it is not found.`,
		Example: `  pinniped run -- k9s
  pinniped run --kubeconfig user.yaml -- helm list --all-namespaces
  pinniped run -- python3 report.py

  # A shell in which every client is logged in
  pinniped run -- bash`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return nil
			}
			return ui.WithHint(ui.Usage(errors.New("no program to run")), "run %q", cmd.CommandPath()+" --help")
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Progress, o.Command = f.Progress(), args
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the program's name are the program's
	o.Cluster.AddFlags(flags)
	flags.BoolVar(&o.Direct, "direct", o.Direct, "pass the credential to the program directly, without a proxy")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"kubeconfig-context": f.CompleteContexts(&o.Cluster)})
	return cmd
}

// NewKubectlCommand returns `pinniped kubectl`.
func NewKubectlCommand(f *factory.Factory) *cobra.Command {
	o := newOptions(f)
	return &cobra.Command{
		Use:   "kubectl [ARGUMENT...]",
		Short: "Run kubectl with a credential that is kept fresh",
		Long: `Run kubectl with a credential that is kept fresh, like "pinniped run -- kubectl". All arguments go to kubectl, so "pinniped
kubectl --help" prints kubectl's help. --kubeconfig and --context select the context to log in with. "pinniped kubectl
config" changes your own kubeconfig, without a login.`,
		Example: `  pinniped kubectl get pods --all-namespaces
  pinniped kubectl --context staging logs --follow deployment/web`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Progress = f.Progress()
			if !needsCluster(args) {
				return execute(o, append([]string{"kubectl"}, args...), o.Environ(), nil)
			}
			o.Command = append([]string{"kubectl"}, o.takeClusterFlags(args)...)
			return o.Run(cmd.Context())
		},
	}
}

// takeClusterFlags removes kubectl's flags that select a context from args, as the run's kubeconfig has only one
// context.
func (o *Options) takeClusterFlags(args []string) []string {
	targets := map[string]*string{"--kubeconfig": &o.Cluster.Kubeconfig, "--context": &o.Cluster.Context}
	var rest []string
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(rest, args[i:]...) // the rest is a command in a container
		}
		name, value, inline := strings.Cut(args[i], "=")
		target, known := targets[name]
		switch {
		case known && inline:
			*target = value
		case known && i+1 < len(args):
			i++
			*target = args[i]
		default:
			rest = append(rest, args[i])
		}
	}
	return rest
}

// needsCluster reports whether kubectl will contact a cluster: not for help, nor for `kubectl config`.
func needsCluster(args []string) bool {
	for _, arg := range args {
		if arg == "--" {
			break // the rest is a command in a container
		}
		if arg == "--help" || arg == "-h" {
			return false
		}
	}
	// The first argument that is not a flag is kubectl's subcommand, or the value of a flag before it, which is only wrong
	// for one of these.
	verb := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	return verb >= 0 && !slices.Contains([]string{"", "config", "completion", "help", "options"}, args[verb])
}

// Run logs in, runs the program, and returns its exit as an error.
func (o *Options) Run(ctx context.Context) error {
	cluster, session, err := o.Connect(o.Cluster)
	if err != nil {
		return err
	}
	var credential *login.Credential
	if session != nil {
		if credential, err = o.logIn(ctx, session); err != nil {
			return fmt.Errorf("logging in to cluster %q: %w", cluster.Source.ClusterName, err)
		}
		session.Unattended()
	}
	base, err := o.Directory()
	if err != nil {
		return err
	}
	files, err := newFiles(base, o.Now)
	if err != nil {
		return fmt.Errorf("creating a directory for the kubeconfig: %w", err)
	}
	guard := startWatchdog(files.dir)
	defer func() { files.remove(); guard.stop() }()
	plugin, err := o.Executable()
	if err != nil {
		return fmt.Errorf("finding the path of this program for the kubeconfig: %w", err)
	}
	writer, refused := &writer{files: files, cluster: cluster, plugin: plugin}, make(chan struct{}, 1)
	if session != nil && !o.Direct {
		writer.proxy, err = startLoopback(cluster.REST, o.Now, func() {
			select {
			case refused <- struct{}{}:
			default: // already reported
			}
		})
		if err != nil {
			return fmt.Errorf("starting a proxy on this computer: %w", err)
		}
		defer writer.proxy.close()
	}
	if err := writer.write(credential); err != nil {
		return err
	}
	// From here, signals go to the program. Its exit ends the run.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if session != nil {
		renewed := make(chan struct{})
		keeper := &keeper{
			session: session, writer: writer, now: o.Now, retry: o.RetryInterval, warn: o.Progress.Warn, refused: refused,
		}
		go func() { defer close(renewed); keeper.run(ctx, credential) }()
		defer func() { stop(); <-renewed }() // before the files are deleted
	}
	return execute(o, o.Command, o.environment(writer), guard)
}

// logIn returns a credential that is valid long enough for a file.
func (o *Options) logIn(ctx context.Context, session Session) (*login.Credential, error) {
	credential, err := session.Credential(ctx, minimumLeft)
	if err == nil && o.Direct && inFile(credential) && credential.Expiry.Sub(o.Now()) < leastCertificateLeft {
		return session.Credential(ctx, leastCertificateLeft)
	}
	return credential, err
}

// environment returns the program's environment: ours with the run's kubeconfig, and no HTTP proxy for the run's proxy.
func (o *Options) environment(w *writer) []string {
	environ := o.Environ()
	result := make([]string, 0, len(environ)+3)
	var direct [2]string // NO_PROXY and no_proxy: programs read either
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case name == "KUBECONFIG":
		case name == "NO_PROXY" && w.proxy != nil:
			direct[0] = value
		case name == "no_proxy" && w.proxy != nil:
			direct[1] = value
		default:
			result = append(result, variable)
		}
	}
	if w.proxy != nil {
		for i, name := range []string{"NO_PROXY", "no_proxy"} {
			others := cmp.Or(direct[i], direct[1-i])
			result = append(result, name+"="+strings.TrimPrefix(others+",127.0.0.1", ","))
		}
	}
	return append(result, "KUBECONFIG="+w.files.path(kubeconfigName))
}
