package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/advertised"
	"github.com/pinniped-toolkit/pinniped/internal/cli/endpoint"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/handed"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Discoverer reads what the command needs from a cluster.
type Discoverer = advertised.Discoverer

// RotateOptions is everything `pinniped kubeconfig rotate` needs; a test fills it directly.
type RotateOptions struct {
	genericiooptions.IOStreams
	Progress func() *ui.Progress

	Cluster          factory.ClusterFlags
	CredentialIssuer string
	Suffix           string
	// Connect loads the kubeconfig and returns a client. It contacts nothing.
	Connect func(factory.ClusterFlags, string) (Discoverer, error)
	// Manage says how to reach the management cluster that has kubeconfigs in Secrets.
	Manage Management
	// Resolve returns the addresses of a host.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	FleetOptions

	Paths          []string // files and folders
	Endpoint       string   // replaces the advertised one
	CABundle       string   // file that replaces the advertised one; "-" is In
	SkipValidation bool
	DryRun         bool
	Output         string
	Timeout        time.Duration
	LockTimeout    time.Duration // how long to wait for a kubeconfig that another program is changing

	progress *ui.Progress
}

func newRotateCommand(f *factory.Factory) *cobra.Command { return newRotateOptions(f).command(f) }

func newRotateOptions(f *factory.Factory) *RotateOptions {
	return &RotateOptions{
		IOStreams: f.IOStreams, Progress: f.Progress, LockTimeout: 5 * time.Second, Resolve: endpoint.Resolve,
		Connect: func(flags factory.ClusterFlags, suffix string) (Discoverer, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return nil, err
			}
			return f.Connect(cluster, suffix)
		},
		Manage: func(flags factory.ClusterFlags) (*rest.Config, error) { return managementCluster(f, flags) },
	}
}

func (o *RotateOptions) command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate [FILE|FOLDER...]",
		Short: "Put the CA bundle that a cluster advertises into existing kubeconfigs",
		Long: `Put the CA bundle that a cluster advertises now into existing kubeconfigs: into every cluster whose server is the impersonation proxy, and
into every "pinniped login" that goes there. Nothing else in the files changes, comments and layout included.

What leads to the proxy is known by its names and addresses: the advertised endpoint, the names that the certificate in service covers, and
those of the Service in front of it. A name that only a wildcard of the certificate covers must resolve to the same addresses. With
--endpoint, that address alone counts.

The advertised bundle is read with an administrator's kubeconfig (--kubeconfig). With --endpoint and --ca-bundle no cluster is asked.
Before any file is touched, the bundle must verify the certificate that the endpoint presents.

A FOLDER stands for all kubeconfigs in it and in the folders below; other files there are left alone. Symbolic links are followed, and what
several lead to is done once. Folders whose name begins with a dot are left out, which is said, except .kube. Each file is replaced
as a whole or not at all, under the lock that kubectl uses, and keeps its permissions and owner. A file that cannot be rotated, as
merge markers are in it for example, does not keep the others from it.

A fleet: with --fleet, --admin-kubeconfig or --from, entries are sorted by clusters, and each cluster is asked once what it advertises. Without an
administrator's kubeconfig it is asked at its own endpoint, over a connection that the kubeconfig's own CA bundle verifies: trust is handed
on, and never made from nothing. A kubeconfig whose CA bundle does not verify its cluster any more, a cluster of Pinniped, and one that has
this switched off need --admin-kubeconfig. After the leak of a key, use that, or --expect-ca. One cluster that does not answer stops no other.

With --journal, a run that was interrupted, or killed, goes on where it ended, and --undo takes it back. Secrets are changed by a patch with
their resourceVersion, so that nothing is overwritten that somebody else writes.

Exit codes: 0 every file that leads to the endpoint has the bundle (or would have, with --dry-run), 1 a file failed or the endpoint
cannot be reached, 2 wrong usage, 3 the bundle does not verify what the endpoint presents, 4 not permitted by the cluster, 124 timed
out, 130 interrupted. Entries that are skipped are no failure; the result names them. Of a fleet it is 1 if a cluster could not be
asked, or an entry did not get what its cluster advertises.`,
		Example: `  # What would change?
  pinniped kubeconfig rotate ~/.kube/config --dry-run

  # All clusters that kubeconfigs in a folder lead to, in CI
  pinniped kubeconfig rotate --fleet kubeconfigs/ --journal rotate.journal --junit report.xml
  pinniped kubeconfig rotate --undo rotate.journal

  # The cluster Secrets of Argo CD
  pinniped kubeconfig rotate --from argocd --namespace argocd

  # Without access to the cluster
  pinniped kubeconfig rotate user.yaml --endpoint https://proxy.example.com --ca-bundle ca.pem`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && len(o.From) == 0 && o.Undo == "" {
				return ui.WithHint(
					ui.Usage(errors.New("no kubeconfig given")),
					`name files or folders, for example "pinniped kubeconfig rotate ~/.kube/config"`,
				)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Paths, err = f.ExpandPaths(args); err != nil {
				return err
			}
			if cmd.Flags().Changed("expect-ca") && len(o.ExpectedCAs) == 0 {
				return ui.WithHint(ui.Usage(errors.New("--expect-ca is empty, and would take any CA bundle")),
					"is the variable set from which it comes?")
			}
			if err := o.Validate(); err != nil {
				return err
			}
			if o.asked() {
				return o.runFleet(cmd.Context())
			}
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Endpoint, "endpoint", "", "address of the endpoint (default: the advertised one)")
	flags.StringVar(
		&o.CABundle,
		"ca-bundle",
		"",
		`PEM file with the CA bundle, "-" for stdin (default: the advertised one)`,
	)
	flags.BoolVar(
		&o.SkipValidation,
		"skip-validation",
		false,
		"do not try whether the bundle verifies what the endpoint presents",
	)
	flags.BoolVar(&o.DryRun, "dry-run", false, "only say what would change")
	factory.AddOutput(cmd, &o.Output, rotateFormats()...)
	o.addFlags(flags)
	flags.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "how long it may take in all (0: no limit)")
	flags.StringVar(&o.CredentialIssuer, "credential-issuer", "", "name of the CredentialIssuer (default: the only one)")
	flags.StringVar(&o.Suffix, "api-group-suffix", apis.DefaultGroupSuffix, "API group suffix of the installation")
	o.Cluster.AddFlags(flags)
	factory.Bind(flags, "timeout", factory.KeyTimeout)
	factory.Bind(flags, "expect-ca", factory.KeyExpectCA)
	factory.Bind(flags, "credential-issuer", factory.KeyCredentialIssuer)
	factory.Bind(flags, "api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"credential-issuer":  f.CompleteCredentialIssuers(&o.Cluster, &o.Suffix),
		"kubeconfig-context": f.CompleteContexts(&o.Cluster),
	})
	return cmd
}

