package getkubeconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

// fake returns the CredentialIssuers one after the other, and then the last one again.
type fake struct {
	issuers       []any // *CredentialIssuer or error
	polls         int
	authenticator *discovery.Authenticator
	several       []string // all authenticators, if only the type selects one
	bundle        []byte
	bundleErr     error
}

// proxied returns a cluster with the impersonation proxy and one authenticator.
func proxied(authenticator *discovery.Authenticator) *fake {
	proxy := discoverytest.ProxyStrategy("https://proxy.example.com", nil)
	return &fake{issuers: []any{discoverytest.Issuer(suffix, "issuer", proxy)}, authenticator: authenticator}
}

// jwtAuthenticator returns a JWTAuthenticator for an issuer and the audience cluster-1.
func jwtAuthenticator(issuer string) *discovery.Authenticator {
	return &discovery.Authenticator{
		Type: discovery.JWT, Name: "corp", JWT: discoverytest.JWT(suffix, "corp", issuer, "cluster-1"),
	}
}

func (f *fake) CredentialIssuer(context.Context, string) (*configv1alpha1.CredentialIssuer, error) {
	answer := f.issuers[min(f.polls, len(f.issuers)-1)]
	f.polls++
	if err, ok := answer.(error); ok {
		return nil, err
	}
	return answer.(*configv1alpha1.CredentialIssuer), nil
}

func (f *fake) Authenticator(
	_ context.Context,
	kind discovery.AuthenticatorType,
	_ string,
) (*discovery.Authenticator, error) {
	if f.authenticator == nil {
		return nil, discovery.ErrNotFound
	}
	if kind == "" && len(f.several) > 0 {
		return nil, &discovery.SeveralError{Kind: "authenticator", Names: f.several}
	}
	return f.authenticator, nil
}

func (f *fake) AuthenticatorCABundle(context.Context, *authenticationv1alpha1.TLSSpec) ([]byte, error) {
	return f.bundle, f.bundleErr
}

const suffix = "pinniped.dev"

func testCA(t *testing.T) []byte {
	t.Helper()
	ca, err := certs.NewCA("CA", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca.CertPEM()
}

// options returns Options for a run without a network.
func options(
	t *testing.T,
	cluster *clientcmdapi.Cluster,
	discoverer Discoverer,
) (*Options, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	var out, errOut bytes.Buffer
	return &Options{
		IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &errOut},
		Progress:  &ui.Progress{Out: &errOut},
		Connect: func(factory.ClusterFlags, string) (*kubeconfig.Source, Discoverer, error) {
			return &kubeconfig.Source{ContextName: "x", ClusterName: "c", UserName: "u", Cluster: cluster}, discoverer, nil
		},
		StaticTokenEnv: "TOKEN", Suffix: suffix, Validation: ValidateNothing, Timeout: time.Minute,
		CLIPath: "pinniped", PollInterval: time.Millisecond, StatusWait: time.Minute,
	}, &out, &errOut
}

// made parses a printed kubeconfig, and returns its cluster and the arguments of its credential plugin.
func made(t *testing.T, text []byte) (*clientcmdapi.Cluster, []string) {
	t.Helper()
	config, err := clientcmd.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	return config.Clusters["c"], config.AuthInfos["u"].Exec.Args
}

