// Package identityproviders_test tests docs/howto/identity-providers.md. For each provider, a user logs in with our
// client at an issuer with that provider's tokens and discovery document, and the page's JWTAuthenticator verifies the
// token.
package identityproviders_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/getkubeconfig"
	"github.com/pinniped-toolkit/pinniped/internal/oidclogin"
	"github.com/pinniped-toolkit/pinniped/internal/sessioncache"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/oidctest"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const page = "docs/howto/identity-providers.md"

var root = filepath.Join("..", "..")

type object = map[string]any

// login is a login at a provider, and the result in the cluster.
type login struct {
	name, provider string
	claims         object // of the ID token, in addition to those of every issuer
	metadata       object // of the discovery document; SELF is the issuer's address
	groups         string // an expression of the page, instead of the claim
	warns          string // quoted from the page, if no ID token comes with a refresh
	want           string // user and groups
	refused        string // quoted from the page
}

var logins = []login{
	{
		name: "Keycloak", provider: "keycloak", want: "ann /dev",
		claims: object{"preferred_username": "ann", "groups": []string{"/dev"}, "typ": "ID", "azp": oidctest.ClientID},
	},
	{
		name: "Keycloak's roles are nested", provider: "keycloak", want: "ann admin",
		claims: object{"preferred_username": "ann", "realm_access": object{"roles": []string{"admin"}}},
		groups: "has(claims.realm_access) ? claims.realm_access.roles : []",
	},
	{
		name: "Keycloak's user has no roles", provider: "keycloak", want: "ann",
		claims: object{"preferred_username": "ann"},
		groups: "has(claims.realm_access) ? claims.realm_access.roles : []",
	},
	{
		name: "no ID token comes with a refresh", provider: "keycloak", want: "ann",
		claims: object{"preferred_username": "ann"}, warns: "returns no ID token on refresh",
	},
	{
		name: "Okta", provider: "okta", want: "ann@example.com Everyone dev",
		claims: object{"email": "ann@example.com", "email_verified": true, "groups": []string{"Everyone", "dev"}, "ver": 1},
	},
	{
		name: "Entra ID has object IDs, and no email_verified", provider: "entra",
		claims: object{
			"preferred_username": "ann@example.com", "email": "ann@example.com", "ver": "2.0",
			"groups": []string{"0b1f5a3c-0000-4000-8000-000000000001"},
		},
		want: "ann@example.com 0b1f5a3c-0000-4000-8000-000000000001",
	},
	{
		name: "Entra ID's user is in too many groups", provider: "entra",
		claims: object{
			"preferred_username": "ann@example.com", "_claim_names": object{"groups": "src1"},
			"_claim_sources": object{"src1": object{"endpoint": "https://127.0.0.1:1/getMemberObjects"}},
		},
		refused: `the issuer left the claim "groups" out of the token (_claim_names)`,
	},
	{
		name: "Entra ID's address for all tenants", provider: "entra", refused: "this address is for all tenants",
		metadata: object{"issuer": "https://login.microsoftonline.com/{tenantid}/v2.0"},
	},
	{
		name: "Google's service account", provider: "google", want: "ci@PROJECT.iam.gserviceaccount.com",
		claims: object{"email": "ci@PROJECT.iam.gserviceaccount.com", "email_verified": true, "azp": "1234"},
	},
	{
		name: "Google's other accounts", provider: "google", refused: "only service accounts of PROJECT",
		claims: object{"email": "mallory@gmail.com", "email_verified": true},
	},
	{
		name: "Google's token without an address", provider: "google", refused: "claim not present", claims: object{},
	},
	{
		name: "GitLab", provider: "gitlab", want: "ann example/dev",
		claims: object{
			"nickname": "ann", "groups_direct": []string{"example/dev"}, "email": "ann@example.com", "email_verified": false,
		},
	},
	{
		name: "Dex", provider: "dex", want: "ann@example.com dev",
		claims: object{"email": "ann@example.com", "email_verified": true, "groups": []string{"dev"}, "name": "Ann"},
	},
	{
		name: "Dex's connector does not say whether the address is verified", provider: "dex", want: "ann@example.com",
		claims: object{"email": "ann@example.com"},
	},
	{
		name: "Dex's connector has an address that is not verified", provider: "dex", refused: "email not verified",
		claims: object{"email": "ann@example.com", "email_verified": false},
	},
	{
		name: "Auth0 has a slash at the end and a namespace", provider: "auth0", want: "ann@example.com dev",
		claims: object{
			"iss": "SELF/", "email": "ann@example.com", "email_verified": true,
			"https://example.com/groups": []string{"dev"},
		},
		metadata: object{"issuer": "SELF/"},
	},
	{
		name:     "Auth0 without the slash",
		provider: "auth0",
		refused:  "names a different issuer",
		metadata: object{"issuer": "SELF"},
	},
	{
		name: "AD FS has one group, which is no list", provider: "adfs", want: "ann@example.com dev",
		claims: object{"upn": "ann@example.com", "group": "dev"},
		metadata: object{
			"access_token_issuer":      "http://adfs.example.com/adfs/services/trust",
			"response_modes_supported": []string{"query", "fragment", "form_post"},
		},
	},
	{
		name: "AD FS has two groups", provider: "adfs", want: "ann@example.com dev ops",
		claims: object{"upn": "ann@example.com", "group": []string{"dev", "ops"}},
	},
	{
		name: "Cognito", provider: "cognito", want: "ann dev",
		claims: object{"cognito:username": "ann", "cognito:groups": []string{"dev"}, "token_use": "id"},
		metadata: object{
			"device_authorization_endpoint": nil, "scopes_supported": []string{"openid", "email", "phone", "profile"},
		},
	},
	{
		name: "Cognito's user is in no group", provider: "cognito", want: "ann",
		claims: object{"cognito:username": "ann", "token_use": "id"},
	},
	{
		name: "GitLab CI", provider: "gitlab-ci", want: "gitlab:example/shop gitlab-group:example",
		claims: object{"project_path": "example/shop", "namespace_path": "example", "ref_protected": "true"},
	},
	{
		name: "GitLab CI on another branch", provider: "gitlab-ci", refused: "ref_protected",
		claims: object{"project_path": "example/shop", "namespace_path": "example", "ref_protected": "false"},
	},
	{
		name: "GitHub Actions", provider: "github-actions", want: "github:example/shop github-org:example",
		claims: object{
			"repository": "example/shop", "repository_owner": "example", "ref": "refs/heads/main", "run_id": "1",
		},
	},
}

