package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/test/oidctest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestLoginOIDC goes the whole way: a person logs in at an issuer in the browser, the agent's JWTAuthenticator takes
// the token, and kubectl is that person at a real API server. The person is asked once.
func TestLoginOIDC(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	idp := must.Get(oidctest.New())(t)
	t.Cleanup(idp.Close)
	w.trust(t, "people", &issuer.Issuer{URL: idp.URL, CA: idp.CA.CertPEM()}, oidctest.ClientID)

	r := w.reader(t)
	r.places = append(r.places, "my-client", oidctest.ClientID, ",email", "") // this issuer does not support the scope
	home := r.dir
	link, program := linkFile(t, home)
	file := filepath.Join(home, "developer.yaml")
	environment := append(r.environment, "HOME="+home, "BROWSER="+program)
	r.environment = environment
	blocks := r.blocks(t, "docs/howto/login-oidc.md")
	r.types(t, blocks[0])
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "command: pinniped\n") {
		t.Errorf("want the command that is on the PATH, got %s, %v", text, err)
	}

	opened := opensLink(t, idp, link)
	whoAmI := func() result {
		return w.runWith(t, environment, nil, w.kubectl, "--kubeconfig="+file, "auth", "whoami", "-o",
			"jsonpath={.status.userInfo.username}")
	}
	if got := whoAmI(); got.code != 0 || got.out != idp.User {
		t.Fatalf("want user %q, got %q, %s", idp.User, got.out, got.errOut)
	}
	if err := <-opened; err != nil {
		t.Fatalf("browser: %v", err)
	}
	if got := whoAmI(); got.code != 0 || idp.Count("/authorize") != 1 {
		t.Errorf("want the person asked once, got %d, %s", idp.Count("/authorize"), got.errOut)
	}
	if who := r.types(t, blocks[1]); !strings.Contains(who, idp.User) {
		t.Errorf("whoami says\n%s", who)
	}
	r.types(t, blocks[2])
	if _, err := os.Stat(filepath.Join(home, ".config", "pinniped", "sessions.yaml")); err != nil {
		t.Error(err)
	}
}

// linkFile returns a "browser" that leaves the link in a file, for a person who opens it, and that file.
func linkFile(t *testing.T, dir string) (link, program string) {
	t.Helper()
	link, program = filepath.Join(dir, "link"), filepath.Join(dir, "browser")
	script := "#!/bin/sh\nprintf %s \"$1\" > " + link + ".new && mv " + link + ".new " + link + "\n"
	must.Do(t, os.WriteFile(program, []byte(script), 0o700))
	return link, program
}

// opensLink logs a person in when the file has a link.
func opensLink(t *testing.T, idp *oidctest.Issuer, link string) chan error {
	t.Helper()
	opened := make(chan error, 1)
	go func() {
		err := os.ErrDeadlineExceeded
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if address, errRead := os.ReadFile(link); errRead == nil {
				_, err = oidctest.Browse(t.Context(), idp.CA.CertPEM(), string(address))
				break
			}
		}
		opened <- err
	}()
	return opened
}
