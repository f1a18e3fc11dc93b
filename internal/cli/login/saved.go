package login

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

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
	if len(args) < 2 || args[0] != "login" {
		return nil, ErrNotALogin
	}
	flags := pflag.NewFlagSet("login", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.ParseErrorsAllowlist.UnknownFlags = true // from a newer version, or another program
	switch args[1] {
	case "static":
		o := &StaticOptions{Plugin: newPlugin(f), LookupEnv: f.LookupEnv}
		o.addFlags(f, flags)
		if err := flags.Parse(args[2:]); err != nil {
			return nil, fmt.Errorf("reading the arguments of the login: %w", err)
		}
		if err := f.ExpandPathsIn(flags); err != nil {
			return nil, err
		}
		if o.TokenEnv != "" {
			o.Token, _ = f.LookupEnv(o.TokenEnv)
		}
		key, err := credentialcache.Key(args, o.Token, cluster)
		return &Saved{
			CredentialCache: o.Plugin.CachePath, CredentialKey: key, Endpoint: o.Plugin.concierge.Endpoint,
			Strategy: o.Plugin.concierge.Strategy,
		}, err
	case "oidc":
		o := &OIDCOptions{Plugin: newPlugin(f), LookupEnv: f.LookupEnv}
		o.addFlags(f, flags)
		if err := flags.Parse(args[2:]); err != nil {
			return nil, fmt.Errorf("reading the arguments of the login: %w", err)
		}
		if err := f.ExpandPathsIn(flags); err != nil {
			return nil, err
		}
		bundle, err := ReadBundles(kubeconfig.ReadNamed, o.CABundlePaths, o.CABundleData)
		if err != nil {
			return nil, err
		}
		key, err := credentialcache.Key(args, "", cluster)
		sessions := &sessioncache.Cache{Path: o.SessionCache, Now: f.Now}
		return &Saved{
			CredentialCache: o.Plugin.CachePath, CredentialKey: key, Endpoint: o.Plugin.concierge.Endpoint,
			Strategy: o.Plugin.concierge.Strategy, Sessions: sessions,
			Login: &oidclogin.Login{
				Issuer:       o.Issuer,
				ClientID:     o.ClientID,
				Scopes:       o.Scopes,
				CABundle:     bundle,
				UpstreamName: o.UpstreamName,
				ListenPort:   o.ListenPort,
				Sessions:     sessions,
				Now:          f.Now,
			},
		}, err
	}
	return nil, ErrNotALogin
}