// TestIdentityProviders checks the page: its commands have only existing flags, and logins end as it says.
// TestIdentityProviderManifests has the API server validate the files.
func TestIdentityProviders(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile(filepath.Join(root, page)))(t)
	authenticators := read(t)
	tested := map[string]bool{}
	for _, test := range logins {
		tested[test.provider] = true
		for _, words := range []string{test.refused, test.groups, test.warns} {
			if !strings.Contains(string(text), words) {
				t.Errorf("%s: the page does not have %q", test.name, words)
			}
		}
		spec, ok := authenticators[test.provider]
		if !ok {
			t.Errorf("the page has no JWTAuthenticator %s", test.provider)
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := test.run(t, spec)
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("want %q, got %q, %v", test.refused, got, err)
				}
				return
			}
			must.Do(t, err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for name := range authenticators {
		if !tested[name] {
			t.Errorf("nobody logs in with JWTAuthenticator %s", name)
		}
	}
}

// read checks the page's logins and commands, and returns its JWTAuthenticators by name.
func read(t *testing.T) map[string]authenticationv1alpha1.JWTAuthenticatorSpec {
	t.Helper()
	blocks := must.Get(documents.Read(root, page))(t)
	ci := must.Get(documents.Read(root, "docs/howto/ci-without-secrets.md"))(t)
	blocks = append(blocks, ci[0]) // of GitHub Actions
	authenticators := map[string]authenticationv1alpha1.JWTAuthenticatorSpec{}
	for _, block := range blocks {
		if block.Language == "yaml" {
			manifest, credentialIssuer, _ := strings.Cut(block.Text, "\n---\n")
			var strict authenticationv1alpha1.JWTAuthenticator
			var logins configv1alpha1.CredentialIssuer
			if err := errors.Join(
				yaml.UnmarshalStrict([]byte(manifest), &strict),
				yaml.UnmarshalStrict([]byte(credentialIssuer), &logins),
			); err != nil {
				t.Fatalf("%s: %v", block, err)
			}
			authenticators[strict.Name] = strict.Spec
			if credentialIssuer == "" {
				continue
			}
			login := logins.Spec.ImpersonationProxy.Kubeconfig.Logins[0]
			if login.Authenticator.Name != strict.Name || login.OIDC.ClientID != strict.Spec.Audience {
				t.Errorf("%s: people log in for authenticator %s and client %s", block, login.Authenticator.Name,
					login.OIDC.ClientID)
			}
			continue
		}
		if block.NotRun != "" {
			continue
		}
		words := strings.Fields(strings.ReplaceAll(block.Text, "\\\n", ""))
		if err := getkubeconfig.NewCommand(factory.New(nil)).ParseFlags(words[3:]); err != nil {
			t.Errorf("%s: %v", block, err)
		}
	}
	return authenticators
}

