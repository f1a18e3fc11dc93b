// Package getkubeconfig implements `pinniped get kubeconfig`.
package getkubeconfig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Discoverer reads what the command needs from a cluster.
type Discoverer interface {
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
	Authenticator(ctx context.Context, kind discovery.AuthenticatorType, name string) (*discovery.Authenticator, error)
	AuthenticatorCABundle(ctx context.Context, tls *authenticationv1alpha1.TLSSpec) ([]byte, error)
}

// Options holds the inputs of the command; a test fills it directly.
type Options struct {
	genericiooptions.IOStreams
	Progress *ui.Progress

	Cluster factory.ClusterFlags
	// Connect loads the kubeconfig and returns the chosen context and a client. It sends no request.
	Connect func(factory.ClusterFlags, string) (*kubeconfig.Source, Discoverer, error)

	// From, if its URL is set, replaces Cluster.
	From       From
	Login      Login
	PrintLogin bool              // print the login for the CredentialIssuer instead of a kubeconfig
	notOnPath  bool              // the kubeconfig runs this program by its path
	Given      func(string) bool // reports whether a flag was given; nil: none
	TokenFile  string            // for LoginBearer
	Args       []string          // process arguments, for a hint

	StaticToken    string
	StaticTokenEnv string

	NoConcierge       bool
	CredentialIssuer  string
	AuthenticatorType discovery.AuthenticatorType
	AuthenticatorName string
	Suffix            string
	SkipWait          bool
	CABundle          []byte // replaces the discovered one
	Endpoint          string // replaces the discovered one
	Mode              discovery.Mode
	Auto              bool // no mode was requested explicitly
	// NoImpersonation makes a kubeconfig for all users with strategy ServiceAccountToken.
	NoImpersonation bool
	// Follow is empty, kubeconfig.FollowUsual, or the absolute path of the kubeconfig.
	Follow string
	// LogIn logs in with the plugin of a connection.
	LogIn func(ctx context.Context, connection *rest.Config) (*login.Credential, error)

	OIDC OIDCOptions

	Validation      Validation
	Timeout         time.Duration
	Destination     Destination
	NameSuffix      string
	Names           kubeconfig.Names // override those with the suffix
	CredentialCache *string          // nil unless the flag was given
	CLIPath         string
	InstallHint     string

	issuer *configv1alpha1.CredentialIssuer // set after discovery
	mode   discovery.Mode                   // mode of the chosen frontend
	tried  [][2]string                      // results of ValidateLogin, for the summary

	// Executable returns the path of this program. ConnectAs returns a client for a cluster with a credential.
	Executable func() (string, error)
	ConnectAs  func(*rest.Config, string) (*discovery.Client, error)
	Now        func() time.Time
	// PollInterval is the time between two checks of something that is starting.
	PollInterval time.Duration
	// StatusWait is how long to wait for an agent that has not reported anything yet, and for a pending strategy that
	// is preferred to a working one.
	StatusWait time.Duration
}

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	o := &Options{
		IOStreams:    f.IOStreams,
		PollInterval: 2 * time.Second,
		StatusWait:   30 * time.Second,
		Destination:  Destination{LockTimeout: 15 * time.Second},
		ConnectAs:    discovery.Connect,
		Executable:   f.Executable, Now: f.Now,
		LogIn: func(ctx context.Context, connection *rest.Config) (*login.Credential, error) {
			session, err := login.NewSession(f, &factory.Cluster{REST: connection})
			if err != nil {
				return nil, err
			}
			return session.Credential(ctx, 0)
		},
		Connect: func(flags factory.ClusterFlags, suffix string) (*kubeconfig.Source, Discoverer, error) {
			cluster, err := f.Cluster(flags)
			if err != nil {
				return nil, nil, err
			}
			client, err := f.Connect(cluster, suffix)
			if err != nil {
				return nil, nil, err
			}
			return cluster.Source, client, nil
		},
	}
	caBundle, oidcCABundle := bundleFlag{expand: f.ExpandPath}, bundleFlag{expand: f.ExpandPath}
	var credentialCache string
	var skipValidation bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Create a kubeconfig for logging in to a cluster",
		Long: `Create a kubeconfig for logging in to a cluster. The command reads the strategy, endpoint and CA bundle from the
CredentialIssuer, and tests the connection before it writes the kubeconfig. The kubeconfig contains no credentials
unless you use --static-token. kubectl gets credentials from the credential plugin "pinniped login".

With --login bearer, there is no plugin. Clients send a token from a file to the impersonation proxy. The proxy accepts
tokens of the authenticators that are listed in spec.impersonationProxy.bearerTokens of the CredentialIssuer.

In the CredentialIssuer, spec.impersonationProxy.kubeconfig sets the defaults for the login flags. If this field is set,
anyone can use --from URL to fetch a kubeconfig with these defaults, without access to the cluster. The command verifies
the proxy with the system roots, --ca-bundle or --ca-fingerprint. On a terminal, it shows you the fingerprint of an
unknown CA and asks whether to trust it.

--merge-into FILE adds the context, cluster and user to a kubeconfig. The rest of the file stays the same, including
comments and layout. The command never replaces same-named entries that it did not create. Only --set-current changes
the current context. The command holds kubectl's lock, so several commands can merge into one file at once.

--check compares the result with the file of -o or --merge-into and writes nothing. It ignores differences in
formatting. --diff also prints the differences, without secrets.

The kubeconfig runs the plugin as "pinniped" if the "pinniped" on your PATH is this program. Otherwise, the kubeconfig
has this program's full path, and "pinniped get kubeconfig" prints that path. Set --pinniped-cli-path if users have the
program elsewhere.

Exit codes: 0 done, 6 --check or --diff found differences (see "pinniped help exit-codes")`,
		Example: `  # create your own kubeconfig, without access to the cluster
  pinniped get kubeconfig --from https://proxy.example.com --merge-into ~/.kube/config --set-current

  # add the cluster to a kubeconfig that has other clusters
  pinniped get kubeconfig --oidc-client-id my-client --context-name dev --merge-into ~/.kube/config --set-current

  # check whether the kubeconfig that users have still matches the cluster
  pinniped get kubeconfig --static-token-env TOKEN -o user.yaml --diff

  # create a kubeconfig for CI jobs that have a token in a file and no pinniped CLI
  pinniped get kubeconfig --login bearer --token-file /var/run/secrets/tokens/cluster -o ci.yaml`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Auto = cmd.Flags().Changed("concierge-mode") && o.Mode == ""
			o.Args, o.Given = f.Args, cmd.Flags().Changed
			o.Progress, o.CABundle, o.OIDC.CABundle = f.Progress(), caBundle.pem, oidcCABundle.pem
			if cmd.Flags().Changed("credential-cache") {
				o.CredentialCache = &credentialCache
			}
			if err := absolute(&credentialCache, &o.OIDC.SessionCache); err != nil {
				return err
			}
			if skipValidation && cmd.Flags().Changed("validate") && o.Validation != ValidateNothing {
				return ui.Usage(errors.New("--skip-validation conflicts with --validate"))
			}
			if skipValidation {
				o.Validation = ValidateNothing
			}
			if err := o.Complete(exec.LookPath); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.StaticToken, "static-token", "", "log in with this token, which is stored in the kubeconfig")
	flags.StringVar(&o.StaticTokenEnv, "static-token-env", "", "log in with the token in this environment variable")

	flags.Var(
		textFlag[Login]{&o.Login, parseLogin, LoginPlugin, "login"},
		"login",
		`how to log in: "plugin" (the pinniped CLI), "bearer" (a token file), or the name of a login in the CredentialIssuer`,
	)
	flags.StringVar(
		&o.From.URL,
		"from",
		"",
		"fetch the kubeconfig from the proxy at this URL, without access to the cluster",
	)
	flags.StringSliceVar(
		&o.From.Fingerprints,
		"ca-fingerprint",
		nil,
		"SHA-256 fingerprint of the --from proxy's CA (default: the system roots)",
	)
	flags.BoolVar(
		&o.PrintLogin,
		"print-login",
		false,
		"print this login for spec.impersonationProxy.kubeconfig, and create no kubeconfig",
	)
	flags.StringVar(
		&o.TokenFile,
		"token-file",
		"",
		"path of the token file on clients, relative to the kubeconfig (with --login bearer)",
	)

	flags.BoolVar(
		&o.NoConcierge,
		"no-concierge",
		false,
		"send the credential directly to the cluster, without exchanging it",
	)
	flags.String("concierge-namespace", "pinniped-concierge", "no longer needed")
	flags.Lookup("concierge-namespace").Hidden = true
	flags.StringVar(
		&o.CredentialIssuer,
		"concierge-credential-issuer",
		"",
		"name of the CredentialIssuer (default: the only one)",
	)
	flags.Var(
		textFlag[discovery.AuthenticatorType]{&o.AuthenticatorType, discovery.ParseAuthenticatorType, "", "type"},
		"concierge-authenticator-type",
		`type of the authenticator, "webhook" or "jwt" (default: detected)`,
	)
	flags.StringVar(
		&o.AuthenticatorName,
		"concierge-authenticator-name",
		"",
		"name of the authenticator (default: the only one)",
	)
	flags.StringVar(
		&o.Suffix,
		"concierge-api-group-suffix",
		apis.DefaultGroupSuffix,
		"API group suffix of the installation",
	)
	flags.BoolVar(&o.SkipWait, "concierge-skip-wait", false, "do not wait for strategies that are still pending")
	flags.Var(
		&caBundle,
		"concierge-ca-bundle",
		"PEM file with the CA bundle, repeatable (default: the published bundle)",
	)
	flags.StringVar(&o.Endpoint, "concierge-endpoint", "", "address of the endpoint (default: the published one)")
	flags.Var(
		textFlag[discovery.Mode]{&o.Mode, discovery.ParseMode, "", "mode"},
		"concierge-mode",
		"TokenCredentialRequestAPI, ImpersonationProxy, ServiceAccountToken, or auto (the first one that works)",
	)
	flags.BoolVar(
		&o.NoImpersonation,
		"no-impersonation",
		false,
		"in mode ServiceAccountToken, create a kubeconfig for \"pinniped run\", without logging in",
	)

	flags.StringVar(
		&o.Follow,
		"follow",
		"",
		"at login, write the proxy's new CA bundle to the kubeconfig that kubectl uses by default, or to the "+
			"kubeconfig at this absolute path",
	)
	flags.Lookup("follow").NoOptDefVal = kubeconfig.FollowUsual
	o.OIDC.addFlags(flags, &oidcCABundle)

	o.Cluster.AddFlags(flags)
	flags.BoolVar(&skipValidation, "skip-validation", false, "skip the connection test (--validate=none)")
	flags.Var(
		textFlag[Validation]{&o.Validation, parseValidation, ValidateConnection, "what"},
		"validate",
		`what to test: "connection", "login" (run the plugin, then whoami) or "none"`,
	)
	flags.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "time limit for discovery and validation (0: none)")
	o.Destination.addFlags(cmd)
	flags.StringVar(
		&o.NameSuffix,
		"generated-name-suffix",
		"-pinniped",
		"suffix for the names of the context, cluster and user",
	)
	flags.StringVar(
		&o.Names.Context,
		"context-name",
		"",
		"name of the context (default: the name in your kubeconfig, plus the suffix)",
	)
	flags.StringVar(
		&o.Names.Cluster,
		"cluster-name",
		"",
		"name of the cluster (default: the name in your kubeconfig, plus the suffix)",
	)
	flags.StringVar(
		&o.Names.User,
		"user-name",
		"",
		"name of the user (default: the name in your kubeconfig, plus the suffix)",
	)
	flags.StringVar(
		&credentialCache,
		"credential-cache",
		"",
		"file that caches users' credentials (default: the plugin's default file; empty: no cache)",
	)
	flags.StringVar(
		&o.CLIPath,
		"pinniped-cli-path",
		"",
		`users' command for the pinniped CLI (default: "pinniped" if that runs this program, else this program's path)`,
	)
	flags.StringVar(
		&o.InstallHint,
		"install-hint",
		kubeconfig.DefaultInstallHint,
		"what kubectl prints when the pinniped CLI is missing",
	)

	factory.Bind(flags, "concierge-credential-issuer", factory.KeyCredentialIssuer)
	factory.Bind(flags, "concierge-api-group-suffix", factory.KeyAPIGroupSuffix)
	factory.Bind(flags, "timeout", factory.KeyTimeout)
	factory.Bind(flags, "generated-name-suffix", factory.KeyGeneratedNameSuffix)
	factory.Bind(flags, "pinniped-cli-path", factory.KeyPinnipedCLIPath)
	factory.Bind(flags, "install-hint", factory.KeyInstallHint)
	o.complete(cmd, f)
	return cmd
}

