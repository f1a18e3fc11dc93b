package whoami

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	identityv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/identity/v1alpha1"
)

type asker func(context.Context) (*identityv1alpha1.WhoAmIRequest, error)

func (a asker) WhoAmI(ctx context.Context) (*identityv1alpha1.WhoAmIRequest, error) { return a(ctx) }

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func options(ask asker) (*Options, *bytes.Buffer) {
	var out bytes.Buffer
	return &Options{
		IOStreams: genericiooptions.IOStreams{Out: &out}, Output: "text", Suffix: "pinniped.dev",
		Now: func() time.Time { return now },
		Connect: func(factory.ClusterFlags, string) (*Connection, error) {
			return &Connection{Name: "kind", Server: "https://kube.example.com", Asker: ask}, nil
		},
	}, &out
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		user  identityv1alpha1.UserInfo
		err   error
		wants string
		says  string
		hint  string
	}{
		{
			name: "prints name and groups", user: identityv1alpha1.UserInfo{Username: "jane", Groups: []string{"a", "b"}},
			wants: "Username: jane\nGroups: a, b\n",
		},
		{
			name: "prints UID and extras",
			user: identityv1alpha1.UserInfo{
				Username: "jane", UID: "1", Extra: map[string]identityv1alpha1.ExtraValue{"b": {"x", "y"}, "a": {"z"}},
			},
			wants: "Username: jane\nGroups: \nUID: 1\nExtra:\n  a: z\n  b: x, y\n",
		},
		{name: "prints a user without groups", user: identityv1alpha1.UserInfo{Username: "jane"}, wants: "Username: " +
			"jane\nGroups: \n"},
		{name: "hints at a missing agent", err: &discovery.NotInstalledError{What: "API"}, says: "identifying " +
			"the user: the pinniped agent is not installed", hint: `"pinniped.dev"`},
		{name: "passes on other errors", err: errors.New("boom"), says: "identifying the user: boom"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, out := options(func(context.Context) (*identityv1alpha1.WhoAmIRequest, error) {
				answer := &identityv1alpha1.WhoAmIRequest{}
				answer.Status.KubernetesUserInfo.User = test.user
				return answer, test.err
			})
			err := o.Run(t.Context())
			if test.says != "" {
				if err == nil || err.Error() != test.says && !strings.HasPrefix(err.Error(), test.says) ||
					!strings.Contains(ui.HintOf(err), test.hint) ||
					out.Len() > 0 {
					t.Errorf("want %q with hint %q, got %v, %q", test.says, test.hint, err, ui.HintOf(err))
				}
				return
			}
			if err != nil || !strings.HasSuffix(out.String(), test.wants) ||
				!strings.Contains(out.String(), "Name: kind\nURL: https://kube.example.com\n") {
				t.Errorf("want %q, got %q, %v", test.wants, out, err)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	o, _ := options(func(ctx context.Context) (*identityv1alpha1.WhoAmIRequest, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	o.Timeout = time.Millisecond
	if code := ui.ExitCodeOf(o.Run(t.Context())); code != ui.ExitTimedOut {
		t.Errorf("want code %d, got %d", ui.ExitTimedOut, code)
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		login Login
		wants string
	}{
		{
			name: "prints all", login: Login{
				Strategy: "ImpersonationProxy", Endpoint: "https://proxy.example.com", Credential: "token",
				Expiry: now.Add(4*time.Minute + 12*time.Second),
			},
			wants: "Groups: \n\nCurrent login info:\n\nStrategy: ImpersonationProxy\nEndpoint: " +
				"https://proxy.example.com\nCredential: token\nExpires: in 4 minutes (2026-11-21T12:04:12Z)\n",
		},
		{name: "leaves out what is not known", login: Login{Credential: "token"}, wants: "Groups: \n\nCurrent login " +
			"info:\n\nCredential: token\n"},
		{name: "prints nothing for nothing", wants: "Groups: \n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, out := options(nil)
			o.Connect = func(factory.ClusterFlags, string) (*Connection, error) {
				return &Connection{
					Asker: asker(func(context.Context) (*identityv1alpha1.WhoAmIRequest, error) {
						return &identityv1alpha1.WhoAmIRequest{}, nil
					}),
					Login: func(context.Context) Login { return test.login },
				}, nil
			}
			if err := o.Run(t.Context()); err != nil || !strings.HasSuffix(out.String(), test.wants) {
				t.Errorf("want %q, got %q, %v", test.wants, out, err)
			}
		})
	}
}

// TestStrategies checks an API server with two strategies, and a proxy in front of it.
func TestStrategies(t *testing.T) {
	t.Parallel()
	const server, proxy = "https://kube.example.com", "https://proxy.example.com/"
	at := func(kind configv1alpha1.StrategyType, status configv1alpha1.StrategyStatus,
	) configv1alpha1.CredentialIssuerStrategy {
		return configv1alpha1.CredentialIssuerStrategy{
			Type: kind, Status: status, Frontend: &configv1alpha1.CredentialIssuerFrontend{
				TokenCredentialRequestAPIInfo: &configv1alpha1.TokenCredentialRequestAPIInfo{Server: server},
			},
		}
	}
	signer := at(configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.StrategySuccess)
	tokens := at(configv1alpha1.StrategyServiceAccountToken, configv1alpha1.StrategySuccess)
	broken := at(configv1alpha1.StrategyKubeClusterSigningCertificate, configv1alpha1.StrategyError)
	through := configv1alpha1.CredentialIssuerStrategy{
		Type: configv1alpha1.StrategyImpersonationProxy, Status: configv1alpha1.StrategySuccess,
		Frontend: &configv1alpha1.CredentialIssuerFrontend{
			ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{Endpoint: proxy},
		},
	}
	both := []configv1alpha1.CredentialIssuerStrategy{signer, through, tokens}
	for _, test := range []struct {
		name       string
		credential credential
		strategies []configv1alpha1.CredentialIssuerStrategy
		server     string
		want       string
	}{
		{name: "knows a certificate", credential: credential{exchanged: true, kind: certificateKind}, want: "KubeClusterSigningCertificate"},
		{name: "knows a token", credential: credential{exchanged: true, kind: tokenKind}, want: "ServiceAccountToken"},
		{
			name: "knows what was asked for", credential: credential{exchanged: true, asked: "ServiceAccountToken"},
			want: "ServiceAccountToken",
		},
		{
			name: "names both when it cannot know", credential: credential{exchanged: true},
			want: "KubeClusterSigningCertificate or ServiceAccountToken",
		},
		{
			name: "names the one that works", credential: credential{exchanged: true}, want: "ServiceAccountToken",
			strategies: []configv1alpha1.CredentialIssuerStrategy{broken, tokens},
		},
		{name: "says nothing of an administrator's certificate", credential: credential{kind: certificateKind}},
		{name: "says nothing of a token that the API server itself takes", credential: credential{kind: tokenKind}},
		{name: "knows the proxy, with any credential", credential: credential{kind: tokenKind}, server: "https://proxy.example.com", want: "ImpersonationProxy"},
		{name: "knows none elsewhere", credential: credential{exchanged: true}, server: "https://other.example.com"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.strategies == nil {
				test.strategies = both
			}
			if test.server == "" {
				test.server = server
			}
			var issuers [2]configv1alpha1.CredentialIssuer // the second is a duplicate
			for i := range issuers {
				issuers[i].Status.Strategies = test.strategies
			}
			if got := strings.Join(test.credential.strategies(issuers[:], test.server), " or "); got != test.want {
				t.Errorf("want %q, got %q", test.want, got)
			}
		})
	}
}
