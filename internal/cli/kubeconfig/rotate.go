package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/kubeconfig/fleet"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	"github.com/pinniped-toolkit/pinniped/pkg/atomicfile"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Discoverer reads what the command needs from a cluster.
type Discoverer = discovery.Reader

// RotateOptions holds the inputs of `pinniped kubeconfig rotate`; a test fills it directly.
type RotateOptions struct {
	genericiooptions.IOStreams
	Progress func() *ui.Progress

	Cluster          factory.ClusterFlags
	CredentialIssuer string
	Suffix           string
	Inputs           *atomicfile.Inputs
	// Connect loads the kubeconfig and returns a client. It sends no request.
	Connect func(factory.ClusterFlags, string) (Discoverer, error)
	// Usual is Connect for kubectl's default kubeconfig. It returns nil if that is not an administrator's.
	Usual func(suffix string) Discoverer
	// Manage returns the connection to the management cluster with kubeconfigs in Secrets.
	Manage func(factory.ClusterFlags) (*rest.Config, error)
	// Resolve returns the addresses of a host.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	Paths    []string // files and directories
	From     []string // KIND or KIND:NAMESPACE
	Selector string
	Contexts []string
	Admins   []string // files and directories

	Endpoint       string // overrides the published one
	CABundle       string // path that overrides the published one; "-" is In
	ExpectedCAs    []string
	SkipValidation bool
	DryRun         bool
	Output         string
	Timeout        time.Duration
	LockTimeout    time.Duration // for a kubeconfig that another program is changing

	progress *ui.Progress
}

func newRotateOptions(f *factory.Factory) *RotateOptions {
	connect := func(flags factory.ClusterFlags, suffix string) (Discoverer, error) {
		cluster, err := f.Cluster(flags)
		if err != nil {
			return nil, err
		}
		return f.Connect(cluster, suffix)
	}
	return &RotateOptions{
		IOStreams: f.IOStreams, Progress: f.Progress, LockTimeout: 5 * time.Second, Resolve: discovery.Resolve,
		Inputs: f.Inputs, Connect: connect,
		Usual: func(suffix string) Discoverer {
			cluster, err := f.Cluster(factory.ClusterFlags{})
			if err != nil {
				return nil
			}
			if user := cluster.Raw.AuthInfos[cluster.Source.UserName]; user != nil && kubeconfig.RunsPinniped(user) {
				return nil // it uses the proxy, and might open a browser
			}
			client, err := f.Connect(cluster, suffix)
			if err != nil {
				return nil
			}
			return client
		},
		Manage: func(flags factory.ClusterFlags) (*rest.Config, error) { return managementCluster(f, flags) },
	}
}

