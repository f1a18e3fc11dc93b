package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/credentialcache"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
)

// aloneTimeout is how long a login waits for another process's exchange: the maximum duration of one.
const aloneTimeout = exchangeTimeout + 5*time.Second

// Plugin is the common part of all logins: it returns a credential to kubectl, which is a token, or what the Concierge
// returns for it.
type Plugin struct {
	genericiooptions.IOStreams
	CachePath string // empty disables the cache

	Args     []string // process arguments; part of the cache key
	ExecInfo string   // KUBERNETES_EXEC_INFO
	Now      func() time.Time
	Debug    bool
	Parent   func() int // PID of kubectl; nil if the caller is this process
	// Find returns the kubeconfig with a login with these arguments, and its user, or nil if unknown.
	Find func(args []string) (path, name string, user *clientcmdapi.AuthInfo)

	// headers belong to the last credential. outdated means that the kubeconfig does not send them.
	headers  map[string][]string
	outdated bool

	concierge concierge
	following
	info     execInfo
	exchange *exchange // nil without Concierge; set by validate
}

func newPlugin(f *factory.Factory) Plugin {
	return Plugin{
		IOStreams: f.IOStreams,
		Args:      f.Args,
		Now:       f.Now,
		Find: func(args []string) (path, name string, user *clientcmdapi.AuthInfo) {
			return findUser(f, args)
		},
		following: following{Usual: func() []string { return usualFiles(f) }},
	}
}

func (p *Plugin) addFlags(f *factory.Factory, flags *pflag.FlagSet) {
	flags.StringVar(
		&p.CachePath,
		"credential-cache",
		DefaultPath(f, CredentialsFile),
		"path of the credential cache (empty: no cache)",
	)
	p.concierge.addFlags(flags)
	p.following.addFlags(flags)
}

// Names of the caches in the configuration directory.
const (
	CredentialsFile = "credentials.yaml"
	SessionsFile    = "sessions.yaml"
)

// DefaultPath returns the path of a cache, or "" if there is no home directory.
func DefaultPath(f *factory.Factory, name string) string {
	dir, err := f.ConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, name)
}

// readEnvironment reads the environment variables of kubectl and of the user.
func (p *Plugin) readEnvironment(f *factory.Factory) {
	p.Parent = os.Getppid
	p.following.readEnvironment(f)
	p.concierge.UpdateKubeconfig = p.concierge.UpdateKubeconfig || f.Getenv(updateVariable) == "true"
	p.ExecInfo, p.Debug = f.Getenv("KUBERNETES_EXEC_INFO"), f.Getenv("PINNIPED_DEBUG") == "true"
}

