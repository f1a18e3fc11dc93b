// Package login implements `pinniped login`, the exec credential plugins that kubectl runs.
package login

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
)

// NewCommand returns the command.
func NewCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.Group(factory.WithoutConfig(&cobra.Command{
		Use:   "login",
		Short: "Log in as kubectl's credential plugin",
		Long: `Log in as kubectl's credential plugin. "pinniped get kubeconfig" writes these commands into a kubeconfig, and kubectl runs
them. You do not need to run them yourself.`,
		Example: `  # In a kubeconfig, as written by "pinniped get kubeconfig"
  pinniped login static --token-env TOKEN`,
	}))
	cmd.AddCommand(newOIDC(f), newStatic(f))
	return cmd
}

// StaticOptions holds the inputs of `login static`; a test fills it directly.
type StaticOptions struct {
	Plugin    Plugin
	Token     string
	TokenEnv  string
	LookupEnv func(string) (string, bool)
}

func newStatic(f *factory.Factory) *cobra.Command {
	o := &StaticOptions{Plugin: newPlugin(f), LookupEnv: f.LookupEnv}
	cmd := &cobra.Command{
		Use:   "static",
		Short: "Log in with a static token",
		Long: `Log in with a static token and print an ExecCredential for kubectl. With --enable-concierge, the command exchanges
the token for a short-lived credential of the cluster and caches that credential. Otherwise, the token itself is the
credential.`,
		Example: `  # In a kubeconfig, as written by "pinniped get kubeconfig"
  pinniped login static --token-env TOKEN`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Plugin.readEnvironment(f)
			return execute(cmd.Context(), o)
		},
	}
	o.addFlags(f, cmd.Flags())
	return cmd
}

func (o *StaticOptions) addFlags(f *factory.Factory, flags *pflag.FlagSet) {
	flags.StringVar(&o.Token, "token", "", "the token")
	flags.StringVar(&o.TokenEnv, "token-env", "", "environment variable with the token; takes precedence over --token")
	o.Plugin.addFlags(f, flags)
}

// Complete resolves the token, and parses the caller's information.
func (o *StaticOptions) Complete() error {
	if o.Token == "" && o.TokenEnv == "" {
		return ui.Usage(errors.New("one of --token or --token-env must be set"))
	}
	o.Plugin.complete()
	return o.resolve()
}

// resolve reads the token from the environment, if it is set there.
func (o *StaticOptions) resolve() error {
	if o.TokenEnv == "" {
		return nil
	}
	token, set := o.LookupEnv(o.TokenEnv)
	if token == "" {
		problem := "empty"
		if !set {
			problem = "not set"
		}
		return ui.WithHint(fmt.Errorf("--token-env variable %q is %s", o.TokenEnv, problem),
			"export %s with your token before you run kubectl", o.TokenEnv)
	}
	o.Token = token
	return nil
}

// Validate checks the Concierge flags, without a network.
func (o *StaticOptions) Validate() error { return o.Plugin.validate() }

// Run prints the credential: from the cache or the exchange, or without Concierge the token itself, which is not
// cached.
func (o *StaticOptions) Run(ctx context.Context) error {
	if o.Plugin.exchange == nil {
		return o.Plugin.respond(&clientauthenticationv1beta1.ExecCredentialStatus{Token: o.Token})
	}
	return o.Plugin.run(ctx, o.Token, fixed(o.Token))
}

// fixed is a source with one token.
type fixed string

func (f fixed) Token(context.Context) (*oidclogin.Token, error) {
	return &oidclogin.Token{Raw: string(f)}, nil
}
func (f fixed) Renew(ctx context.Context) (*oidclogin.Token, error) { return f.Token(ctx) }
