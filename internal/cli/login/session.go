package login

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
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
	if exec == nil || len(exec.Args) < 2 || exec.Args[0] != "login" {
		return nil, ErrNotALogin
	}
	info, err := givenCluster(cluster.REST)
	if err != nil {
		return nil, err
	}
	lookup := lookupWith(exec.Env, f.LookupEnv)
	flags := pflag.NewFlagSet("login", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	parse := func(plugin *Plugin) error {
		plugin.Args = exec.Args
		plugin.info.Spec.Cluster = info
		debug, _ := lookup("PINNIPED_DEBUG")
		plugin.Debug = debug == "true"
		if err := flags.Parse(exec.Args[2:]); err != nil {
			return fmt.Errorf("reading the arguments of the login: %w", err)
		}
		return f.ExpandPathsIn(flags)
	}
	switch exec.Args[1] {
	case "static":
		o := &StaticOptions{Plugin: newPlugin(f), LookupEnv: lookup}
		o.addFlags(f, flags)
		if err := parse(&o.Plugin); err != nil {
			return nil, err
		}
		if err := o.resolve(); err != nil {
			return nil, err
		}
		if err := o.Validate(); err != nil {
			return nil, err
		}
		return &Session{plugin: &o.Plugin, static: o.Token, from: fixed(o.Token)}, nil
	case "oidc":
		getenv := func(name string) string { value, _ := lookup(name); return value }
		o := &OIDCOptions{
			Plugin: newPlugin(f), ReadFile: kubeconfig.ReadNamed, LookupEnv: lookup,
			OpenBrowser: browser{getenv: getenv}.open,
		}
		o.addFlags(f, flags)
		if err := parse(&o.Plugin); err != nil {
			return nil, err
		}
		o.resolve()
		if err := o.Validate(); err != nil {
			return nil, err
		}
		return &Session{plugin: &o.Plugin, from: session{o.login}, oidc: o.login}, nil
	}
	return nil, ErrNotALogin
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
