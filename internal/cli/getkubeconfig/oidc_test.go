package getkubeconfig

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
)

// issuerServer serves an OpenID Connect issuer with additional metadata.
func issuerServer(t *testing.T, metadata, providers string) (issuer string, bundle []byte) {
	t.Helper()
	var server *httptest.Server
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/corp/.well-known/openid-configuration":
			_, _ = fmt.Fprintf(w, `{"issuer":"%s/corp"%s}`, server.URL, strings.ReplaceAll(metadata, "SELF", server.URL))
		case "/idps":
			_, _ = fmt.Fprint(w, providers)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/corp", pemOf(server)
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	const supervisor = `,"scopes_supported":["openid","username","groups"],"discovery.supervisor.pinniped.dev/v1alpha1":{"pinniped_identity_providers_endpoint":"SELF/idps"}`
	const oldSupervisor = `,"scopes_supported":["openid"],"discovery.supervisor.pinniped.dev/v1alpha1":{"pinniped_identity_providers_endpoint":"SELF/idps"}`
	const one = `{"pinniped_identity_providers":[{"name":"corp","type":"ldap","flows":["cli_password","browser_authcode"]}]}`
	const two = `{"pinniped_identity_providers":[{"name":"corp","type":"ldap","flows":["cli_password"]},{"name":"hub","type":"github","flows":["browser_authcode"]}]}`
	for _, test := range []struct {
		name                string
		metadata, providers string
		change              func(*OIDCOptions)
		bundleErr           error
		want                []string // required arguments
		not                 []string // forbidden arguments
		says                string
	}{
		{
			name: "takes issuer, audience and CA bundle of the JWTAuthenticator",
			want: []string{"--client-id=pinniped-cli", "--scopes=openid,username,groups", "--request-audience=cluster-1"},
			not:  []string{"--upstream-identity-provider-name="},
		},
		{
			name: "takes the flags instead", change: func(o *OIDCOptions) { o.RequestAudience = "mine" },
			want: []string{"--request-audience=mine"},
		},
		{
			name: "takes the only identity provider and its first flow", metadata: supervisor, providers: one,
			want: []string{
				"--scopes=openid,username,groups", "--upstream-identity-provider-name=corp",
				"--upstream-identity-provider-type=ldap", "--upstream-identity-provider-flow=cli_password",
			},
		},
		{
			name: "asks an old Supervisor for no new scopes", metadata: oldSupervisor, providers: one,
			want: []string{"--scopes=openid"},
		},
		{
			name: "takes the flow that is asked for", metadata: supervisor, providers: one,
			change: func(o *OIDCOptions) { o.UpstreamFlow = "browser_authcode" },
			want:   []string{"--upstream-identity-provider-flow=browser_authcode"},
		},
		{
			name: "refuses a flow that there is not", metadata: supervisor, providers: two,
			change: func(o *OIDCOptions) { o.UpstreamName, o.UpstreamFlow = "hub", "cli_password" },
			says:   `no client flow "cli_password" for Supervisor upstream identity provider "hub" of type "github" was found`,
		},
		{name: "refuses a choice", metadata: supervisor, providers: two, says: "multiple Supervisor upstream identity " +
			"providers were found, so the --upstream-identity-provider-name/--upstream-identity-provider-type flags must be " +
			"specified"},
		{
			name: "chooses by type", metadata: supervisor, providers: two,
			change: func(o *OIDCOptions) { o.UpstreamType = "github" }, want: []string{"--upstream-identity-provider-name=hub"},
		},
		{
			name: "finds none of the name", metadata: supervisor, providers: two,
			change: func(o *OIDCOptions) { o.UpstreamName = "x" },
			says:   `no Supervisor upstream identity providers with name "x" were found`,
		},
		{
			name: "adds nothing without identity providers", metadata: supervisor, providers: `{}`,
			not: []string{"--upstream-identity-provider-name="},
		},
		{
			name:   "refuses a Supervisor's own audience",
			change: func(o *OIDCOptions) { o.RequestAudience = "client.oauth.pinniped.dev-x" },
			says:   "request audience is not allowed to include the substring '.pinniped.dev'",
		},
		{name: "names an issuer that is none", change: func(o *OIDCOptions) { o.Issuer += "/nope" }, says: "unexpected " +
			"status code 404"},
		{
			name: "names a CA bundle that cannot be read", bundleErr: errors.New("no such Secret"),
			says: "tried to autodiscover --oidc-ca-bundle, but",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			issuer, bundle := issuerServer(t, test.metadata, test.providers)
			cluster := proxied(jwtAuthenticator(issuer))
			cluster.bundle, cluster.bundleErr = bundle, test.bundleErr
			o, out, _ := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, cluster)
			o.StaticTokenEnv = ""
			o.OIDC = OIDCOptions{ClientID: "pinniped-cli", Scopes: []string{"openid", "username", "groups"}}
			if test.change != nil {
				o.OIDC.Issuer = issuer
				test.change(&o.OIDC)
			}
			err := o.Run(t.Context())
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) || out.Len() > 0 {
					t.Errorf("want an error that says %q and no output, got %v", test.says, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_, args := made(t, out.Bytes())
			if args[1] != "oidc" || !slices.Contains(args, "--issuer="+issuer) ||
				!slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--ca-bundle-data=LS0t") }) {
				t.Errorf("want login oidc with issuer and CA bundle, got %q", args)
			}
			for _, arg := range test.want {
				if !slices.Contains(args, arg) {
					t.Errorf("want %q among %q", arg, args)
				}
			}
			for _, prefix := range test.not {
				if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, prefix) }) {
					t.Errorf("want no %q among %q", prefix, args)
				}
			}
		})
	}
}

