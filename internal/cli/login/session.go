package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// Credential is a credential for a client.
type Credential struct {
	Token                 string
	ClientCertificateData string // PEM; with ClientKeyData, instead of Token
	ClientKeyData         string
	Expiry                time.Time // zero if unknown
	// Impersonate is the user that a client with this credential must impersonate; nil if the credential identifies the
	// user.
	Impersonate *kubeconfig.Impersonation
}

// Session is the login of a kubeconfig's context, in this process instead of in kubectl.
type Session struct {
	plugin *Plugin
	static string // token of `login static`
	from   source
	oidc   *oidclogin.Login // for `login oidc`, else nil
}

// NewSession returns the login of a kubeconfig's context. It sends no request. It returns ErrNotALogin if the context
// does not log in with "pinniped login".
func NewSession(f *factory.Factory, cluster *factory.Cluster) (*Session, error) {
	exec := cluster.REST.ExecProvider
	if exec == nil || !isLogin(exec.Args) {
		return nil, ErrNotALogin
	}
	info, err := givenCluster(cluster.REST)
	if err != nil {
		return nil, err
	}
	lookup := lookupWith(exec.Env, f.LookupEnv)
	static, oidc, err := parse(f, newFlags(), exec.Args, lookup)
	if err != nil {
		return nil, err
	}
	prepare := func(plugin *Plugin) *Plugin {
		debug, _ := lookup("PINNIPED_DEBUG")
		plugin.Args, plugin.info.Spec.Cluster, plugin.Debug = exec.Args, info, debug == "true"
		return plugin
	}
	if static != nil {
		plugin := prepare(&static.Plugin)
		if err := static.resolve(); err != nil {
			return nil, err
		}
		if err := static.Validate(); err != nil {
			return nil, err
		}
		return &Session{plugin: plugin, static: static.Token, from: fixed(static.Token)}, nil
	}
	plugin := prepare(&oidc.Plugin)
	oidc.resolve()
	if err := oidc.Validate(); err != nil {
		return nil, err
	}
	return &Session{plugin: plugin, from: oidc.login, oidc: oidc.login}, nil
}

// lookupWith looks variables up in the plugin's environment in the kubeconfig, then in the process's own.
func lookupWith(given []clientcmdapi.ExecEnvVar, lookup func(string) (string, bool)) func(string) (string, bool) {
	own := make(map[string]string, len(given))
	for _, variable := range given {
		own[variable.Name] = variable.Value
	}
	return func(name string) (string, bool) {
		if value, ok := own[name]; ok {
			return value, true
		}
		return lookup(name)
	}
}

// Unattended makes later logins fail if the user is needed, because another program owns the terminal.
func (s *Session) Unattended() {
	if s.oidc != nil {
		s.oidc.Unattended, s.oidc.Quiet = true, true
	}
}

// Credential logs in, and returns a credential that is valid for at least left, or a new one.
func (s *Session) Credential(ctx context.Context, left time.Duration) (*Credential, error) {
	if s.plugin.exchange == nil && s.static != "" {
		return &Credential{Token: s.static}, nil
	}
	status, keep, err := s.plugin.obtain(ctx, s.static, s.from, wanted{left: left})
	if err != nil {
		return nil, err
	}
	keep()
	return newCredential(status, s.plugin.headers)
}

func newCredential(
	status *clientauthenticationv1beta1.ExecCredentialStatus,
	headers map[string][]string,
) (*Credential, error) {
	credential := &Credential{
		Token:                 status.Token,
		ClientCertificateData: status.ClientCertificateData,
		ClientKeyData:         status.ClientKeyData,
	}
	if status.ExpirationTimestamp != nil {
		credential.Expiry = status.ExpirationTimestamp.Time
	}
	if len(headers) > 0 {
		var err error
		if credential.Impersonate, err = kubeconfig.ParseImpersonation(headers); err != nil {
			return nil, err
		}
	}
	return credential, nil
}

// Saved is what a login stores in files, according to its arguments in a kubeconfig.
type Saved struct {
	// CredentialCache is the path of the credential cache, and CredentialKey the key of this login.
	CredentialCache, CredentialKey string
	// Endpoint is where the token is exchanged; empty for no exchange.
	Endpoint string
	// Strategy is the requested strategy; empty means the cluster's choice.
	Strategy string
	// Login and Sessions are for `login oidc`; nil for a static token.
	Login    *oidclogin.Login
	Sessions *sessioncache.Cache
}

// ErrNotALogin means that arguments are not those of `pinniped login`.
var ErrNotALogin = errors.New("it does not log in with \"pinniped login\"")

