package login

import (
	"errors"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
)

// TestNoPlaceForSessions checks that a user without a home directory is warned that sessions are not kept, unless the
// cache is switched off.
func TestNoPlaceForSessions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		home    error
		args    []string
		noPlace bool
	}{
		"a home":                      {},
		"no home":                     {home: errors.New("$HOME is not defined"), noPlace: true},
		"no home, and a file":         {home: errors.New("$HOME is not defined"), args: []string{"--session-cache=/tmp/s"}},
		"no home, and no file wanted": {home: errors.New("$HOME is not defined"), args: []string{"--session-cache="}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := factory.New(nil)
			f.Getenv = func(string) string { return "" }
			f.HomeDir = func() (string, error) { return t.TempDir(), test.home }
			session, err := NewSession(f, &factory.Cluster{REST: &rest.Config{ExecProvider: &clientcmdapi.ExecConfig{
				APIVersion: "client.authentication.k8s.io/v1beta1",
				Args:       append([]string{"login", "oidc", "--issuer=https://issuer.example.com"}, test.args...),
			}}})
			if err != nil {
				t.Fatal(err)
			}
			if got := session.oidc.NoPlace; (got != nil) != test.noPlace {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestHomeInArguments checks that "~" in the plugin's arguments is expanded, as no shell does so.
func TestHomeInArguments(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	f := factory.New(nil)
	f.HomeDir = func() (string, error) { return home, nil }
	saved, err := SavedBy(f, []string{
		"login", "oidc", "--issuer=https://issuer.example.com", "--session-cache=~/s.yaml", "--credential-cache=~/c.yaml",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if saved.Sessions.Path != filepath.Join(home, "s.yaml") || saved.CredentialCache != filepath.Join(home, "c.yaml") {
		t.Errorf("got %q, %q", saved.Sessions.Path, saved.CredentialCache)
	}
}