func (o *RotateOptions) command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate [FILE|FOLDER...]",
		Short: "Update the CA bundles in existing kubeconfigs",
		Long: `Update existing kubeconfigs with the CA bundles that their clusters publish. The command updates every cluster
entry whose server is an impersonation proxy, and every user entry whose "pinniped login" uses an impersonation proxy.
Everything else in the files stays the same, including comments and layout.

The command reads each cluster's bundle from the cluster's endpoint. The kubeconfig's own CA bundle verifies the connection,
so you do not need an administrator's credential. For the cluster of the current context, the command reads the
CredentialIssuer instead, if the context's user is permitted to read it. If a cluster is unreachable, the command
continues with the others. Use --admin-kubeconfig in these cases:

  - A kubeconfig's CA bundle no longer verifies its cluster.
  - The cluster runs Pinniped, or does not publish its trust bundle.
  - A key has leaked. In this case, --expect-ca works too.

With --kubeconfig, --endpoint or --ca-bundle, the command updates the entries of one cluster only: the cluster of the
administrator's kubeconfig, or the given endpoint. An entry belongs to this cluster if it uses the published endpoint, a
name in the endpoint's certificate, or a name or address of the endpoint's Service. If only a wildcard covers the name, the
name must resolve to the endpoint's addresses. With both --endpoint and --ca-bundle, the command reads nothing from the
cluster. Before the command changes any file, the bundle must verify the endpoint's certificate.

A FOLDER stands for all kubeconfigs in it and in its subfolders; other files are ignored. Symbolic links are followed.
Folders whose name begins with a dot are skipped, except .kube. Files are replaced atomically, under kubectl's lock, and
keep their permissions and owner. Secrets are patched with their resourceVersion. If the command is interrupted, run it
again.

Exit codes: 0 rotated, 1 some kubeconfigs were not rotated, 3 the bundle is refused, 4 not permitted (see "pinniped help exit-codes")`,
		Example: `  # What would change?
  pinniped kubeconfig rotate ~/.kube/config --dry-run

  # All kubeconfigs in a folder, in CI
  pinniped kubeconfig rotate kubeconfigs/ -o json

  # The cluster Secrets of Argo CD
  pinniped kubeconfig rotate --from argocd:argocd

  # Without access to the cluster
  pinniped kubeconfig rotate user.yaml --endpoint https://proxy.example.com --ca-bundle ca.pem`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && len(o.From) == 0 {
				return ui.WithHint(
					ui.Usage(errors.New("no kubeconfig given")),
					`run "pinniped kubeconfig rotate ~/.kube/config"`,
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
				return ui.WithHint(ui.Usage(errors.New("--expect-ca is empty")),
					"check the variable that sets it, or use --expect-ca none")
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.From, "from", nil,
		"also update kubeconfigs in Secrets of this kind: capi, argocd, flux, or KIND:NAMESPACE (repeatable)")
	flags.StringVarP(&o.Selector, "selector", "l", "", "label selector for the Secrets of --from")
	flags.StringSliceVar(&o.Contexts, "contexts", nil,
		`update only the clusters and users of these contexts, for example "prod-*" (default: all)`)
	flags.StringArrayVar(&o.Admins, "admin-kubeconfig", nil,
		"administrator's kubeconfig with which to read CA bundles, or a folder of such kubeconfigs (repeatable)")
	flags.StringSliceVar(&o.ExpectedCAs, "expect-ca", nil,
		`accept only CAs with these SHA-256 fingerprints, even in an older bundle ("none": accept no CA)`)
	flags.StringVar(&o.Endpoint, "endpoint", "", "URL of the endpoint (default: the published one)")
	flags.StringVar(&o.CABundle, "ca-bundle", "",
		`PEM file with the CA bundle, "-" for stdin (default: the published bundle)`)
	flags.BoolVar(&o.SkipValidation, "skip-validation", false,
		"do not check first that the bundle verifies the endpoint's certificate")
	flags.BoolVar(&o.DryRun, "dry-run", false, "print what would change")
	factory.AddOutput(cmd, &o.Output, factory.Formats()...)
	flags.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "total time limit (0: none)")
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

// Validate checks the flags.
func (o *RotateOptions) Validate() error {
	if err := factory.CheckOutput(o.Output, factory.Formats()...); err != nil {
		return err
	}
	for _, pattern := range o.Contexts {
		if _, err := path.Match(pattern, ""); err != nil {
			return ui.Usage(fmt.Errorf("invalid --contexts %q: %w", pattern, err))
		}
	}
	for _, from := range o.From {
		kind, namespace, named := strings.Cut(from, ":")
		if _, known := fleet.FormatOf(kind); !known || named && namespace == "" {
			return ui.WithHint(ui.Usage(fmt.Errorf("invalid --from %q", from)),
				"use capi, argocd or flux, or one of them with a namespace, such as argocd:argocd; "+
					"to pass files, omit --from")
		}
	}
	if o.Selector != "" && len(o.From) == 0 {
		return ui.Usage(errors.New("--selector needs --from"))
	}
	if one := o.oneCluster(); one != "" && len(o.Admins) > 0 {
		return ui.Usage(
			fmt.Errorf("%s is for one cluster, and --admin-kubeconfig is for several: use only one of these flags", one),
		)
	}
	var err error
	if o.ExpectedCAs, err = trustbundle.ParseExpected(o.ExpectedCAs); err != nil {
		return ui.Usage(fmt.Errorf("invalid --expect-ca: %w", err))
	}
	if o.Endpoint != "" && !strings.HasPrefix(o.Endpoint, "https://") {
		return ui.Usage(fmt.Errorf("invalid --endpoint %q: it must begin with \"https://\"", o.Endpoint))
	}
	return ui.Usage(factory.ValidateSuffix(o.Suffix))
}