// formatJUnit is the format that fleets have besides those of all commands.
const formatJUnit = "junit"

// rotateFormats are the values of --output.
func rotateFormats() []string { return factory.Formats(formatJUnit) }

// Validate checks the flags before anything is contacted.
func (o *RotateOptions) Validate() error {
	if err := factory.CheckOutput(o.Output, rotateFormats()...); err != nil {
		return err
	}
	if o.asked() {
		if err := o.validateFleet(); err != nil {
			return err
		}
	} else if flag := o.forFleet(o.Output); flag != "" {
		return ui.WithHint(ui.Usage(fmt.Errorf("%s is for a fleet", flag)), "add --fleet, --admin-kubeconfig or --from")
	}
	var err error
	if o.ExpectedCAs, err = handed.ParseExpected(o.ExpectedCAs); err != nil {
		return ui.Usage(fmt.Errorf("invalid --expect-ca: %w", err))
	}
	if o.Endpoint != "" && !strings.HasPrefix(o.Endpoint, "https://") {
		return ui.Usage(fmt.Errorf("invalid --endpoint %q: it must begin with \"https://\"", o.Endpoint))
	}
	return ui.Usage(factory.ValidateSuffix(o.Suffix))
}

// Run looks at the files, finds out what clients must trust, tries it, and goes through the files.
func (o *RotateOptions) Run(ctx context.Context) error {
	o.progress = o.Progress()
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	files, err := kubeconfig.Find(ctx, o.Paths)
	if err != nil {
		return err
	}
	files = o.withoutHidden(files)
	if err := o.readable(files); err != nil {
		return err
	}
	target, err := o.target(ctx)
	if err != nil {
		return err
	}
	if !o.SkipValidation {
		if err := o.tryTarget(ctx, target); err != nil {
			return err
		}
	}
	rotation := &Result{
		Endpoint: target.URL, CABundle: result.BundleOf(target.CABundle), DryRun: o.DryRun, Files: []result.File{},
	}
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return o.print(rotation,
				fmt.Errorf("rotating kubeconfigs: %d of %d are left: %w", len(files)-len(rotation.Files), len(files), err))
		}
		if one, ok := o.rotate(ctx, file, target); ok {
			rotation.Files = append(rotation.Files, one)
		}
	}
	return o.print(rotation, o.summarise(rotation))
}

// readable names the files on the command line that cannot be read or are no kubeconfigs, before any cluster is asked.
// It returns an error when there are no others.
func (o *RotateOptions) readable(files []kubeconfig.Found) error {
	var problems []string
	for _, file := range files {
		if !file.Named {
			continue
		}
		if _, err := kubeconfig.LoadAsWritten(file.Path); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) < len(files) || len(files) == 0 {
		for _, problem := range problems {
			o.progress.Fail("%s", problem)
		}
		return nil
	}
	return ui.WithHint(errors.New(strings.Join(problems, "; ")), "name kubeconfigs, or folders in which they are")
}