func TestConnections(t *testing.T) {
	t.Parallel()
	kubeCA, proxyCA, flagCA := testCA(t), testCA(t), testCA(t)
	const kube, proxy, other = "https://kube.example.com", "https://proxy.example.com", "https://other.example.com"
	for _, test := range []struct {
		name             string
		cluster          clientcmdapi.Cluster
		strategy         configv1alpha1.CredentialIssuerStrategy
		change           func(*Options)
		server, endpoint string
		bundle, login    []byte
		insecure         bool
		says             string
	}{
		{
			name: "goes to the proxy with its CA bundle", cluster: clientcmdapi.Cluster{
				Server: kube, CertificateAuthorityData: kubeCA,
			},
			strategy: discoverytest.ProxyStrategy(proxy, proxyCA), server: proxy, endpoint: proxy, bundle: proxyCA, login: proxyCA,
		},
		{
			name: "goes to a proxy with a public certificate", cluster: clientcmdapi.Cluster{
				Server: kube, CertificateAuthorityData: kubeCA,
			},
			strategy: discoverytest.ProxyStrategy(proxy, nil), server: proxy, endpoint: proxy,
		},
		{
			name: "verifies the proxy although the kubeconfig verifies nothing", cluster: clientcmdapi.Cluster{
				Server: kube, InsecureSkipTLSVerify: true,
			},
			strategy: discoverytest.ProxyStrategy(proxy, proxyCA), server: proxy, endpoint: proxy, bundle: proxyCA, login: proxyCA,
		},
		{
			name: "goes to the API server as the kubeconfig does", cluster: clientcmdapi.Cluster{
				Server: kube, CertificateAuthorityData: kubeCA,
			},
			strategy: discoverytest.TokenStrategy(other, proxyCA), server: kube, endpoint: kube, bundle: kubeCA, login: kubeCA,
		},
		{
			name: "goes to an API server with a public certificate", cluster: clientcmdapi.Cluster{Server: kube},
			strategy: discoverytest.TokenStrategy(kube, proxyCA), server: kube, endpoint: kube,
		},
		{
			name: "verifies logins although the kubeconfig verifies nothing", cluster: clientcmdapi.Cluster{
				Server: kube, InsecureSkipTLSVerify: true,
			},
			strategy: discoverytest.TokenStrategy(kube, kubeCA), server: kube, endpoint: kube, login: kubeCA, insecure: true,
		},
		{
			name: "takes the flags", cluster: clientcmdapi.Cluster{Server: kube, CertificateAuthorityData: kubeCA},
			strategy: discoverytest.ProxyStrategy(proxy, proxyCA), server: other, endpoint: other, bundle: flagCA, login: flagCA,
			change: func(o *Options) { o.Endpoint, o.CABundle = other, flagCA },
		},
		{
			name: "takes the flag for the endpoint alone", cluster: clientcmdapi.Cluster{
				Server: kube, CertificateAuthorityData: kubeCA,
			},
			strategy: discoverytest.ProxyStrategy(proxy, proxyCA), server: other, endpoint: other, bundle: proxyCA, login: proxyCA,
			change: func(o *Options) { o.Endpoint = other },
		},
		{
			name: "takes the flag for the CA bundle alone, for an insecure cluster too", cluster: clientcmdapi.Cluster{
				Server: kube, InsecureSkipTLSVerify: true,
			},
			strategy: discoverytest.TokenStrategy(kube, kubeCA), server: kube, endpoint: kube, bundle: flagCA, login: flagCA,
			change: func(o *Options) { o.CABundle = flagCA },
		},
		{
			name: "sends no token without TLS", cluster: clientcmdapi.Cluster{Server: "http://kube.example.com"},
			strategy: discoverytest.TokenStrategy(kube, kubeCA), says: `does not begin with "https://"`,
		},
		{
			name: "refuses a published bundle that is none", cluster: clientcmdapi.Cluster{Server: kube},
			strategy: discoverytest.ProxyStrategy(proxy, []byte("hello")), says: "checking the CA bundle of the endpoint: no " +
				"PEM certificates found",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, out, _ := options(t, &test.cluster, &fake{
				issuers:       []any{discoverytest.Issuer(suffix, "issuer", test.strategy)},
				authenticator: &discovery.Authenticator{Type: discovery.Webhook, Name: "local"},
			})
			if test.change != nil {
				test.change(o)
			}
			err := o.Run(t.Context())
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) || out.Len() > 0 {
					t.Errorf("want an error that says %q and no output, got %v, %q", test.says, err, out)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			cluster, args := made(t, out.Bytes())
			want := (&kubeconfig.Exec{
				Concierge: &kubeconfig.Concierge{
					APIGroupSuffix: suffix, AuthenticatorName: "local", AuthenticatorType: "webhook", Endpoint: test.endpoint,
					CABundle: test.login,
				},
				Static: &kubeconfig.Static{TokenEnv: "TOKEN"},
			}).Args()
			if diff := cmp.Diff(want, args); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			if cluster.Server != test.server || !bytes.Equal(cluster.CertificateAuthorityData, test.bundle) ||
				cluster.InsecureSkipTLSVerify != test.insecure {
				t.Errorf("got %+v", cluster)
			}
		})
	}
}

