// Package oidcprovider_test logs in as a user does, with the whole command, at oidc-provider, an OpenID-certified
// issuer on Node.js. A simulated browser submits the issuer's forms.
//
// It needs Node.js and the packages in testdata/node/package-lock.json, which "make test" installs.
package oidcprovider_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"

	"github.com/pinniped-toolkit/pinniped/internal/cli"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// issuer is an oidc-provider and a user's home directory.
type issuer struct {
	url, home string
	ca        *certs.CA
}

func start(t *testing.T) *issuer {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out what needs node")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node, which is not installed (Debian: apt-get install nodejs npm)")
	}
	folder := filepath.Join("testdata", "node")
	if _, err := os.Stat(filepath.Join(folder, "node_modules", "oidc-provider")); err != nil {
		t.Skip("needs node's packages: run \"make node-modules\", with npm installed")
	}
	ca := must.Get(certs.NewCA("issuer's CA", time.Now(), time.Hour))(t)
	pair := must.Get(ca.IssueServing(certs.SANs{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Now(), time.Hour))(t)
	i := &issuer{home: t.TempDir(), ca: ca}
	certificate, key := filepath.Join(i.home, "tls.crt"), filepath.Join(i.home, "tls.key")
	for path, content := range map[string][]byte{certificate: pair.CertPEM, key: pair.KeyPEM} {
		must.Do(t, os.WriteFile(path, content, 0o600))
	}
	command := exec.Command(node, "provider.mjs", certificate, key)
	command.Dir = folder
	var stderr testkit.Buffer
	command.Stderr = &stderr
	stdin := must.Get(command.StdinPipe())(t)
	stdout := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // it exits
		_ = command.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("oidc-provider did not start: %v\n%s", err, &stderr)
	}
	i.url = strings.TrimSpace(line)
	return i
}

// run runs the command as user ann, who opens the link that it prints.
func (i *issuer) run(t *testing.T, environment map[string]string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out bytes.Buffer
	var errOut testkit.Buffer
	f := factory.New(args)
	f.IOStreams = genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
	f.HomeDir = func() (string, error) { return i.home, nil }
	f.LookupEnv = func(name string) (string, bool) { value, set := environment[name]; return value, set }
	f.Getenv = func(name string) string { return environment[name] }
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	browsed := make(chan error, 1)
	over := make(chan struct{})
	go func() {
		defer close(browsed)
		for {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
			// Only links with a query: in the device flow, that is the link with the code.
			if links := regexp.MustCompile(`(?m)^    (https://\S+\?\S+)$`).
				FindAllStringSubmatch(errOut.String(), -1); len(links) > 0 {
				browsed <- i.browse(ctx, links[0][1])
				return
			}
		}
	}()
	code = cli.Main(ctx, f)
	close(over)
	if err := <-browsed; err != nil {
		t.Errorf("browser: %v", err)
	}
	return out.String(), errOut.String(), code
}

// browse opens link, and submits forms until the login is complete.
func (i *issuer) browse(ctx context.Context, link string) error {
	roots := x509.NewCertPool()
	roots.AddCert(i.ca.Certificate())
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	client := &http.Client{
		Jar:       jar,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}
	defer client.CloseIdleConnections()
	method, form := http.MethodGet, url.Values{}
	for range 10 {
		request, err := http.NewRequestWithContext(ctx, method, link, strings.NewReader(form.Encode()))
		if err != nil {
			return err
		}
		if method == http.MethodPost {
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return err
		}
		page := string(body)
		action := regexp.MustCompile(`<form[^>]* action="([^"]*)"`).FindStringSubmatch(page)
		if action == nil {
			if strings.Contains(page, "you have been logged in") || strings.Contains(page, "Sign-in Success") {
				return nil
			}
			return fmt.Errorf("%s shows neither a form nor success: %s", response.Request.URL, page)
		}
		target, err := response.Request.URL.Parse(html.UnescapeString(action[1]))
		if err != nil {
			return err
		}
		method, link, form = http.MethodPost, target.String(), url.Values{}
		for _, input := range regexp.MustCompile(`<input[^>]*>`).FindAllString(page, -1) {
			name, value := regexp.MustCompile(`name="([^"]*)"`).
				FindStringSubmatch(input),
				regexp.MustCompile(`value="([^"]*)"`).
					FindStringSubmatch(input)
			switch {
			case name == nil:
			case value != nil:
				form.Set(name[1], html.UnescapeString(value[1]))
			default:
				form.Set(name[1], "ann")
			}
		}
	}
	return fmt.Errorf("the forms do not end")
}

func (i *issuer) login(args ...string) []string {
	return append([]string{
		"login",
		"oidc",
		"--issuer",
		i.url,
		"--ca-bundle-data",
		base64.StdEncoding.EncodeToString(i.ca.CertPEM()),
		"--credential-cache=",
		"--skip-browser",
	}, args...)
}