// execute calls Complete, Validate and Run.
func execute(ctx context.Context, c factory.Command) error {
	if err := c.Complete(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	return c.Run(ctx)
}

// complete parses the caller's information.
func (p *Plugin) complete() { p.info = parseExecInfo(p.ExecInfo) }

// validate checks the Concierge flags, without a network.
func (p *Plugin) validate() error {
	if !p.concierge.Enabled {
		return nil
	}
	err := p.following.validate()
	if err != nil {
		return err
	}
	if p.exchange, err = p.concierge.exchange(); err != nil {
		return ui.WithHint(ui.Usage(fmt.Errorf("invalid Concierge parameters: %w", err)),
			"create a new kubeconfig with \"pinniped get kubeconfig\"")
	}
	p.exchange.plugin = p
	p.exchange.cluster = p.info.clusterAt(p.concierge.Endpoint)
	return nil
}

// source returns tokens; *oidclogin.Login implements it.
type source interface {
	Token(ctx context.Context) (*oidclogin.Token, error)
	// Renew returns a new token, because the cluster has refused the last one.
	Renew(ctx context.Context) (*oidclogin.Token, error)
}

// run responds with the cached credential, or with a new one for a token of the source.
func (p *Plugin) run(ctx context.Context, staticToken string, from source) error {
	cache, key, err := p.cacheEntry(staticToken)
	if err != nil {
		return err
	}
	cached, refused := p.fromCache(ctx, cache, key)
	want := wanted{}
	if refused {
		want.not = cached
	}
	if cached == nil && p.Parent != nil {
		if why := cache.Refused(key, p.Parent()); why != nil {
			return ui.WithHint(errors.New(why.Message), "%s", why.Hint)
		}
	}
	look := p.newBundleCheck(key)
	credential, keep, err := p.obtain(ctx, staticToken, from, want)
	if err != nil {
		if p.Parent != nil && oidclogin.IsRefusal(err) {
			cache.Refuse(key, p.Parent(), credentialcache.Refusal{Message: err.Error(), Hint: ui.HintOf(err)})
		}
		return err
	}
	// A credential that does not match the kubeconfig is not cached, so that the next command reports it again.
	current, err := p.checkIdentity(ctx, p.headers)
	p.outdated = !current
	if err == nil {
		err = p.respond(credential)
	}
	keep()
	if p.Parent != nil && !sameCredential(credential, cached) {
		cache.Asked(key, p.Parent(), credential)
	}
	if err == nil {
		look.finish(ctx)
	}
	return err
}

// cacheEntry returns the cache, and the key of this login.
func (p *Plugin) cacheEntry(staticToken string) (*credentialcache.Cache, string, error) {
	key, err := credentialcache.Key(p.Args, staticToken, p.info.Spec.Cluster)
	return &credentialcache.Cache{Path: p.CachePath, Now: p.Now}, key, err
}

// wanted holds the requirements for a cached credential.
type wanted struct {
	left time.Duration                                     // minimum remaining lifetime
	not  *clientauthenticationv1beta1.ExecCredentialStatus // refused by the cluster
}

// obtain returns the cached credential if it meets want, or a new one for a token of the source; keep then stores it in
// the cache. Processes that need the same credential at once share one exchange.
func (p *Plugin) obtain(
	ctx context.Context,
	staticToken string,
	from source,
	want wanted,
) (credential *clientauthenticationv1beta1.ExecCredentialStatus, keep func(), err error) {
	cache, key, err := p.cacheEntry(staticToken)
	if err != nil {
		return nil, nil, err
	}
	if cached := p.cached(cache, key, want); cached != nil {
		return cached, func() {}, nil
	}
	// Get the token before taking the lock: a browser login may take minutes, and the lock is shared with exchanges for
	// other clusters.
	given, err := from.Token(ctx)
	if err == nil && want.not != nil && given.Raw == want.not.Token {
		given, err = from.Renew(ctx) // the cluster refuses the token itself
	}
	if err != nil {
		return nil, nil, err
	}
	unlock := p.alone(ctx, cache, key)
	if cached := p.cached(cache, key, want); cached != nil {
		unlock()
		return cached, func() {}, nil
	}
	if credential, err = p.credential(ctx, given, from); err != nil {
		unlock()
		return nil, nil, err
	}
	p.headers = nil
	if p.exchange != nil {
		p.headers = p.exchange.headers
	}
	return credential, func() {
		defer unlock()
		if p.outdated {
			return
		}
		if err := cache.Put(ctx, key, credential, p.headers); err != nil {
			p.debugf("not cached: %v", err)
		}
	}, nil
}

// cached returns the cached credential if it meets want, or nil.
func (p *Plugin) cached(
	cache *credentialcache.Cache,
	key string,
	want wanted,
) *clientauthenticationv1beta1.ExecCredentialStatus {
	cached, headers := cache.GetWithHeaders(key)
	if cached == nil || cached.ExpirationTimestamp.Sub(p.Now()) < want.left || sameCredential(cached, want.not) {
		return nil
	}
	if p.concierge.Strategy == serviceAccountToken && len(headers) == 0 {
		return nil // another program wrote the cache and dropped the headers
	}
	p.headers = headers
	p.debugf("using the cached credential, which expires at %s", cached.ExpirationTimestamp.Format(time.RFC3339))
	return cached
}

// alone locks the exchange, so that other processes wait for its result. If the lock is not free in time, it continues
// without it: a cache never fails a login.
func (p *Plugin) alone(ctx context.Context, cache *credentialcache.Cache, key string) (unlock func()) {
	ctx, cancel := context.WithTimeout(ctx, aloneTimeout)
	defer cancel()
	unlock, err := cache.Alone(ctx, key)
	if err != nil {
		p.debugf("not waiting for other processes: %v", err)
		return func() {}
	}
	return unlock
}

// credential exchanges a token for the credential to return. If the cluster refuses a cached token, it is renewed once:
// the issuer may have new keys, or the user new groups.
func (p *Plugin) credential(
	ctx context.Context,
	given *oidclogin.Token,
	from source,
) (*clientauthenticationv1beta1.ExecCredentialStatus, error) {
	if p.exchange == nil {
		credential := &clientauthenticationv1beta1.ExecCredentialStatus{Token: given.Raw}
		if !given.Expiry.IsZero() {
			expiry := metav1.NewTime(given.Expiry)
			credential.ExpirationTimestamp = &expiry
		}
		return credential, nil
	}
	p.debugf("exchanging the token at %q", p.concierge.Endpoint)
	credential, err := p.exchange.do(ctx, given.Raw)
	if _, refused := errors.AsType[*refusedError](err); refused && given.Cached {
		p.debugf("%v: renewing the session", err)
		if given, err = from.Renew(ctx); err != nil {
			return nil, err
		}
		credential, err = p.exchange.do(ctx, given.Raw)
	}
	if err != nil {
		return nil, fmt.Errorf("exchanging the token for a cluster credential: %w", err)
	}
	return credential, nil
}

// respond writes the credential to the caller. Both versions of the API have the same fields.
func (p *Plugin) respond(credential *clientauthenticationv1beta1.ExecCredentialStatus) error {
	response := clientauthenticationv1beta1.ExecCredential{
		TypeMeta: metav1.TypeMeta{
			APIVersion: clientauthenticationv1beta1.SchemeGroupVersion.String(), Kind: "ExecCredential",
		},
		Status: credential,
	}
	if v1 := clientauthenticationv1.SchemeGroupVersion.String(); p.info.APIVersion == v1 {
		response.APIVersion = v1
	}
	text, err := json.Marshal(response)
	if err != nil {
		return fmt.Errorf("encoding the credential: %w", err)
	}
	if _, err := p.Out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("writing the credential: %w", err)
	}
	return nil
}