// oneCluster returns the flag that selects a single cluster to rotate, or "". With --from, --kubeconfig selects the
// management cluster.
func (o *RotateOptions) oneCluster() string {
	switch {
	case o.Endpoint != "":
		return "--endpoint"
	case o.CABundle != "":
		return "--ca-bundle"
	case len(o.From) == 0 && o.Cluster.Kubeconfig != "":
		return "--kubeconfig"
	case len(o.From) == 0 && o.Cluster.Context != "":
		return "--kubeconfig-context"
	}
	return ""
}

// Run finds the kubeconfigs, reads the trust bundles of their clusters, and changes the kubeconfigs.
func (o *RotateOptions) Run(ctx context.Context) error {
	o.progress = o.Progress()
	ctx, cancel := factory.WithTimeout(ctx, o.Timeout)
	defer cancel()
	options := fleet.Options{
		Contexts: o.Contexts, Only: o.oneCluster() != "", ExpectedCAs: o.ExpectedCAs, DryRun: o.DryRun,
		Concurrency: 64, ClusterTimeout: 10 * time.Second, Retries: 3, Progress: o.progress, Now: time.Now,
	}
	var err error
	if options.Places, err = o.places(); err != nil {
		return err
	}
	if options.Only {
		options.Admins, err = o.one()
	} else {
		options.Admins, err = o.admins(ctx)
	}
	if err != nil {
		return err
	}
	done, err := fleet.Run(ctx, options)
	if source, ok := errors.AsType[*fleet.SourceError](err); ok {
		return explainSource(source.Err)
	}
	return o.report(done, err)
}

// explainSource adds exit code and hint to the error of a single cluster. No kubeconfig was changed.
func explainSource(err error) error {
	refused, ok := errors.AsType[*fleet.BundleError](err)
	switch {
	case ok && refused.Unexpected:
		return ui.WithExitCode(err, ui.ExitRefused)
	case errors.Is(err, discovery.ErrForbidden):
		return ui.WithHint(
			ui.WithExitCode(err, ui.ExitNotPermitted),
			"use an administrator's kubeconfig with --kubeconfig, or omit the flag to read the bundle from the endpoint",
		)
	case ok && discovery.Permanent(err):
		return ui.WithExitCode(discovery.Explain(err), ui.ExitRefused)
	case ok:
		return ui.WithHint(err, "no file was changed; --skip-validation skips this check")
	}
	return err
}

// places returns the places of the kubeconfigs.
func (o *RotateOptions) places() ([]fleet.Place, error) {
	var places []fleet.Place
	if len(o.Paths) > 0 {
		places = append(places, &fleet.Files{
			Paths: o.Paths, Contexts: o.Contexts, LockTimeout: o.LockTimeout, Hidden: o.hidden,
		})
	}
	for _, from := range o.From {
		kind, namespace, _ := strings.Cut(from, ":")
		format, _ := fleet.FormatOf(kind)
		config, err := o.Manage(o.Cluster)
		if err != nil {
			return nil, err
		}
		var namespaces []string
		if namespace != "" {
			namespaces = []string{namespace}
		}
		place, err := fleet.NewSecrets(config, format, namespaces, o.Selector)
		if err != nil {
			return nil, ui.Usage(err)
		}
		places = append(places, place)
	}
	return places, nil
}

func (o *RotateOptions) hidden(path string) {
	o.progress.Info("Skipped hidden folder %q: pass its path if it has kubeconfigs", path)
}

// one returns the single cluster that flags select.
func (o *RotateOptions) one() ([]fleet.Admin, error) {
	bundle, err := o.readBundle()
	if err != nil {
		return nil, err
	}
	return []fleet.Admin{
		{Name: "the cluster", Untried: o.SkipValidation, Target: func(ctx context.Context) (kubeconfig.Target, error) {
			var client Discoverer
			if o.Endpoint == "" || o.CABundle == "" {
				var err error
				if client, err = o.Connect(o.Cluster, o.Suffix); err != nil {
					return kubeconfig.Target{}, fleet.Permanent(err)
				}
			}
			target, err := o.target(ctx, client)
			if err != nil {
				return target, err
			}
			if o.CABundle != "" {
				target.CABundle = bundle
			}
			members := "none (clients use their system roots)"
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
		}},
	}, nil
}