// TestOneJWTAuthenticatorNextToAWebhook checks that an OpenID Connect login selects the JWTAuthenticator.
func TestOneJWTAuthenticatorNextToAWebhook(t *testing.T) {
	t.Parallel()
	issuer, bundle := issuerServer(t, "", "")
	for _, test := range []struct {
		name   string
		change func(*Options)
		says   string
	}{
		{name: "takes it for OpenID Connect", change: func(o *Options) { o.StaticTokenEnv = "" }},
		{
			name:   "takes it for its issuer",
			change: func(o *Options) { o.StaticTokenEnv, o.OIDC.Issuer = "", issuer },
		},
		{
			name:   "does not take it for another issuer",
			change: func(o *Options) { o.StaticTokenEnv, o.OIDC.Issuer = "", "https://other.example.com" },
			says:   "several authenticators in the cluster: webhook/users, jwt/corp",
		},
		{
			name: "does not take it for a token, which may be one of either", change: func(*Options) {},
			says: "several authenticators in the cluster: webhook/users, jwt/corp",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cluster := proxied(jwtAuthenticator(issuer))
			cluster.several, cluster.bundle = []string{"webhook/users", "jwt/corp"}, bundle
			o, out, _ := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, cluster)
			o.OIDC = OIDCOptions{ClientID: "pinniped-cli", Scopes: []string{"openid"}}
			test.change(o)
			err := o.Run(t.Context())
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("want an error that says %q, got %v", test.says, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, args := made(t, out.Bytes()); !slices.Contains(args, "--concierge-authenticator-name=corp") ||
				!slices.Contains(args, "--issuer="+issuer) {
				t.Errorf("want a login with the JWTAuthenticator, got %q", args)
			}
		})
	}
}

// TestStaticTokenForJWTAuthenticator checks that a static token needs no issuer.
func TestStaticTokenForJWTAuthenticator(t *testing.T) {
	t.Parallel()
	cluster := proxied(jwtAuthenticator("https://unreachable.invalid"))
	cluster.bundleErr = errors.New("must not be asked for")
	o, out, _ := options(t, &clientcmdapi.Cluster{Server: "https://kube.example.com"}, cluster)
	if err := o.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, args := made(
		t,
		out.Bytes(),
	); args[1] != "static" ||
		!slices.Contains(args, "--concierge-authenticator-type=jwt") {
		t.Errorf("want login static with a jwt authenticator, got %q", args)
	}
}

// TestIssuerHints checks the hint for each failure to read an issuer's metadata.
func TestIssuerHints(t *testing.T) {
	t.Parallel()
	issuer, bundle := issuerServer(t, "", "")
	away := httptest.NewTLSServer(nil)
	away.Close()
	serves := func(code int, body string) string {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	for _, test := range []struct {
		name, issuer string
		bundle       []byte
		says, hint   string
	}{
		{"is away", away.URL, bundle, "connection refused", "this computer can reach the issuer"},
		{"has another CA", issuer, nil, "certificate signed by unknown authority", "--oidc-ca-bundle"},
		{"is somewhere else", issuer + "/elsewhere", bundle, "unexpected status code 404", "check --oidc-issuer"},
		{"is broken", serves(http.StatusBadGateway, ""), bundle, "unexpected status code 502", "the issuer has a problem"},
		{"is a web page", serves(http.StatusOK, "<html>"), bundle, "not the expected JSON", "not an OpenID Connect issuer"},
		{
			"sends too much", serves(http.StatusOK, strings.Repeat("x", 1_000_001)), bundle, "larger than 1000000 bytes",
			"much smaller",
		},
		{
			"is for all tenants", serves(http.StatusOK, `{"issuer":"https://login.microsoftonline.com/{tenantid}/v2.0"}`), bundle,
			"names a different issuer", "TENANT-ID",
		},
		{
			"has a certificate for another name", strings.Replace(issuer, "127.0.0.1", "localhost", 1), bundle, "localhost",
			"get a certificate for localhost",
		},
		{"calls itself otherwise", issuer + "/", bundle, "names a different issuer", "to the issuer in the document"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := (&OIDCOptions{Issuer: test.issuer, CABundle: test.bundle}).askIssuer(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(ui.HintOf(err), test.hint) {
				t.Errorf("got %v, hint %q", err, ui.HintOf(err))
			}
		})
	}
}
