package login_test

import (
	"path/filepath"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/login"
)

// TestHomeInArguments checks that "~" in the plugin's arguments is expanded, as no shell does so.
func TestHomeInArguments(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	f := factory.New(nil)
	f.HomeDir = func() (string, error) { return home, nil }
	saved, err := login.SavedBy(f, []string{
		"login", "oidc", "--issuer=https://issuer.example.com", "--session-cache=~/s.yaml", "--credential-cache=~/c.yaml",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if saved.Sessions.Path != filepath.Join(home, "s.yaml") || saved.CredentialCache != filepath.Join(home, "c.yaml") {
		t.Errorf("got %q, %q", saved.Sessions.Path, saved.CredentialCache)
	}
}