// complete registers shell completion.
func (o *Options) complete(cmd *cobra.Command, f *factory.Factory) {
	factory.CompleteFlags(cmd, map[string]cobra.CompletionFunc{
		"validate":                        factory.CompleteValues("connection", "login", "none"),
		"login":                           factory.CompleteValues(string(LoginPlugin), string(LoginBearer)),
		"concierge-mode":                  factory.CompleteValues(modes()...),
		"concierge-authenticator-type":    factory.CompleteValues("webhook", "jwt"),
		"concierge-credential-issuer":     f.CompleteCredentialIssuers(&o.Cluster, &o.Suffix),
		"kubeconfig-context":              f.CompleteContexts(&o.Cluster),
		"upstream-identity-provider-type": factory.CompleteValues(oidclogin.UpstreamTypes()...),
		"upstream-identity-provider-flow": factory.CompleteValues(oidclogin.Flows()...),
		"concierge-authenticator-name": f.CompleteFromCluster(&o.Cluster, &o.Suffix,
			func(ctx context.Context, client *discovery.Client) ([]string, error) {
				all, err := client.Authenticators(ctx)
				var found []string
				for _, a := range all {
					if o.AuthenticatorType == "" || o.AuthenticatorType == a.Type {
						found = append(found, a.Name)
					}
				}
				return found, err
			}),
	})
}

