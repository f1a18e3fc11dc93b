// Package status implements `pinniped ip-tls status`: gather.go collects, kubeconfigs.go evaluates kubeconfigs,
// users.go concludes, text.go prints.
package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Options holds the inputs of `pinniped ip-tls status`; a test fills it directly.
type Options struct {
	Session         *session.Session
	KubeconfigsFrom []string
	Endpoint        string // HOST or HOST:PORT, if the cluster does not respond
	CABundle        string // path of the CA bundle for Endpoint
	Style           ui.Style
	Terminal        bool                                                 // stdout is a terminal
	Current         func(factory.ClusterFlags) (*factory.Cluster, error) // the user's own kubeconfig

	kubeconfigs []session.Kubeconfig
	bundle      []byte // of --ca-bundle
}

// NewCommand returns `pinniped ip-tls status`.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{Session: session.New(f), Current: f.Cluster}
	cmd := &cobra.Command{
		Use: "status", Short: "Show the serving certificate and which kubeconfigs trust it",
		Long: `Show whether users can connect and, if not, what to do. Below that, the output shows what is configured, what
the agent reports and publishes, what each address of the endpoint presents now, when the certificate expires, who
renews it, and which kubeconfigs work.

For the USERS line, the command makes a TLS handshake and a request without credentials at each address. It compares
the result with the CA bundle and the names of every revision that clients may have ("pinniped ip-tls history").

The command checks the current kubeconfig. With --kubeconfigs, it instead checks the files that you pass, and all
kubeconfigs below the folders that you pass. Each context for this endpoint gets a verdict:

  works        it verifies the presented certificate, and has the published CA bundle
  outdated     it works, but its CA bundle is not the published one
  will break   it does not verify the configured certificate, which is not presented yet
  broken       it does not verify the presented certificate
  not known    no certificate is presented, or the context uses a credential plugin that pinniped does not know

If something cannot be read or does not respond, the output says so and shows the rest. If the cluster does not
respond, or your kubeconfig goes through the broken proxy, the command checks only the endpoint: the one in --endpoint,
or else the one that your kubeconfigs use. To follow a change, use watch(1).

Exit codes: 0 in effect, 1 only the endpoint was checked, 5 not in effect, 8 clients or kubeconfigs stop verifying
(see "pinniped help exit-codes")`,
		Example: `  pinniped ip-tls status

  # Which kubeconfigs break?
  pinniped ip-tls status --kubeconfigs ~/.kube --kubeconfigs team.yaml

  # In a script
  pinniped ip-tls status -o json --quiet | jq .certificate.notAfter`,
		Args: factory.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			o.Style, o.Terminal = f.Style(f.Out), ui.IsTerminal(f.Out) && f.Getenv("TERM") != "dumb"
			return factory.Execute(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.KubeconfigsFrom, "kubeconfigs", nil,
		"file or folder with kubeconfigs to check (repeatable; default: the current kubeconfig)")
	flags.StringVar(&o.Endpoint, "endpoint", "",
		"HOST or HOST:PORT to check when the cluster does not respond (default: the endpoint that kubeconfigs use)")
	flags.StringVar(&o.CABundle, "ca-bundle", "",
		"with --endpoint: PEM file with the CA bundle of clients (default: the one in kubeconfigs for this endpoint)")
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{"endpoint": cobra.NoFileCompletions})
	o.Session.AddFlags(cmd, f, 30*time.Second, factory.Formats()...)
	return cmd
}

// Validate checks the flags.
func (o *Options) Validate() error {
	if err := session.ValidateEndpoint("endpoint", o.Endpoint); err != nil {
		return err
	}
	if o.CABundle != "" && o.Endpoint == "" {
		return ui.WithHint(ui.Usage(errors.New("--ca-bundle needs --endpoint")), "name the endpoint: --endpoint HOST:PORT")
	}
	return o.Session.Validate(factory.Formats()...)
}