// target returns where clients connect, and what they must trust there.
func (o *RotateOptions) target(ctx context.Context) (kubeconfig.Target, error) {
	target := kubeconfig.Target{Endpoint: kubeconfig.Endpoint{URL: o.Endpoint}}
	bundle, err := o.readBundle()
	if err != nil {
		return target, err
	}
	if o.Endpoint == "" || o.CABundle == "" {
		client, err := o.Connect(o.Cluster, o.Suffix)
		if err != nil {
			return target, err
		}
		issuer, frontend, err := advertised.Frontend(ctx, client, o.CredentialIssuer)
		if err != nil {
			if errors.Is(err, discovery.ErrForbidden) {
				err = ui.WithHint(ui.WithExitCode(err, ui.ExitNotPermitted),
					"it needs an administrator's kubeconfig (--kubeconfig); with --fleet the endpoint itself is asked, without one")
			}
			return target, err
		}
		target.CABundle = frontend.CABundle
		if frontend.Trouble != "" {
			o.progress.Warn("the configuration of the impersonation proxy is not in effect; kubeconfigs get the CA bundle "+
				"of what serves now: %s", frontend.Trouble)
		}
		if o.Endpoint == "" {
			var warnings []string
			target.Endpoint, warnings, err = advertised.Names(ctx, client, issuer, frontend.Endpoint, o.Resolve)
			for _, warning := range warnings {
				o.progress.Warn("%s", warning)
			}
			if err != nil {
				return target, err
			}
		}
	}
	if o.CABundle != "" {
		target.CABundle = bundle
	}
	if err := (handed.Policy{Expected: o.ExpectedCAs}).Unexpected(target.CABundle); err != nil {
		return target, ui.WithExitCode(fmt.Errorf("the CA bundle for %q: %w", target.URL, err), ui.ExitRefused)
	}
	members := "none: clients use their system roots"
	if len(target.CABundle) > 0 {
		count, err := kubeconfig.CountCertificates(target.CABundle)
		if err != nil {
			return target, fmt.Errorf("checking the CA bundle: %w", err)
		}
		if members = "1 certificate"; count > 1 {
			members = fmt.Sprintf("%d certificates", count)
		}
	}
	o.progress.Info("Endpoint %s, CA bundle: %s", target.URL, members)
	return target, nil
}

// withoutHidden removes the hidden folders, which were not searched, and prints a line about each.
func (o *RotateOptions) withoutHidden(files []kubeconfig.Found) []kubeconfig.Found {
	return slices.DeleteFunc(files, func(file kubeconfig.Found) bool {
		if file.Hidden {
			o.hidden(file.Path)
		}
		return file.Hidden
	})
}

func (o *RotateOptions) hidden(path string) {
	o.progress.Info("Did not look into %q, whose name begins with a dot: name it if kubeconfigs are there", path)
}

// readBundle returns the CA bundle of --ca-bundle; none without the flag.
func (o *RotateOptions) readBundle() ([]byte, error) {
	var bundle []byte
	var err error
	switch o.CABundle {
	case "":
		return nil, nil
	case "-":
		bundle, err = io.ReadAll(o.In)
	default:
		bundle, err = os.ReadFile(o.CABundle)
	}
	if err != nil {
		return nil, ui.Usage(fmt.Errorf("reading CA bundle %q: %w", o.CABundle, err))
	}
	return bundle, nil
}

// tryTarget connects to the endpoint with the CA bundle, as the kubeconfigs will after their rotation.
func (o *RotateOptions) tryTarget(ctx context.Context, target kubeconfig.Target) error {
	client, err := endpoint.NewClient(&clientcmdapi.Cluster{Server: target.URL}, target.CABundle)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	if err := endpoint.Try(ctx, client, target.URL); err != nil {
		err = fmt.Errorf("connecting to %q with the CA bundle: %w", target.URL, err)
		if ctx.Err() == nil && endpoint.Permanent(err) {
			return ui.WithExitCode(endpoint.Explain(err), ui.ExitRefused)
		}
		return ui.WithHint(err, "no file was changed; --skip-validation goes on without trying the endpoint")
	}
	o.progress.Done("The CA bundle verifies what the endpoint presents")
	return nil
}

// rotate does one file. It reports false for a file of a folder that is no kubeconfig.
func (o *RotateOptions) rotate(
	ctx context.Context,
	file kubeconfig.Found,
	target kubeconfig.Target,
) (result.File, bool) {
	one := result.File{Path: file.Path}
	switch {
	case errors.Is(file.Err, kubeconfig.ErrDangling): // what is not there cannot be used either
		one.Outcome, one.Reason = result.FileSkipped, file.Err.Error()
		return one, true
	case file.Err != nil:
		one.Outcome, one.Reason = result.FileFailed, file.Err.Error()
		return one, true
	}
	ctx, cancel := context.WithTimeout(ctx, o.LockTimeout)
	defer cancel()
	rotation, err := kubeconfig.RotateFile(ctx, file.Path, target, o.DryRun)
	switch {
	case errors.Is(err, kubeconfig.ErrNotKubeconfig) && !file.Named:
		return one, false
	case err != nil:
		one.Outcome, one.Reason = result.FileFailed, err.Error()
		return one, true
	}
	one.Entries, one.Added = entriesOf(rotation.Entries), addedBy(rotation.Changes)
	one.Outcome = fileOutcome(one.Entries)
	return one, true
}