// SavedFor returns the Saved of a kubeconfig's context.
func SavedFor(f *factory.Factory, cluster *factory.Cluster) (*Saved, error) {
	exec := cluster.REST.ExecProvider
	if exec == nil {
		return nil, ErrNotALogin
	}
	info, err := givenCluster(cluster.REST)
	if err != nil {
		return nil, err
	}
	return SavedBy(f, exec.Args, info)
}

// givenCluster returns the cluster information that kubectl passes to the credential plugin of config, or nil.
func givenCluster(config *rest.Config) (*clientauthenticationv1beta1.Cluster, error) {
	if !config.ExecProvider.ProvideClusterInfo {
		return nil, nil //nolint:nilnil // kubectl passes none
	}
	return ClusterInfo(config)
}

// ClusterInfo returns the cluster information that kubectl passes to a credential plugin. It is part of the cache key.
func ClusterInfo(config *rest.Config) (*clientauthenticationv1beta1.Cluster, error) {
	c, err := rest.ConfigToExecCluster(config)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster: %w", err)
	}
	info := &clientauthenticationv1beta1.Cluster{
		Server: c.Server, TLSServerName: c.TLSServerName, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify,
		CertificateAuthorityData: c.CertificateAuthorityData, ProxyURL: c.ProxyURL, DisableCompression: c.DisableCompression,
	}
	if unknown, ok := c.Config.(*runtime.Unknown); ok {
		info.Config = runtime.RawExtension{Raw: unknown.Raw}
	}
	return info, nil
}

// SavedBy returns the Saved of an exec plugin's arguments. cluster is what kubectl passes to the plugin, or nil.
func SavedBy(f *factory.Factory, args []string, cluster *clientauthenticationv1beta1.Cluster) (*Saved, error) {
	flags := newFlags()
	flags.ParseErrorsAllowlist.UnknownFlags = true // from a newer version, or another program
	static, oidc, err := parse(f, flags, args, f.LookupEnv)
	if err != nil {
		return nil, err
	}
	if static != nil {
		if static.TokenEnv != "" {
			static.Token, _ = f.LookupEnv(static.TokenEnv)
		}
		return static.Plugin.saved(args, static.Token, cluster)
	}
	bundle, err := ReadBundles(kubeconfig.ReadNamed, oidc.CABundlePaths, oidc.CABundleData)
	if err != nil {
		return nil, err
	}
	saved, err := oidc.Plugin.saved(args, "", cluster)
	saved.Sessions = &sessioncache.Cache{Path: oidc.SessionCache, Now: f.Now}
	saved.Login = &oidclogin.Login{
		Issuer: oidc.Issuer, ClientID: oidc.ClientID, Scopes: oidc.Scopes, CABundle: bundle,
		UpstreamName: oidc.UpstreamName, ListenPort: oidc.ListenPort, Sessions: saved.Sessions, Now: f.Now,
	}
	return saved, err
}

func (p *Plugin) saved(args []string, token string, cluster *clientauthenticationv1beta1.Cluster) (*Saved, error) {
	key, err := credentialcache.Key(args, token, cluster)
	return &Saved{
		CredentialCache: p.CachePath, CredentialKey: key, Endpoint: p.concierge.Endpoint, Strategy: p.concierge.Strategy,
	}, err
}

func isLogin(args []string) bool { return len(args) >= 2 && args[0] == "login" }

func newFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("login", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// parse parses an exec plugin's arguments with flags, which has none yet: `login static` or `login oidc`; the options of
// the other one are nil.
func parse(
	f *factory.Factory,
	flags *pflag.FlagSet,
	args []string,
	lookup func(string) (string, bool),
) (static *StaticOptions, oidc *OIDCOptions, err error) {
	if !isLogin(args) {
		return nil, nil, ErrNotALogin
	}
	switch args[1] {
	case "static":
		static = &StaticOptions{Plugin: newPlugin(f), LookupEnv: lookup}
		static.addFlags(f, flags)
	case "oidc":
		oidc = &OIDCOptions{
			Plugin: newPlugin(f), ReadFile: kubeconfig.ReadNamed, LookupEnv: lookup,
			OpenBrowser: browser{getenv: func(name string) string { value, _ := lookup(name); return value }}.open,
		}
		oidc.addFlags(f, flags)
	default:
		return nil, nil, ErrNotALogin
	}
	if err := flags.Parse(args[2:]); err != nil {
		return nil, nil, fmt.Errorf("reading the arguments of the login: %w", err)
	}
	return static, oidc, f.ExpandPathsIn(flags)
}