// token runs a login that must succeed, and returns the claims of its token.
func (i *issuer) token(
	t *testing.T,
	environment map[string]string,
	args ...string,
) (claims map[string]any, stderr string) {
	t.Helper()
	stdout, stderr, code := i.run(t, environment, i.login(args...)...)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var credential clientauthenticationv1beta1.ExecCredential
	must.Do(t, json.Unmarshal([]byte(stdout), &credential))
	payload := must.Get(base64.RawURLEncoding.DecodeString(strings.Split(credential.Status.Token, ".")[1]))(t)
	must.Do(t, json.Unmarshal(payload, &claims))
	if claims["username"] != "ann" || claims["iss"] != i.url {
		t.Errorf("want ann's token, got %v", claims)
	}
	return claims, stderr
}

func (i *issuer) sessions() *sessioncache.Cache {
	return &sessioncache.Cache{Path: filepath.Join(i.home, ".config", "pinniped", "sessions.yaml"), Now: time.Now}
}

// age expires the tokens of the session.
func (i *issuer) age(t *testing.T) {
	t.Helper()
	session := i.sessions().Sessions()[0]
	session.Tokens.ID.Expiry.Time, session.Tokens.Access.Expiry.Time = time.Now(), time.Now()
	must.Do(t, i.sessions().Put(t.Context(), session.Key, session.Tokens))
}

// TestWholeScenario covers one session: login in the browser, use, token exchange, refresh, and end.
func TestWholeScenario(t *testing.T) {
	t.Parallel()
	i := start(t)
	first, stderr := i.token(t, nil)
	if !strings.Contains(stderr, "Log in by visiting this link") || first["aud"] != "pinniped-cli" {
		t.Errorf("want a login for the client: %v\n%s", first, stderr)
	}
	if second, stderr := i.token(t, nil); second["iat"] != first["iat"] || stderr != "" {
		t.Errorf("want the token of the session, in silence: %s", stderr)
	}
	exchanged, stderr := i.token(t, nil, "--request-audience", "a-cluster")
	if exchanged["aud"] != "a-cluster" || stderr != "" {
		t.Errorf("want a token for the audience, in silence: %v\n%s", exchanged, stderr)
	}

	// This issuer issues a refresh token only if the login asks for consent. The second login does.
	i.age(t)
	if _, stderr := i.token(t, nil); !strings.Contains(stderr, "&prompt=consent&") {
		t.Errorf("want a login that asks for consent: %s", stderr)
	}
	refresh := i.sessions().Sessions()[0].Tokens.Refresh
	if refresh == nil {
		t.Fatal("want a refresh token")
	}
	for range 2 { // each refresh token can be used once
		i.age(t)
		if _, stderr := i.token(t, nil); stderr != "" {
			t.Errorf("want a refresh, in silence: %s", stderr)
		}
	}
	if now := i.sessions().Sessions()[0].Tokens.Refresh; now == nil || now.Token == refresh.Token {
		t.Error("want the refresh token replaced")
	}

	// The issuer treats reuse of a refresh token as theft and ends the session: the user logs in again.
	session := i.sessions().Sessions()[0]
	session.Tokens.Refresh = refresh
	must.Do(t, i.sessions().Put(t.Context(), session.Key, session.Tokens))
	i.age(t)
	if _, stderr := i.token(t, nil); !strings.Contains(stderr, "Log in by visiting this link") {
		t.Errorf("want a new login: %s", stderr)
	}

	session = i.sessions().Sessions()[0]
	_, stderr, code := i.run(t, nil, "logout", "--issuer", i.url, "--ca-bundle", writeCA(t, i))
	if code != 0 ||
		!strings.Contains(stderr, "ended the session of ann at issuer "+i.url+"; the issuer has revoked the tokens") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if err := i.sessions().Put(t.Context(), session.Key, session.Tokens); err != nil { // a stale copy
		t.Fatal(err)
	}
	i.age(t)
	if _, stderr := i.token(t, nil); !strings.Contains(stderr, "Log in by visiting this link") {
		t.Errorf("want the copy to be worth nothing: %s", stderr)
	}
}

func writeCA(t *testing.T, i *issuer) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(path, i.ca.CertPEM(), 0o600))
	return path
}

func TestDeviceCode(t *testing.T) {
	t.Parallel()
	i := start(t)
	_, stderr := i.token(t, map[string]string{"PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW": "device_code"})
	if !strings.Contains(stderr, "and enter this code:") {
		t.Errorf("want a code: %s", stderr)
	}
	if i.sessions().Sessions()[0].Tokens.Access == nil {
		t.Error("want an access token")
	}
}

func TestUnknownClient(t *testing.T) {
	t.Parallel()
	i := start(t)
	_, stderr, code := i.run(
		t,
		map[string]string{"PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW": "device_code"},
		i.login("--client-id", "unrelated")...)
	if code != 1 || !strings.Contains(stderr, "invalid_client") ||
		!strings.Contains(stderr, "hint: the issuer does not allow this login for the client") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
