package login

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
)

// StaticOptions is everything `login static` needs; a test fills it directly.
type StaticOptions struct {
	genericiooptions.IOStreams
	Token     string
	TokenEnv  string
	CachePath string // empty switches the cache off

	Args      []string // the process's arguments: part of the cache key
	ExecInfo  string   // KUBERNETES_EXEC_INFO
	LookupEnv func(string) (string, bool)
	Now       func() time.Time
	Debug     bool

	concierge concierge
	info      execInfo
	exchange  *exchange // nil without Concierge; set by Complete
}

func newStatic(f *factory.Factory) *cobra.Command {
	o := &StaticOptions{IOStreams: f.IOStreams, Args: f.Args, LookupEnv: f.LookupEnv, Now: f.Now}
	cmd := &cobra.Command{
		Use:   "static",
		Short: "Log in with a static token",
		Long: `Log in with a static token: print an ExecCredential for kubectl. With --enable-concierge the token is exchanged for a
short-lived credential of the cluster, which is kept in the credential cache; otherwise it is passed on as it is.`,
		Example: `  # in a kubeconfig, as written by "pinniped get kubeconfig"
  pinniped login static --token-env TOKEN`,
		Args: factory.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.ExecInfo, o.Debug = f.Getenv("KUBERNETES_EXEC_INFO"), f.Getenv("PINNIPED_DEBUG") == "true"
			if err := o.Complete(); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	var cachePath string
	if dir, err := f.ConfigDir(); err == nil {
		cachePath = filepath.Join(dir, "credentials.yaml")
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Token, "token", "", "the token")
	flags.StringVar(&o.TokenEnv, "token-env", "", "environment variable with the token; it wins over --token")
	flags.StringVar(&o.CachePath, "credential-cache", cachePath, "file in which credentials of clusters are kept (empty: none)")
	o.concierge.addFlags(flags)
	return cmd
}

// Complete resolves the token, the caller's information and the Concierge flags.
func (o *StaticOptions) Complete() error {
	if o.Token == "" && o.TokenEnv == "" {
		return ui.Usage(errors.New("one of --token or --token-env must be set"))
	}
	o.info = parseExecInfo(o.ExecInfo)
	if o.TokenEnv != "" {
		token, set := o.LookupEnv(o.TokenEnv)
		switch {
		case !set:
			return ui.WithHint(fmt.Errorf("--token-env variable %q is not set", o.TokenEnv), "export %s with your token before you run kubectl", o.TokenEnv)
		case token == "":
			return ui.WithHint(fmt.Errorf("--token-env variable %q is empty", o.TokenEnv), "export %s with your token before you run kubectl", o.TokenEnv)
		}
		o.Token = token
	}
	return nil
}

// Validate checks the Concierge flags, without a network.
func (o *StaticOptions) Validate() error {
	if !o.concierge.Enabled {
		return nil
	}
	var err error
	if o.exchange, err = o.concierge.exchange(); err != nil {
		return ui.Usage(fmt.Errorf("invalid Concierge parameters: %w", err))
	}
	o.exchange.cluster = o.info.clusterAt(o.concierge.Endpoint)
	return nil
}

// Run prints the credential: from the cache, from the exchange, or without Concierge the token itself, which is never
// cached.
func (o *StaticOptions) Run(ctx context.Context) error {
	if o.exchange == nil {
		return writeCredential(o.Out, o.info.apiVersion(), &clientauthenticationv1beta1.ExecCredentialStatus{Token: o.Token})
	}
	cache := &credentialcache.Cache{Path: o.CachePath, Now: o.Now}
	key, err := credentialcache.Key(o.Args, o.Token, o.info.Spec.Cluster)
	if err != nil {
		return err
	}
	if cached := cache.Get(key); cached != nil {
		o.debugf("using the cached credential, which expires at %s", cached.ExpirationTimestamp.Format(time.RFC3339))
		return writeCredential(o.Out, o.info.apiVersion(), cached)
	}
	o.debugf("exchanging the token at %q", o.concierge.Endpoint)
	credential, err := o.exchange.do(ctx, o.Token)
	if err != nil {
		return fmt.Errorf("exchanging the token for a credential of the cluster: %w", err)
	}
	if err := writeCredential(o.Out, o.info.apiVersion(), credential); err != nil {
		return err
	}
	if err := cache.Put(ctx, key, credential); err != nil {
		o.debugf("not cached: %v", err)
	}
	return nil
}

func (o *StaticOptions) debugf(format string, args ...any) {
	if o.Debug {
		_, _ = fmt.Fprintf(o.ErrOut, "debug: "+format+"\n", args...)
	}
}