// execInfo is the content of KUBERNETES_EXEC_INFO, from kubectl.
type execInfo struct {
	APIVersion string                                         `json:"apiVersion"`
	Spec       clientauthenticationv1beta1.ExecCredentialSpec `json:"spec"`
}

// parseExecInfo parses KUBERNETES_EXEC_INFO. If it is empty or invalid, the response has version v1beta1 and the
// cluster is unknown.
func parseExecInfo(text string) execInfo {
	var info execInfo
	if text == "" || json.Unmarshal([]byte(text), &info) != nil {
		return execInfo{}
	}
	return info
}

// forbidsInput reports whether the caller does not share the terminal's input.
func (i *execInfo) forbidsInput() bool { return i.APIVersion != "" && !i.Spec.Interactive }

// clusterAt returns the caller's cluster if it is the one at endpoint, or nil.
func (i *execInfo) clusterAt(endpoint string) *clientauthenticationv1beta1.Cluster {
	cluster := i.Spec.Cluster
	if cluster == nil || strings.TrimRight(cluster.Server, "/") != strings.TrimRight(endpoint, "/") {
		return nil
	}
	return cluster
}

func (p *Plugin) debugf(format string, args ...any) {
	if p.Debug {
		ui.Println(p.ErrOut, "debug: "+format, args...)
	}
}

// origin returns the kubeconfig with this login, quoted for a shell, or FILE if unknown.
func (p *Plugin) origin() string {
	path, _, user := p.Find(p.Args)
	if user == nil {
		return "FILE"
	}
	return ui.ShellWord(path)
}
