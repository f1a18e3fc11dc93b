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
