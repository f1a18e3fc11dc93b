//go:build unix

package login

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

const interactive = `{"apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":true}}`

// person gives the follower a terminal. shown returns the output since the last call.
func (f *follower) person() (terminal *os.File, shown func() string) {
	f.t.Helper()
	screen, terminal, err := pty.Open()
	if err != nil {
		f.t.Skipf("this system gives no terminal: %v", err)
	}
	f.t.Cleanup(func() { _ = errors.Join(screen.Close(), terminal.Close()) })
	f.in, f.errOut, f.info = terminal, terminal, interactive
	return terminal, func() string {
		f.t.Helper()
		if _, err := io.WriteString(terminal, "\x00"); err != nil {
			f.t.Fatal(err)
		}
		var all []byte
		for one := make([]byte, 1); ; all = append(all, one[0]) {
			if _, err := screen.Read(one); err != nil {
				f.t.Fatal(err)
			}
			if one[0] == 0 {
				return string(all)
			}
		}
	}
}

// TestNotifiesOfANewCA checks that the user is notified once a day, with the command to run.
func TestNotifiesOfANewCA(t *testing.T) {
	t.Parallel()
	f := newFollower(t)
	_, shown := f.person()
	f.login(f.old.CertPEM())
	text := shown()
	for _, part := range []string{
		"pinniped: " + f.URL + ` is about to use CA "CN=new" (SHA-256 `, `"pinniped kubeconfig rotate ` + f.path + `"`,
	} {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q: %q", part, text)
		}
	}
	f.wants("told", f.old.CertPEM(), 1, 1)
	start := f.now
	for _, after := range []time.Duration{2 * time.Hour, 23 * time.Hour} {
		f.now = start.Add(after)
		f.login(f.old.CertPEM())
		if text := shown(); text != "" {
			t.Errorf("after %s: %q", after, text)
		}
	}
	f.wants("nothing to tell today", f.old.CertPEM(), 2, 0)
	f.now = start.Add(25 * time.Hour)
	f.login(f.old.CertPEM())
	if text := shown(); !strings.Contains(text, "is about to use") {
		t.Errorf("the next day: %q", text)
	}
	f.publish(f.both())
	f.login(f.both())
	if text := shown(); text != "" {
		t.Errorf("to a user whose kubeconfig is up to date: %q", text)
	}
}

// TestNotifiesNoOne checks that without a user, or while another program owns the screen, nothing is fetched or printed.
func TestNotifiesNoOne(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*follower, *os.File){
		"stderr in a file":         func(f *follower, _ *os.File) { f.errOut = io.Discard },
		"input that kubectl needs": func(f *follower, _ *os.File) { f.info = strings.Replace(interactive, "true", "false", 1) },
		"a program with the whole screen": func(f *follower, terminal *os.File) {
			if _, err := term.MakeRaw(int(terminal.Fd())); err != nil {
				f.t.Fatal(err)
			}
		},
		"a program that says so": func(f *follower, _ *os.File) { f.env["PINNIPED_SKIP_PRINT_LOGIN_URL"] = "true" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFollower(t)
			terminal, shown := f.person()
			prepare(f, terminal)
			f.login(f.old.CertPEM())
			if text := shown(); text != "" {
				t.Errorf("it says %q", text)
			}
			f.wants(name, f.old.CertPEM(), 1, 0)
		})
	}
}

// TestNotifiesOfRefreshing checks the messages about a new CA in the kubeconfig, and about a rejected one.
func TestNotifiesOfRefreshing(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "--follow")
	_, shown := f.person()
	f.env["KUBECONFIG"] = filepath.Join(t.TempDir(), "another")
	f.login(f.old.CertPEM())
	if text := shown(); !strings.Contains(text, "does not refresh") || !strings.Contains(text, "--follow=FILE") {
		t.Errorf("of a file that is not found: %q", text)
	}
	f.now = f.now.Add(2 * time.Hour)
	f.env["KUBECONFIG"] = f.path
	f.login(f.old.CertPEM())
	if text := shown(); !strings.Contains(text, `" now trusts CA "CN=new" (SHA-256 `) {
		t.Errorf("of a file that follows: %q", text)
	}
	f.wants("followed", f.both(), 2, 2)
}
