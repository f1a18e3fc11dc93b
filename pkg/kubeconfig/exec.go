package kubeconfig

import (
	"encoding/base64"
	"fmt"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Exec is the exec credential plugin of the kubeconfig, "pinniped login".
type Exec struct {
	Command     string
	InstallHint string

	Concierge *Concierge // nil sends the credential directly to the cluster
	// CredentialCache is the path of the cache file; nil means the plugin's default, empty disables the cache.
	CredentialCache *string
	Static          *Static // either Static or OIDC
	OIDC            *OIDC
}

// Concierge says where and how the plugin exchanges its credential.
type Concierge struct {
	APIGroupSuffix    string
	AuthenticatorName string
	AuthenticatorType string
	Endpoint          string
	CABundle          []byte
	// Strategy, if set, is the strategy whose credential the plugin requests.
	Strategy string
	// Identity, if set, is the digest of the Impersonation in the kubeconfig, so that the plugin detects when that is
	// outdated.
	Identity string
	// Follow, if set, makes the plugin refresh the cluster's trust bundle in the kubeconfig: FollowUsual, or the
	// absolute path of the kubeconfig.
	Follow string
}

// DefaultInstallHint is kubectl's default message if there is no pinniped CLI.
const DefaultInstallHint = "The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli for " +
	"more details"

// FollowUsual is the kubeconfig that kubectl uses without --kubeconfig.
const FollowUsual = "kubectl"

const followFlag = "--follow"

// Arguments of the plugin for a credential with an Impersonation.
const (
	StrategyArgument = "--concierge-strategy="
	IdentityArgument = "--concierge-identity="
)

// Static is a login with a static token: the token itself, or the environment variable that contains it.
type Static struct {
	Token    string
	TokenEnv string
}

// OIDC is a login with an OpenID Connect issuer. Zero values are omitted from the arguments.
type OIDC struct {
	Issuer            string
	ClientID          string
	Scopes            []string
	SkipBrowser       bool
	SkipListen        bool
	ListenPort        uint16
	CABundle          []byte
	SessionCache      string
	DebugSessionCache bool
	RequestAudience   string
	UpstreamName      string
	UpstreamType      string
	UpstreamFlow      string
}

const execAPIVersion = "client.authentication.k8s.io/v1beta1"

func (e *Exec) config() *clientcmdapi.ExecConfig {
	return &clientcmdapi.ExecConfig{
		APIVersion:         execAPIVersion,
		Command:            e.Command,
		Args:               e.Args(),
		Env:                []clientcmdapi.ExecEnvVar{},
		InstallHint:        e.InstallHint,
		ProvideClusterInfo: true,
	}
}

// Args returns the plugin's arguments. Their order is stable, because credential caches are keyed by them.
func (e *Exec) Args() []string {
	args := []string{"login", "static"}
	if e.OIDC != nil {
		args[1] = "oidc"
	}
	if c := e.Concierge; c != nil {
		args = append(args,
			"--enable-concierge",
			"--concierge-api-group-suffix="+c.APIGroupSuffix,
			"--concierge-authenticator-name="+c.AuthenticatorName,
			"--concierge-authenticator-type="+c.AuthenticatorType,
			"--concierge-endpoint="+c.Endpoint,
			"--concierge-ca-bundle-data="+base64.StdEncoding.EncodeToString(c.CABundle),
		)
		if c.Strategy != "" {
			args = append(args, StrategyArgument+c.Strategy)
		}
		if c.Identity != "" {
			args = append(args, IdentityArgument+c.Identity)
		}
		switch c.Follow {
		case "":
		case FollowUsual:
			args = append(args, followFlag)
		default:
			args = append(args, followFlag+"="+c.Follow)
		}
	}
	if e.CredentialCache != nil {
		args = append(args, "--credential-cache="+*e.CredentialCache)
	}
	switch {
	case e.OIDC != nil:
		return append(args, e.OIDC.args()...)
	case e.Static != nil && e.Static.Token != "":
		return append(args, "--token="+e.Static.Token)
	case e.Static != nil:
		return append(args, "--token-env="+e.Static.TokenEnv)
	}
	return args
}

func (o *OIDC) args() []string {
	args := []string{
		"--issuer=" + o.Issuer,
		"--client-id=" + o.ClientID,
		"--scopes=" + strings.Join(o.Scopes, ","),
	}
	flag := func(set bool, text string) {
		if set {
			args = append(args, text)
		}
	}
	flag(o.SkipBrowser, "--skip-browser")
	flag(o.SkipListen, "--skip-listen")
	flag(o.ListenPort != 0, fmt.Sprintf("--listen-port=%d", o.ListenPort))
	flag(len(o.CABundle) > 0, "--ca-bundle-data="+base64.StdEncoding.EncodeToString(o.CABundle))
	flag(o.SessionCache != "", "--session-cache="+o.SessionCache)
	flag(o.DebugSessionCache, "--debug-session-cache")
	flag(o.RequestAudience != "", "--request-audience="+o.RequestAudience)
	flag(o.UpstreamName != "", "--upstream-identity-provider-name="+o.UpstreamName)
	flag(o.UpstreamType != "", "--upstream-identity-provider-type="+o.UpstreamType)
	flag(o.UpstreamFlow != "", "--upstream-identity-provider-flow="+o.UpstreamFlow)
	return args
}