// modes are the values of --concierge-mode.
func modes() []string {
	values := []string{discovery.Auto}
	for _, mode := range discovery.Modes() {
		values = append(values, string(mode))
	}
	return values
}

// Complete decides how kubeconfigs call the CLI. A bare command name works on every computer that has it on the PATH;
// it is used only if it is this program here, which may be the only copy.
func (o *Options) Complete(lookPath func(string) (string, error)) error {
	if o.CLIPath != "" {
		return nil
	}
	path, err := o.Executable()
	if err != nil {
		return fmt.Errorf("finding the path of this program for the kubeconfig: %w", err)
	}
	for _, name := range []string{commandName, pluginName} {
		if found, err := lookPath(name); err == nil && sameFile(found, path) {
			o.CLIPath = name
			return nil
		}
	}
	o.CLIPath, o.notOnPath = path, o.Login != LoginBearer
	return nil
}

// sayCommand says that the kubeconfig runs this program by its path, which users may not have.
func (o *Options) sayCommand() {
	if o.notOnPath {
		o.Progress.Info(
			"the kubeconfig runs %s; if users have the program on their PATH, pass --pinniped-cli-path %s",
			o.CLIPath,
			commandName,
		)
	}
}

// commandName is the CLI's name on the PATH.
const commandName = "pinniped"