func TestWaitsForPendingStrategies(t *testing.T) {
	t.Parallel()
	issuer := func(strategies ...configv1alpha1.CredentialIssuerStrategy) *configv1alpha1.CredentialIssuer {
		return discoverytest.Issuer(suffix, "issuer", strategies...)
	}
	proxyFails := func(reason configv1alpha1.StrategyReason, message string) *configv1alpha1.CredentialIssuer {
		return issuer(discoverytest.FailedStrategy(configv1alpha1.StrategyImpersonationProxy, reason, message))
	}
	pending := proxyFails(configv1alpha1.ReasonPending, "no address yet")
	failed := proxyFails(configv1alpha1.ReasonErrorDuringSetup, "bad certificate")
	ready := issuer(discoverytest.ProxyStrategy("https://proxy.example.com", nil))
	onTrial := issuer(
		discoverytest.FailedStrategy(
			configv1alpha1.StrategyKubeClusterSigningCertificate,
			configv1alpha1.ReasonPending,
			"asking the signer",
		),
		discoverytest.ProxyStrategy("https://proxy.example.com", nil),
	)
	hiccup := errors.New("etcd leader changed")
	for _, test := range []struct {
		name    string
		answers []any
		skip    bool
		short   bool // it waits only for a moment
		polls   int
		says    string
	}{
		{name: "waits for a better one", answers: []any{onTrial, onTrial, ready}, polls: 3},
		{name: "passes over a better one that takes long", answers: []any{onTrial, ready}, short: true, polls: 1},
		{name: "does not wait for a better one when told so", answers: []any{onTrial, ready}, skip: true, polls: 1},
		{name: "takes a ready one at once", answers: []any{ready}, polls: 1},
		{name: "waits while it is pending", answers: []any{pending, pending, ready}, polls: 3},
		{name: "waits for the first report", answers: []any{issuer(), ready}, polls: 2},
		{name: "passes over a hiccup while it waits", answers: []any{pending, hiccup, ready}, polls: 3},
		{
			name: "ends when it is forbidden while it waits", answers: []any{pending, discovery.ErrForbidden, ready}, polls: 2,
			says: "forbidden",
		},
		{name: "ends when waiting was in vain", answers: []any{pending, failed}, polls: 2, says: "bad certificate"},
		{name: "ends when the first look fails", answers: []any{hiccup, ready}, polls: 1, says: "etcd leader changed"},
		{name: "does not wait when told so", answers: []any{pending, ready}, skip: true, polls: 1, says: "no address yet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			discoverer := &fake{
				issuers:       test.answers,
				authenticator: &discovery.Authenticator{Type: discovery.Webhook, Name: "local"},
			}
			o, out, errOut := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, discoverer)
			o.SkipWait = test.skip
			if test.short {
				o.StatusWait = -1
			}
			err := o.Run(t.Context())
			switch {
			case test.says == "" && (err != nil || out.Len() == 0):
				t.Errorf("want a kubeconfig, got %v", err)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) || out.Len() > 0):
				t.Errorf("want an error that says %q and no output, got %v", test.says, err)
			}
			if discoverer.polls != test.polls {
				t.Errorf("want %d polls, got %d", test.polls, discoverer.polls)
			}
			if test.short && !strings.Contains(errOut.String(), "skipping it") {
				t.Errorf("want a line that says what is skipped, got:\n%s", errOut)
			}
			if test.polls > 1 &&
				!strings.Contains(errOut.String(), "waiting for pending strategies of the CredentialIssuer") {
				t.Errorf("want a line that says what is waited for, got:\n%s", errOut)
			}
		})
	}
}

// late is a Discoverer whose second read is pending when the command's time is over.
type late struct{ *fake }

func (l late) CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error) {
	if l.polls > 0 {
		<-ctx.Done()
		return nil, fmt.Errorf("no response in time: %w", ctx.Err())
	}
	return l.fake.CredentialIssuer(ctx, name)
}

func TestTimeIsOverDuringAPoll(t *testing.T) {
	t.Parallel()
	pending := discoverytest.FailedStrategy(
		configv1alpha1.StrategyImpersonationProxy, configv1alpha1.ReasonPending, "no address yet")
	first := &fake{issuers: []any{discoverytest.Issuer(suffix, "issuer", pending)}}
	o, _, _ := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, late{first})
	o.Timeout = time.Second
	err := o.Run(t.Context())
	if ui.ExitCodeOf(err) != ui.ExitTimedOut || !strings.Contains(err.Error(), "no address yet") {
		t.Errorf("want a passed deadline with what was seen last, got %v", err)
	}
}

func TestWarnsAboutAnAuthenticatorThatIsNotReady(t *testing.T) {
	t.Parallel()
	o, _, errOut := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, proxied(&discovery.Authenticator{
		Type: discovery.Webhook, Name: "local", Phase: "Error", Problem: "cannot dial",
	}))
	const want = `! WebhookAuthenticator "local" is not ready, so logins will fail until it is: cannot dial`
	if err := o.Run(t.Context()); err != nil || !strings.Contains(errOut.String(), want) {
		t.Errorf("want a warning, got %v:\n%s", err, errOut)
	}
}