// run logs in, and returns the user and the groups.
func (l login) run(t *testing.T, spec authenticationv1alpha1.JWTAuthenticatorSpec) (string, error) {
	t.Helper()
	idp := must.Get(oidctest.New())(t)
	t.Cleanup(idp.Close)
	self := func(from object) object {
		to := object{}
		for name, value := range from {
			if text, ok := value.(string); ok {
				value = strings.ReplaceAll(text, "SELF", idp.URL)
			}
			to[name] = value
		}
		return to
	}
	idp.Claims, idp.Metadata = self(l.claims), self(l.metadata)
	idp.Claims["username"] = nil // only a Supervisor has it
	idp.NoIDAtRefresh = l.warns != ""
	slash := strings.HasSuffix(spec.Issuer, "/")
	spec.Issuer, spec.Audience = idp.URL, oidctest.ClientID
	if slash {
		spec.Issuer += "/"
	}
	if l.groups != "" {
		spec.Claims.Groups, spec.Claims.GroupsExpression = "", l.groups
	}
	screen := &screen{}
	client := &oidclogin.Login{
		Issuer: spec.Issuer, ClientID: oidctest.ClientID, CABundle: idp.CA.CertPEM(),
		Scopes:   []string{"openid", "offline_access"},
		Sessions: &sessioncache.Cache{Path: filepath.Join(t.TempDir(), "sessions.yaml"), Now: time.Now},
		Terminal: screen,
		OpenBrowser: func(ctx context.Context, address string) error {
			go func() { _, _ = oidctest.Browse(context.WithoutCancel(ctx), idp.CA.CertPEM(), address) }()
			return nil
		},
	}
	if authorized, ok := idp.Claims["azp"].(string); ok && authorized != oidctest.ClientID {
		delete(idp.Claims, "azp") // such tokens do not come from a login
	}
	if _, err := client.Token(t.Context()); err != nil {
		var hinted interface{ Hint() string }
		if errors.As(err, &hinted) {
			err = errors.Join(err, errors.New(hinted.Hint()))
		}
		return "", err
	}
	token, err := client.Renew(t.Context()) // with the refresh token
	if err != nil {
		return "", err
	}
	if l.warns != "" && !strings.Contains(screen.String(), l.warns) {
		t.Errorf("want a warning, got %q", screen)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(idp.CA.CertPEM())
	provider := authenticator.NewProvider(
		authenticator.ProviderOptions{Issuer: spec.Issuer, Roots: roots, Clock: clock.RealClock{}},
	)
	t.Cleanup(provider.Close)
	keys, err := provider.Discover(t.Context())
	if err != nil {
		return "", err
	}
	provider.UseKeysURL(keys)
	if err := provider.FetchKeys(t.Context()); err != nil {
		return "", err
	}
	jwt, err := authenticator.NewJWT(&spec, provider)
	if err != nil {
		return "", err
	}
	t.Cleanup(jwt.Close)
	info, _, err := jwt.AuthenticateToken(t.Context(), token.Raw)
	if refusal, ok := errors.AsType[*authenticator.Refusal](err); ok {
		return "", errors.Join(err, errors.New(refusal.Message()))
	}
	if err != nil {
		return "", err
	}
	return strings.Join(slices.Concat([]string{info.GetName()}, info.GetGroups()), " "), nil
}

// screen is a terminal without input.
type screen struct{ testkit.Buffer }

func (*screen) Interactive() bool { return false }

func (s *screen) Print(text string) { _, _ = s.Write([]byte(text)) }

func (*screen) ReadLine(context.Context, string) (string, error)   { return "", io.EOF }
func (*screen) ReadSecret(context.Context, string) (string, error) { return "", io.EOF }