// pluginName is its name on the PATH when Krew installs it. Krew's own path has the version, which changes with
// upgrades.
const pluginName = "kubectl-pinniped"

func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// Validate checks the flags, without a network.
func (o *Options) Validate() error {
	if err := factory.ValidateSuffix(o.Suffix); err != nil {
		return ui.Usage(err)
	}
	if o.StaticToken != "" && o.StaticTokenEnv != "" {
		return ui.Usage(errors.New("only one of --static-token and --static-token-env can be specified"))
	}
	if o.Endpoint != "" && !strings.HasPrefix(o.Endpoint, "https://") {
		return ui.Usage(fmt.Errorf("invalid --endpoint %q: it must begin with \"https://\"", o.Endpoint))
	}
	if o.Timeout < 0 {
		return ui.Usage(fmt.Errorf("invalid --timeout %s: it must not be negative", o.Timeout))
	}
	if o.NoConcierge {
		for flag, set := range map[string]bool{
			"concierge-endpoint": o.Endpoint != "", "concierge-ca-bundle": len(o.CABundle) > 0, "concierge-mode": o.Mode != "",
		} {
			if set {
				return ui.Usage(fmt.Errorf("--%s cannot be combined with --no-concierge", flag))
			}
		}
	}
	if err := errors.Join(o.validateFrom(), o.validateLogin(), o.validateFollow(), o.OIDC.validate()); err != nil {
		return ui.Usage(err)
	}
	return o.Destination.validate()
}