// target returns what a cluster publishes, or nothing without a client. --endpoint overrides all names of the proxy.
func (o *RotateOptions) target(ctx context.Context, client Discoverer) (target kubeconfig.Target, err error) {
	if client != nil {
		var warnings []string
		target, warnings, err = discovery.Target(ctx, client, o.CredentialIssuer, o.Resolve)
		for _, warning := range warnings {
			o.progress.Warn("%s", warning)
		}
	}
	if o.Endpoint != "" {
		target.Endpoint = kubeconfig.Endpoint{URL: o.Endpoint}
	}
	return target, err
}

// readBundle returns the CA bundle of --ca-bundle, or nil without the flag.
func (o *RotateOptions) readBundle() ([]byte, error) {
	const most = 8 << 20
	var bundle []byte
	var err error
	switch o.CABundle {
	case "":
		return nil, nil
	case "-":
		bundle, err = atomicfile.ReadStream(o.In, most)
	default:
		bundle, err = kubeconfig.ReadInput(o.CABundle)
	}
	if err != nil {
		err = ui.Usage(fmt.Errorf("reading CA bundle %q: %w", o.CABundle, err))
		return nil, ui.WithFileHint(err, "certificates in PEM")
	}
	return bundle, nil
}

// admins returns the clusters with an administrator's kubeconfig: one per context of --admin-kubeconfig, or the current
// context.
func (o *RotateOptions) admins(ctx context.Context) ([]fleet.Admin, error) {
	if len(o.Admins) == 0 {
		client := o.Usual(o.Suffix)
		if client == nil {
			return nil, nil
		}
		return []fleet.Admin{{
			Name: "the current context", Optional: true,
			Target: func(ctx context.Context) (kubeconfig.Target, error) { return o.target(ctx, client) },
		}}, nil
	}
	files, err := kubeconfig.Find(ctx, o.Admins)
	if err != nil {
		return nil, err
	}
	var admins []fleet.Admin
	for _, file := range files {
		if file.Hidden {
			o.hidden(file.Path)
			continue
		}
		found, err := o.adminsIn(file)
		admins = append(admins, found...)
		if err != nil && (file.Named || !errors.Is(err, kubeconfig.ErrNotKubeconfig)) {
			return nil, fmt.Errorf("reading administrators' kubeconfigs: %w", err)
		}
	}
	return admins, nil
}

func (o *RotateOptions) adminsIn(file kubeconfig.Found) ([]fleet.Admin, error) {
	config, err := file.Load(o.Inputs)
	if err != nil {
		return nil, err
	}
	var admins []fleet.Admin
	for _, name := range slices.Sorted(maps.Keys(config.Contexts)) {
		flags := factory.ClusterFlags{Kubeconfig: filepath.Clean(file.Path), Context: name}
		admins = append(admins, fleet.Admin{
			Name: fmt.Sprintf("%s (context %q)", file.Path, name),
			Target: func(ctx context.Context) (kubeconfig.Target, error) {
				client, err := o.Connect(flags, o.Suffix)
				if err != nil {
					return kubeconfig.Target{}, fleet.Permanent(err)
				}
				return o.target(ctx, client)
			},
		})
	}
	return admins, nil
}

// managementCluster returns the connection to the cluster with kubeconfigs in Secrets: from the kubeconfig, or in a pod
// from its service account.
func managementCluster(f *factory.Factory, flags factory.ClusterFlags) (*rest.Config, error) {
	if flags.Kubeconfig == "" && f.Getenv("KUBECONFIG") == "" && f.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("connecting to the management cluster with this pod's service account: %w", err)
		}
		return config, nil
	}
	cluster, err := f.Cluster(flags)
	if err != nil {
		return nil, err
	}
	return cluster.REST, nil
}
