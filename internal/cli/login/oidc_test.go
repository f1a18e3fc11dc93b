package login

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
)

func TestChooseFlow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		upstream, flow string
		want           oidclogin.Flow // empty means an error
	}{
		{upstream: "oidc", want: oidclogin.Browser},
		{upstream: "github", want: oidclogin.Browser},
		{upstream: "ldap", want: oidclogin.Password},
		{upstream: "activedirectory", want: oidclogin.Password},
		{upstream: "ldap", flow: "browser_authcode", want: oidclogin.Browser},
		{upstream: "oidc", flow: "cli_password", want: oidclogin.Password},
		{upstream: "oidc", flow: "device_code", want: oidclogin.DeviceCode},
		{upstream: "github", flow: "cli_password"},
		{upstream: "oidc", flow: "telepathy"},
		{upstream: "saml"},
	} {
		got, err := chooseFlow(test.upstream, test.flow)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s, %q: want %q, got %q, %v", test.upstream, test.flow, test.want, got, err)
		}
	}
}

// TestOIDCFlags checks the effect of flags and environment.
func TestOIDCFlags(t *testing.T) {
	t.Parallel()
	server := cluster(t)
	environment := map[string]string{
		"PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW": "device_code",
		"PINNIPED_SKIP_PRINT_LOGIN_URL":            "true",
		"PINNIPED_USERNAME":                        "ann",
	}
	o := &OIDCOptions{
		Issuer:          "https://issuer.example.com",
		ClientID:        "c",
		Scopes:          []string{"openid", "a"},
		ListenPort:      1234,
		UpstreamName:    "n",
		UpstreamType:    "oidc",
		UpstreamFlow:    "browser_authcode",
		RequestAudience: "aud",
		CABundleData:    []string{server.CAData(), server.CAData()},
		LookupEnv:       func(name string) (string, bool) { value, set := environment[name]; return value, set },
		OpenBrowser:     func(context.Context, string) error { return nil },
	}
	o.Plugin.ExecInfo = `{"apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":true,"cluster":{"server":"https://kube.example.com/"}}}`
	if err := o.Complete(); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	login := o.login
	pem, err := base64.StdEncoding.DecodeString(server.CAData())
	if err != nil {
		t.Fatal(err)
	}
	if login.Flow != oidclogin.DeviceCode || !login.Quiet || login.Getenv("PINNIPED_USERNAME") != "ann" ||
		login.Cluster != "kube.example.com" {
		t.Errorf("flow %q, quiet %v, cluster %q", login.Flow, login.Quiet, login.Cluster)
	}
	if string(login.CABundle) != string(pem)+"\n"+string(pem) {
		t.Errorf("CA bundle %s", login.CABundle)
	}
	if key := login.Key(); key.RedirectURI != "http://localhost:1234/callback" || key.UpstreamProviderName != "n" ||
		key.Scopes[0] != "a" {
		t.Errorf("key %+v", key)
	}
	environment["PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW"] = "" // set but empty: it clears the flag
	if err := o.Complete(); err != nil || o.UpstreamFlow != "" {
		t.Errorf("want no flow, got %q, %v", o.UpstreamFlow, err)
	}
}

func TestInput(t *testing.T) {
	t.Parallel()
	for text, forbidden := range map[string]bool{
		"": false,
		`{"apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":true}}`:  false,
		`{"apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":false}}`: true,
	} {
		info := parseExecInfo(text)
		if got := info.forbidsInput(); got != forbidden {
			t.Errorf("%s: want %v, got %v", text, forbidden, got)
		}
	}
}

func TestBrowserProgram(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		system      string
		environment map[string]string
		want        string
	}{
		{system: "linux", environment: map[string]string{"DISPLAY": ":0"}, want: "xdg-open"},
		{system: "linux", environment: map[string]string{"WAYLAND_DISPLAY": "w"}, want: "xdg-open"},
		{system: "linux"},
		{system: "linux", environment: map[string]string{"BROWSER": "firefox --new-window"}, want: "firefox"},
		{system: "darwin", want: "/usr/bin/open"},
		{system: "windows", want: "rundll32"},
	} {
		program, err := browser{getenv: func(name string) string { return test.environment[name] }}.program(test.system)
		if (err == nil) != (test.want != "") || err == nil && program[0] != test.want {
			t.Errorf("%+v: got %q, %v", test, program, err)
		}
	}
}

func TestBrowserVariable(t *testing.T) {
	t.Parallel()
	spaced := filepath.Join(t.TempDir(), "my browser")
	if err := os.WriteFile(spaced, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string][]string{
		"":                          nil,
		spaced:                      {spaced},
		"/no/browser:" + spaced:     {spaced},
		"/no/browser:sh -c":         {"sh", "-c"},
		"sh --new-window %s":        {"sh", "--new-window", "%s"},
		"/no/browser -x:/no/either": {"/no/browser", "-x"},
	} {
		if got := chosenBrowser(value, "linux"); !slices.Equal(got, want) {
			t.Errorf("%q: want %q, got %q", value, want, got)
		}
	}
	if got := withAddress([]string{"-a", "url=%s"}, "https://x"); !slices.Equal(got, []string{"-a", "url=https://x"}) {
		t.Errorf("got %q", got)
	}
	if got := withAddress(nil, "https://x"); !slices.Equal(got, []string{"https://x"}) {
		t.Errorf("got %q", got)
	}
}
