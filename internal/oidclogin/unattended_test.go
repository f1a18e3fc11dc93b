package oidclogin_test

import (
	"errors"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
)

// TestUnattended checks that without a user a session is used and refreshed; if a login is needed, nothing is opened or
// printed.
func TestUnattended(t *testing.T) {
	t.Parallel()
	s := setUp(t)
	s.login.Unattended = true
	if _, err := s.login.Token(t.Context()); !errors.Is(err, oidclogin.ErrPersonNeeded) {
		t.Errorf("without a session: got %v", err)
	}
	if shown := s.person.screen(); shown != "" {
		t.Errorf("the terminal shows %q", shown)
	}
	s.login.Unattended = false
	if _, err := s.login.Token(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.login.Unattended = true
	if _, err := s.login.Renew(t.Context()); err != nil {
		t.Errorf("refreshing the session: %v", err)
	}
}