// Complete loads the kubeconfig. It sends no request.
func (o *Options) Complete() error {
	err := o.Session.Open()
	if err == nil && o.CABundle != "" {
		o.bundle, err = session.ReadPEMFile("the CA bundle", o.CABundle, o.Session.In)
	}
	if err != nil || len(o.KubeconfigsFrom) > 0 {
		return err // Run reads the kubeconfigs, as a large directory takes time
	}
	current, err := o.Current(o.Session.ClusterFlags)
	if err != nil {
		return err
	}
	o.kubeconfigs = []session.Kubeconfig{{File: "(current)", Config: current.Raw}}
	return nil
}

// Run collects and prints the status.
func (o *Options) Run(ctx context.Context) error {
	if len(o.KubeconfigsFrom) > 0 {
		var err error
		if o.kubeconfigs, err = o.Session.ReadKubeconfigs(ctx, o.KubeconfigsFrom); err != nil {
			return err
		}
	}
	status, err := o.gather(ctx)
	if status == nil {
		return err
	}
	if err == nil {
		err = o.verdict(status)
	}
	return o.Session.Print(status, err, func() ([]byte, error) { return o.text(status), nil })
}

// verdict returns the command's error. It does not repeat the reasons, which are in the result.
func (o *Options) verdict(status *result.Status) error {
	if !status.InEffect {
		text := "the configuration is not in effect"
		if code := status.Problems[0].Code; code != "" {
			text += " (" + code + ")"
		}
		return ui.WithExitCode(errors.New(text), ui.ExitNotConverged)
	}
	users, err := status.Users, o.kubeconfigVerdict(status)
	if err == nil && (users.State == result.UsersAllRefused || users.State == result.UsersSomeRefused) {
		err = fmt.Errorf("the configuration is in effect, but users are refused (%s)", users.Code)
	}
	return ui.WithExitCode(err, ui.ExitKubeconfigs)
}

// kubeconfigVerdict judges the kubeconfigs of --kubeconfigs. A link to a missing file is no error.
func (o *Options) kubeconfigVerdict(status *result.Status) error {
	if len(o.KubeconfigsFrom) == 0 {
		return nil
	}
	good := func(f result.File) bool { return f.Outcome != result.FileBroken && f.Outcome != result.FileWillBreak }
	read := func(f session.Kubeconfig) bool { return f.Err == nil || errors.Is(f.Err, kubeconfig.ErrDangling) }
	bad := len(slices.DeleteFunc(slices.Clone(status.Kubeconfigs), good))
	unread := len(slices.DeleteFunc(slices.Clone(o.kubeconfigs), read))
	switch total := len(status.Kubeconfigs); {
	case bad > 0 && unread > 0:
		return fmt.Errorf("%d of %d kubeconfigs are broken or will break, and %d cannot be read", bad, total, unread)
	case bad > 0:
		return fmt.Errorf("%d of %d kubeconfigs are broken or will break", bad, total)
	case unread > 0:
		return fmt.Errorf("%d of %d kubeconfigs cannot be read", unread, total)
	}
	return nil
}

// gather reads the status within the time limit. If the cluster does not respond, the last third of it is for the
// endpoint alone; the status then has an error. It does not wait that long if users get no response either.
func (o *Options) gather(ctx context.Context) (*result.Status, error) {
	ctx, cancel := factory.WithTimeout(ctx, o.Session.Timeout)
	defer cancel()
	asking, done := factory.WithTimeout(ctx, o.Session.Timeout*2/3)
	defer done()
	var status *result.Status
	var err error
	asked, early := make(chan struct{}), make(chan *snapshot, 1)
	go func() { // a credential plugin may outlive ctx
		defer close(asked)
		status, err = o.gatherStatus(asking)
	}()
	go o.probeEarly(asking, early)
	select {
	case <-asked:
		// Without a login, too: the kubeconfig may use the proxy, whose certificate may have expired.
		if ctx.Err() == nil && (errors.Is(err, discovery.ErrUnreachable) ||
			errors.Is(err, discovery.ErrPluginFailed) || errors.Is(err, context.DeadlineExceeded)) {
			return o.gatherAway(ctx, err, nil)
		}
		return status, err
	case seen := <-early:
		return o.gatherAway(ctx, fmt.Errorf("%w: no response within %s", discovery.ErrUnreachable, clusterPatience), seen)
	}
}