// TestWhileTheLastKnownGoodCertificateServes checks that there is a kubeconfig even if the proxy's configuration is not in
// effect.
func TestWhileTheLastKnownGoodCertificateServes(t *testing.T) {
	t.Parallel()
	strategy := discoverytest.ProxyStrategy("https://proxy.example.com", nil)
	strategy.Status, strategy.Reason = configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup
	strategy.Message = "Expired: the new one has expired"
	strategy.Findings = []configv1alpha1.StrategyFinding{
		{Code: configv1alpha1.CodeLastKnownGoodCertificateServed},
		{Code: configv1alpha1.CodeKubernetesTooOld, Message: "Kubernetes 1.20.0 is not supported"},
	}
	o, out, errOut := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, &fake{
		issuers:       []any{discoverytest.Issuer(suffix, "issuer", strategy)},
		authenticator: &discovery.Authenticator{Type: discovery.Webhook, Name: "local", Phase: "Ready"},
	})
	if err := o.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cluster, _ := made(t, out.Bytes()); cluster.Server != "https://proxy.example.com" {
		t.Errorf("it leads to %s", cluster.Server)
	}
	if !strings.Contains(errOut.String(), "is not in effect") ||
		!strings.Contains(errOut.String(), "! Kubernetes 1.20.0 is not supported") ||
		!strings.Contains(errOut.String(), strategy.Message) {
		t.Errorf("it does not warn: %s", errOut)
	}
}

func TestFailureLeavesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "user.yaml")
	if err := os.WriteFile(path, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, _, _ := options(
		t,
		&clientcmdapi.Cluster{Server: "https://kube.example.com"},
		&fake{issuers: []any{discovery.ErrNotInstalled}},
	)
	o.Destination.Output = path
	if err := o.Run(t.Context()); !errors.Is(err, discovery.ErrNotInstalled) {
		t.Errorf("want ErrNotInstalled, got %v", err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "good" {
		t.Errorf("want the old file, got %q, %v", content, err)
	}
}

func TestBearer(t *testing.T) {
	t.Parallel()
	const kube, proxy = "https://kube.example.com", "https://proxy.example.com"
	ca := testCA(t)
	for _, test := range []struct {
		name     string
		accepted []string
		change   func(*Options)
		err      string
	}{
		{name: "makes a kubeconfig without a plugin", accepted: []string{"ci", "other"}},
		{
			name: "takes the authenticator that is accepted", accepted: []string{"ci"},
			change: func(o *Options) { o.AuthenticatorName = "ci" },
		},
		{name: "says that no tokens are accepted", err: "accepts no tokens from authenticators"},
		{
			name: "says that this one's are not", accepted: []string{"ci"},
			change: func(o *Options) { o.AuthenticatorName = "x" },
			err:    `no tokens from authenticator "x", only from JWTAuthenticator ci`,
		},
		{
			name: "says that those of the other kind with this name are not", accepted: []string{"ci"},
			change: func(o *Options) { o.AuthenticatorName, o.AuthenticatorType = "ci", discovery.Webhook },
			err:    `no tokens from WebhookAuthenticator "ci", only from JWTAuthenticator ci`,
		},
		{name: "needs a file", change: func(o *Options) { o.TokenFile = "" }, err: "--login bearer needs --token-file"},
		{name: "has no use for a static token", change: func(o *Options) { o.StaticToken = "x" }, err: "--static-token " +
			"cannot be combined with --login bearer"},
		{
			name: "needs the proxy", change: func(o *Options) { o.Mode = configv1alpha1.FrontendTokenCredentialRequestAPI },
			err: "needs the impersonation proxy",
		},
		{name: "is what the file is for", change: func(o *Options) { o.Login = LoginPlugin }, err: "--token-file requires"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			object := discoverytest.Issuer(
				suffix,
				"i",
				discoverytest.TokenStrategy(kube, ca),
				discoverytest.ProxyStrategy(proxy, ca),
			)
			object.Spec.ImpersonationProxy = &configv1alpha1.ImpersonationProxySpec{}
			if test.accepted != nil {
				tokens := &configv1alpha1.BearerTokensSpec{}
				for _, name := range test.accepted {
					tokens.Authenticators = append(tokens.Authenticators, configv1alpha1.BearerTokenAuthenticator{
						Kind: configv1alpha1.AuthenticatorKindJWT, Name: name,
					})
				}
				object.Spec.ImpersonationProxy.BearerTokens = tokens
			}
			o, out, _ := options(t, &clientcmdapi.Cluster{Server: kube}, &fake{issuers: []any{object}})
			o.StaticTokenEnv, o.Login, o.TokenFile = "", LoginBearer, "/var/run/token"
			if test.change != nil {
				test.change(o)
			}
			err := o.Validate()
			if err == nil {
				err = o.Run(t.Context())
			}
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || out.Len() > 0 {
					t.Errorf("want %q, got %v and %q", test.err, err, out)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.Load(out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(
				&clientcmdapi.AuthInfo{TokenFile: "/var/run/token", Extensions: config.AuthInfos["u"].Extensions},
				config.AuthInfos["u"],
			); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if cluster := config.Clusters["c"]; cluster.Server != proxy || !bytes.Equal(cluster.CertificateAuthorityData, ca) {
				t.Errorf("got %+v", cluster)
			}
		})
	}
}

// TestCommand checks how kubeconfigs call the CLI.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	this, other := filepath.Join(dir, "this"), filepath.Join(dir, "other")
	for _, path := range []string{this, other} {
		if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(this, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, onPath, plugin, flag, want, says string }{
		{name: "is the name where that runs this program", onPath: this, want: "pinniped"},
		{name: "is the name where a link leads to this program", onPath: filepath.Join(dir, "link"), want: "pinniped"},
		{name: "is the path where the name runs another program", onPath: other, want: this, says: "the kubeconfig runs " + this},
		{name: "is the path where there is no such name", want: this, says: "on their PATH, pass --pinniped-cli-path " +
			"pinniped"},
		{name: "is the name that Krew gives it", plugin: filepath.Join(dir, "link"), want: "kubectl-pinniped"},
		{name: "is pinniped, if both run it", onPath: this, plugin: this, want: "pinniped"},
		{name: "is what was asked for", onPath: this, flag: "/opt/pinniped", want: "/opt/pinniped"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, _, errOut := options(t, &clientcmdapi.Cluster{}, nil)
			o.CLIPath, o.Executable = test.flag, func() (string, error) { return this, nil }
			if err := o.Complete(func(name string) (string, error) {
				found := map[string]string{"pinniped": test.onPath, "kubectl-pinniped": test.plugin}[name]
				if found == "" {
					return "", exec.ErrNotFound
				}
				return found, nil
			}); err != nil {
				t.Fatal(err)
			}
			o.sayCommand()
			if o.CLIPath != test.want || !strings.Contains(errOut.String(), test.says) || test.says == "" && errOut.Len() > 0 {
				t.Errorf("want %q, got %q, saying %q", test.want, o.CLIPath, errOut)
			}
		})
	}
}

// TestFollow checks that the login has the flag if it uses the impersonation proxy.
func TestFollow(t *testing.T) {
	t.Parallel()
	const kube, proxy = "https://kube.example.com", "https://proxy.example.com"
	for _, test := range []struct {
		given    string
		strategy configv1alpha1.CredentialIssuerStrategy
		want     string // argument
		warns    bool
	}{
		{strategy: discoverytest.ProxyStrategy(proxy, nil)},
		{given: kubeconfig.FollowUsual, strategy: discoverytest.ProxyStrategy(proxy, nil), want: "--follow"},
		{given: "/home/ann/my config", strategy: discoverytest.ProxyStrategy(proxy, nil), want: "--follow=/home/ann/my config"},
		{given: kubeconfig.FollowUsual, strategy: discoverytest.TokenStrategy(kube, nil), warns: true},
	} {
		o, out, errOut := options(t, &clientcmdapi.Cluster{Server: kube}, &fake{
			issuers:       []any{discoverytest.Issuer(suffix, "issuer", test.strategy)},
			authenticator: &discovery.Authenticator{Type: discovery.Webhook, Name: "local"},
		})
		o.Follow = test.given
		if err := o.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, args := made(t, out.Bytes())
		at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--follow") })
		if at < 0 && test.want != "" || at >= 0 && args[at] != test.want {
			t.Errorf("with %q the arguments are %q", test.given, args)
		}
		if strings.Contains(errOut.String(), "will not refresh its trust bundle") != test.warns {
			t.Errorf("with %q it says %s", test.given, errOut)
		}
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Follow = "config" },
		func(o *Options) { o.NoConcierge = true },
		func(o *Options) { o.Login, o.TokenFile, o.StaticTokenEnv = LoginBearer, "/token", "" },
	} {
		o, _, _ := options(t, &clientcmdapi.Cluster{Server: kube}, &fake{})
		o.Follow = kubeconfig.FollowUsual
		change(o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--follow") {
			t.Errorf("want wrong usage, got %v", err)
		}
	}
}
