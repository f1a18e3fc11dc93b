package authenticator

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/documents"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const audience = "this-cluster"

// newProvider returns a provider that has the issuer's keys.
func newProvider(t *testing.T, idp *issuer.Issuer, clk clock.PassiveClock) *Provider {
	t.Helper()
	provider := NewProvider(ProviderOptions{Issuer: idp.URL, Roots: idp.Roots(), Clock: clk})
	t.Cleanup(provider.Close)
	keys := must.Get(provider.Discover(t.Context()))(t)
	provider.UseKeysURL(keys)
	must.Do(t, provider.FetchKeys(t.Context()))
	return provider
}

func newJWT(t *testing.T, provider *Provider, spec authenticationv1alpha1.JWTAuthenticatorSpec) *JWT {
	t.Helper()
	spec.Issuer, spec.Audience = provider.issuer, audience
	authenticator := must.Get(NewJWT(&spec, provider))(t)
	t.Cleanup(authenticator.Close)
	return authenticator
}

// with returns the claims of a valid token with one of them changed.
func with(idp *issuer.Issuer, name string, value any) map[string]any {
	return idp.Claims(audience, map[string]any{name: value})
}

func TestJWTUsers(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	provider := newProvider(t, idp, clock.RealClock{})
	type spec = authenticationv1alpha1.JWTAuthenticatorSpec
	type claims = authenticationv1alpha1.JWTTokenClaims
	rule := func(expression string) []authenticationv1alpha1.ClaimValidationRule {
		return []authenticationv1alpha1.ClaimValidationRule{{Expression: expression, Message: "no"}}
	}
	userRule := func(expression string) []authenticationv1alpha1.UserValidationRule {
		return []authenticationv1alpha1.UserValidationRule{{Expression: expression, Message: "no"}}
	}
	named := func(name string, groups ...string) *user.DefaultInfo {
		return &user.DefaultInfo{Name: name, Groups: groups}
	}
	ann := named("ann", "dev", "ops")
	withExtra := func(key, value string) *user.DefaultInfo {
		return &user.DefaultInfo{Name: ann.Name, Groups: ann.Groups, Extra: map[string][]string{key: {value}}}
	}
	tenant := []authenticationv1alpha1.ClaimValidationRule{{Claim: "tenant", RequiredValue: "t"}}
	for _, test := range []struct {
		name   string
		spec   spec
		change map[string]any
		want   *user.DefaultInfo // nil: refused
		err    string
	}{
		{"reads the claims username and groups when none is named", spec{}, nil, ann, ""},
		{"takes several audiences", spec{}, map[string]any{"aud": []string{"other", audience}}, ann, ""},
		{"takes a user without groups", spec{}, map[string]any{"groups": nil}, named("ann"), ""},
		{"takes one group", spec{}, map[string]any{"groups": "dev"}, named("ann", "dev"), ""},
		{
			"shows the token's id",
			spec{},
			map[string]any{"jti": "7"},
			withExtra("authentication.kubernetes.io/credential-id", "JTI=7"),
			"",
		},
		{
			"takes other claims",
			spec{Claims: claims{Username: "sub", Groups: "roles"}},
			map[string]any{"roles": []string{"r"}},
			&user.DefaultInfo{Name: "1234", Groups: []string{"r"}}, "",
		},
		{
			"evaluates expressions",
			spec{Claims: claims{UsernameExpression: `"ci:" + claims.sub`, GroupsExpression: `["x:" + claims.role, ""]`}},
			map[string]any{"role": "r"},
			&user.DefaultInfo{Name: "ci:1234", Groups: []string{"x:r"}}, "",
		},
		{
			"makes extras",
			spec{
				Claims: claims{
					Extra: []authenticationv1alpha1.ExtraMapping{{Key: "example.com/tenant", ValueExpression: "claims.tenant"}},
				},
			},
			map[string]any{"tenant": "t"},
			withExtra("example.com/tenant", "t"),
			"",
		},
		{
			"takes what the rules hold for",
			spec{
				ClaimValidationRules: append(rule(`claims.sub == "1234"`), tenant...),
				UserValidationRules:  userRule(`!user.username.startsWith("root")`),
			},
			map[string]any{"tenant": "t"},
			ann, "",
		},
		{
			"takes a verified address",
			spec{Claims: claims{Username: "email"}},
			map[string]any{"email": "ann@example.com", "email_verified": true},
			&user.DefaultInfo{Name: "ann@example.com", Groups: []string{"dev", "ops"}}, "",
		},

		{
			"refuses an address that is not verified",
			spec{Claims: claims{Username: "email"}},
			map[string]any{"email": "ann@example.com", "email_verified": false},
			nil, "email not verified",
		},
		{
			"refuses what a claim rule does not hold for",
			spec{ClaimValidationRules: rule(`claims.sub == "other"`)},
			nil, nil,
			"failed: no",
		},
		{
			"refuses another value of a required claim",
			spec{ClaimValidationRules: tenant},
			map[string]any{"tenant": "u"},
			nil, "does not match",
		},
		{"refuses a required claim that is missing", spec{ClaimValidationRules: tenant}, nil, nil, "not present"},
		{
			"refuses what a user rule does not hold for",
			spec{UserValidationRules: userRule(`user.username.startsWith("root")`)},
			nil, nil, "failed: no",
		},
		{"refuses a user without a name", spec{}, map[string]any{"username": nil}, nil, "claim not present"},
		{"refuses an empty name", spec{}, map[string]any{"username": ""}, nil, "names no user"},
		{"refuses a blank name", spec{}, map[string]any{"username": " \u00a0"}, nil, "names no user"},
		{"refuses a name that is no text", spec{}, map[string]any{"username": 7}, nil, "username"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			token := idp.Token(t, idp.Claims(audience, test.change))
			info, ok, err := newJWT(t, provider, test.spec).AuthenticateToken(t.Context(), token)
			if test.want == nil {
				var refusal *Refusal
				if ok || !errors.As(err, &refusal) || !strings.Contains(err.Error(), test.err) || refusal.Reason != ReasonRefused {
					t.Errorf("want a refusal with %q, got %v, %v", test.err, ok, err)
				}
				return
			}
			if err != nil || !ok {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, info); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestJWTRefusesHostileTokens(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	rsaKey := issuer.NewRSA(t, "rsa", jose.RS256)
	ecKey := idp.Rotate(t)
	idp.SetKeys(ecKey, rsaKey)
	other := issuer.New(t)
	authenticator := newJWT(t, newProvider(t, idp, clock.RealClock{}), authenticationv1alpha1.JWTAuthenticatorSpec{})
	claims := idp.Claims(audience, nil)
	publicDER := must.Get(x509.MarshalPKIXPublicKey(rsaKey.Signer.Public()))(t)
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER})
	hs256 := func(key []byte) func(string) []byte {
		return func(input string) []byte {
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(input))
			return mac.Sum(nil)
		}
	}
	rs256 := func(input string) []byte {
		sum := sha256.Sum256([]byte(input))
		signature, err := rsa.SignPKCS1v15(rand.Reader, rsaKey.Signer.(*rsa.PrivateKey), crypto.SHA256, sum[:])
		if err != nil {
			t.Error(err)
		}
		return signature
	}
	nothing := func(string) []byte { return nil }
	good := idp.Token(t, claims)
	parts := strings.Split(good, ".")
	another := strings.Split(idp.Token(t, with(idp, "username", "root")), ".")
	jwk := map[string]any{"kty": "oct", "k": "AAAA"}
	for _, test := range []struct {
		name, token string
		reason      Reason
	}{
		{"alg none", issuer.Forge(t, map[string]any{"alg": "none"}, claims, nothing), ReasonRefused},
		{
			"alg None in other case", issuer.Forge(t, map[string]any{"alg": "nOnE", "kid": "rsa"}, claims, nothing),
			ReasonRefused,
		},
		{"no alg", issuer.Forge(t, map[string]any{"kid": "rsa"}, claims, rs256), ReasonRefused},
		{
			"HS256 with the public key's PEM",
			issuer.Forge(t, map[string]any{"alg": "HS256", "kid": "rsa"}, claims, hs256(publicPEM)), ReasonRefused,
		},
		{
			"HS256 with the public key's DER",
			issuer.Forge(t, map[string]any{"alg": "HS256", "kid": "rsa"}, claims, hs256(publicDER)), ReasonRefused,
		},
		{
			"HS256 with a key in the header",
			issuer.Forge(t, map[string]any{"alg": "HS256", "jwk": jwk}, claims, hs256([]byte{0, 0, 0})), ReasonRefused,
		},
		{
			"RS256 with the id of an EC key", issuer.Forge(t, map[string]any{"alg": "RS256", "kid": ecKey.ID}, claims, rs256),
			ReasonRefused,
		},
		{"a key of another issuer", other.Token(t, claims), ReasonRefused},
		{"a key of another issuer under an id of ours", func() string {
			key := other.Rotate(t)
			key.ID = ecKey.ID
			return key.Sign(t, claims)
		}(), ReasonRefused},
		{"the signature of another token", parts[0] + "." + another[1] + "." + parts[2], ReasonRefused},
		{"no signature", parts[0] + "." + parts[1] + ".", ReasonRefused},
		{"a signature cut off", good[:len(good)-4], ReasonRefused},
		{
			"a critical header",
			issuer.Forge(t, map[string]any{"alg": "RS256", "kid": "rsa", "crit": []string{"x"}, "x": 1}, claims, rs256),
			ReasonRefused,
		},

		{"another issuer", idp.Token(t, with(idp, "iss", "https://evil.example.com")), ReasonIssuer},
		{"an issuer with a slash more", idp.Token(t, with(idp, "iss", idp.URL+"/")), ReasonIssuer},
		{"no issuer", idp.Token(t, with(idp, "iss", nil)), ReasonIssuer},
		{"another audience", idp.Token(t, with(idp, "aud", "another-cluster")), ReasonAudience},
		{"an audience that begins alike", idp.Token(t, with(idp, "aud", audience+"-2")), ReasonAudience},
		{"no audience", idp.Token(t, with(idp, "aud", nil)), ReasonAudience},
		{"an expired one", idp.Token(t, with(idp, "exp", time.Now().Add(-time.Second).Unix())), ReasonExpired},
		{"one that never expires", idp.Token(t, with(idp, "exp", nil)), ReasonExpired},
		{"one of tomorrow", idp.Token(t, with(idp, "nbf", time.Now().Add(24*time.Hour).Unix())), ReasonNotYet},

		{"nothing", "", ReasonNotAToken},
		{"two parts", "a.b", ReasonNotAToken},
		{"four parts", good + ".x", ReasonNotAToken},
		{"a million dots", strings.Repeat(".", 1<<20), ReasonNotAToken},
		{"too much", parts[0] + "." + parts[1] + "." + strings.Repeat("x", 1<<20), ReasonNotAToken},
		{
			"JSON serialization", fmt.Sprintf(`{"payload":%q,"protected":%q,"signature":%q}`, parts[1], parts[0], parts[2]),
			ReasonNotAToken,
		},
		{"claims that are no JSON", parts[0] + ".AAAA." + parts[2], ReasonNotAToken},
		{"claims that are a list", parts[0] + ".W10." + parts[2], ReasonNotAToken},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			info, ok, err := authenticator.AuthenticateToken(t.Context(), test.token)
			var refusal *Refusal
			if ok || info != nil || !errors.As(err, &refusal) {
				t.Fatalf("got %v, %v, %v", info, ok, err)
			}
			if refusal.Reason != test.reason {
				t.Errorf("want reason %s, got %s: %v", test.reason, refusal.Reason, err)
			}
			if test.token != "" &&
				(strings.Contains(err.Error(), test.token) || strings.Contains(refusal.Message(), test.token)) {
				t.Error("the error contains the token")
			}
			if len(refusal.Message()) > 400 {
				t.Errorf("the message has %d bytes", len(refusal.Message()))
			}
		})
	}
	if _, ok, err := authenticator.AuthenticateToken(t.Context(), good); !ok {
		t.Errorf("the good one is refused: %v", err)
	}
}

// TestJWTVouchesForWhateverTheIssuerSays checks that names reserved for Kubernetes are not refused here; that is up to
// the caller.
func TestJWTVouchesForWhateverTheIssuerSays(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	authenticator := newJWT(t, newProvider(t, idp, clock.RealClock{}), authenticationv1alpha1.JWTAuthenticatorSpec{})
	many := make([]string, 20000)
	for i := range many {
		many[i] = fmt.Sprintf("group-%027d", i)
	}
	for _, groups := range [][]string{{"system:masters"}, {"sуstem:masters"}, many} {
		info, ok, err := authenticator.AuthenticateToken(t.Context(), idp.Token(t, with(idp, "groups", groups)))
		if !ok || err != nil || !slices.Equal(info.GetGroups(), groups) {
			t.Errorf("got %v", err)
		}
	}
}

func TestJWTAlgorithms(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	keys := []issuer.Key{idp.Rotate(t)}
	for _, algorithm := range []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	} {
		keys = append(keys, issuer.NewRSA(t, string(algorithm), algorithm))
	}
	idp.SetKeys(keys...)
	authenticator := newJWT(t, newProvider(t, idp, clock.RealClock{}), authenticationv1alpha1.JWTAuthenticatorSpec{})
	for _, key := range keys {
		if _, ok, err := authenticator.AuthenticateToken(t.Context(), key.Sign(t, idp.Claims(audience, nil))); !ok {
			t.Errorf("%s: %v", key.Algorithm, err)
		}
	}
}

func TestJWTCostsNoNetwork(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	clk := clocktesting.NewFakePassiveClock(time.Now())
	authenticator := newJWT(t, newProvider(t, idp, clk), authenticationv1alpha1.JWTAuthenticatorSpec{})
	asked := func() int { _, keys := idp.Requests(); return keys }
	ask := func(token string) bool {
		_, ok, _ := authenticator.AuthenticateToken(t.Context(), token)
		return ok
	}
	good := idp.Token(t, idp.Claims(audience, nil))
	clk.SetTime(clk.Now().Add(time.Hour))
	idp.SetAway(true)
	for range 100 {
		if !ask(good) {
			t.Fatal("refused while the issuer is away")
		}
	}
	if asked() != 1 {
		t.Errorf("want the keys to be asked for once, got %d", asked())
	}

	// Tokens of another issuer must not cause a fetch each.
	unknown := issuer.New(t).Token(t, idp.Claims(audience, nil))
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() { ask(unknown) })
	}
	group.Wait()
	if asked() != 2 {
		t.Errorf("want the keys to be asked for twice, got %d", asked())
	}

	// A new key is fetched when there is a token signed with it, and an old one is dropped with that.
	idp.SetAway(false)
	idp.Rotate(t)
	fresh := idp.Token(t, idp.Claims(audience, nil))
	if ask(fresh) {
		t.Error("accepted without asking, or asked too soon")
	}
	clk.SetTime(clk.Now().Add(keysPause))
	if !ask(fresh) || asked() != 3 {
		t.Errorf("the new key is not known after %d questions", asked())
	}
	if ask(good) {
		t.Error("the old key is still known")
	}
}

func TestJWTSaysThatTheIssuerIsAway(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	clk := clocktesting.NewFakePassiveClock(time.Now())
	authenticator := newJWT(t, newProvider(t, idp, clk), authenticationv1alpha1.JWTAuthenticatorSpec{})
	clk.SetTime(clk.Now().Add(time.Hour))
	idp.Rotate(t)
	idp.SetAway(true)
	_, ok, err := authenticator.AuthenticateToken(t.Context(), idp.Token(t, idp.Claims(audience, nil)))
	var refusal *Refusal
	if ok || !errors.As(err, &refusal) || refusal.Reason != ReasonIssuerAway || !strings.Contains(err.Error(), "503") {
		t.Errorf("got %v, %v", ok, err)
	}
}

func TestNewJWTSaysWhatIsWrongWithTheSpec(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	provider := newProvider(t, idp, clock.RealClock{})
	type spec = authenticationv1alpha1.JWTAuthenticatorSpec
	type claims = authenticationv1alpha1.JWTTokenClaims
	extra := func(key string) spec {
		return spec{Claims: claims{
			Extra: []authenticationv1alpha1.ExtraMapping{{Key: key, ValueExpression: "claims.t"}},
		}}
	}
	for _, test := range []struct {
		spec spec
		err  string
	}{
		{spec{Claims: claims{Username: "a", UsernameExpression: "claims.a"}}, "claims.username: Invalid value"},
		{spec{Claims: claims{Groups: "a", GroupsExpression: "claims.a"}}, "claims.groups: Invalid value"},
		{spec{Claims: claims{UsernameExpression: "claims."}}, "claims.usernameExpression: Invalid value"},
		{spec{Claims: claims{GroupsExpression: "x.a"}}, "claims.groupsExpression: Invalid value"},
		{
			spec{Claims: claims{UsernameExpression: "claims.email"}},
			"claims.email_verified must be used in claims.usernameExpression or claims.extra[*].valueExpression or " +
				"claimValidationRules[*].expression when claims.email is used in claims.usernameExpression",
		},
		{extra("tenant"), "claims.extra[0].key: Invalid value"},
		{extra("example.com/T"), "must be lowercase"},
		{extra("a.k8s.io/t"), "reserved for Kubernetes use"},
		{extra(VouchedByKey), "is reserved for the agent"},
		{extra("example.com/x" + ReservedExtraSuffix), "is reserved for the agent"},
		{extra("example.com/a=b"), "must not contain an equals sign"},
		{ // all errors are named, as in Pinniped
			extra("a=b"),
			`must be a domain-prefixed path (such as "acme.io/foo"), claims.extra[0].key: Invalid value: "a=b": ` +
				`must not contain an equals sign`,
		},
		{
			spec{ClaimValidationRules: []authenticationv1alpha1.ClaimValidationRule{{}}},
			"claimValidationRules[0]: Required value",
		},
		{
			spec{UserValidationRules: []authenticationv1alpha1.UserValidationRule{{Expression: "user."}}},
			"userValidationRules[0].expression: Invalid value",
		},
	} {
		test.spec.Issuer, test.spec.Audience = idp.URL, audience
		_, err := NewJWT(&test.spec, provider)
		if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "claimMappings") {
			t.Errorf("want %q, got %v", test.err, err)
		}
	}
}

// TestDocumentedJWTAuthenticator checks that the example in the reference is a valid spec.
func TestDocumentedJWTAuthenticator(t *testing.T) {
	t.Parallel()
	blocks := must.Get(documents.Read(filepath.Join("..", ".."), "docs/reference/authenticators.md"))(t)
	var example authenticationv1alpha1.JWTAuthenticator
	must.Do(t, yaml.UnmarshalStrict([]byte(blocks[0].Text), &example))
	provider := NewProvider(ProviderOptions{Issuer: example.Spec.Issuer, Clock: clock.RealClock{}})
	t.Cleanup(provider.Close)
	jwt := must.Get(NewJWT(&example.Spec, provider))(t)
	jwt.Close()
}

func TestProvider(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		prepare   func(*issuer.Issuer, *ProviderOptions)
		discovery string // error
		keys      string // error
	}{
		{name: "gets keys"},
		{
			name:    "refuses a certificate of another CA",
			prepare: func(_ *issuer.Issuer, o *ProviderOptions) { o.Roots = x509.NewCertPool() }, discovery: "unknown authority",
		},
		{
			name:    "refuses a certificate that the system's roots do not know",
			prepare: func(_ *issuer.Issuer, o *ProviderOptions) { o.Roots = nil }, discovery: "certificate",
		},
		{name: "refuses an issuer that calls itself otherwise", prepare: func(i *issuer.Issuer, _ *ProviderOptions) {
			i.SetDocument(map[string]any{"issuer": "https://other.example.com", "jwks_uri": i.URL + "/keys"})
		}, discovery: `the issuer is "https://other.example.com"`},
		{name: "refuses an endless document", prepare: func(i *issuer.Issuer, _ *ProviderOptions) {
			i.SetDocument(map[string]any{"issuer": i.URL, "x": strings.Repeat("x", 2<<20)})
		}, discovery: "longer than 1048576 bytes"},
		{
			name: "says that it is away", prepare: func(i *issuer.Issuer, _ *ProviderOptions) { i.SetAway(true) },
			discovery: "status code 503",
		},
		{
			name:    "refuses keys that are no JSON",
			prepare: func(i *issuer.Issuer, _ *ProviderOptions) { i.SetKeySet([]byte("<html>")) }, keys: "not return the expected JSON",
		},
		{
			name: "refuses no keys", prepare: func(i *issuer.Issuer, _ *ProviderOptions) { i.SetKeySet([]byte(`{"keys":[]}`)) },
			keys: "the key set has no keys",
		},
		{name: "refuses secret keys", prepare: func(i *issuer.Issuer, _ *ProviderOptions) {
			i.SetKeySet([]byte(`{"keys":[{"kty":"oct","k":"AAAA","kid":"x","alg":"HS256"}]}`))
		}, keys: `key "x": its kind (kty) is "oct"`},
		{name: "refuses too many keys", prepare: func(i *issuer.Issuer, _ *ProviderOptions) {
			i.SetKeySet([]byte(`{"keys":[` + strings.Repeat("{},", 200) + `{}]}`))
		}, keys: "201 keys"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			idp := issuer.New(t)
			options := ProviderOptions{Issuer: idp.URL, Roots: idp.Roots(), Clock: clock.RealClock{}}
			if test.prepare != nil {
				test.prepare(idp, &options)
			}
			provider := NewProvider(options)
			t.Cleanup(provider.Close)
			check := func(want string, err error) bool {
				if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("want %q, got %v", want, err)
				}
				return err == nil
			}
			keysURL, err := provider.Discover(t.Context())
			if !check(test.discovery, err) {
				return
			}
			provider.UseKeysURL(keysURL)
			if got := check(test.keys, provider.FetchKeys(t.Context())); got != provider.Ready() {
				t.Errorf("ready: %v", provider.Ready())
			}
		})
	}
}

func TestProviderKeepsItsKeys(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	provider := newProvider(t, idp, clock.RealClock{})
	token := idp.Token(t, idp.Claims(audience, nil))
	idp.SetKeySet([]byte(`{"keys":[{"kty":"new kind","kid":"x"}]}`))
	if err := provider.FetchKeys(t.Context()); err == nil {
		t.Fatal("an unknown kind of key alone was taken for the issuer's keys")
	}
	if _, err := provider.VerifySignature(t.Context(), token); err != nil {
		t.Error(err)
	}
}

// TestJWTNamesSkippedKeys has tokens that are signed with an unusable key, alone and next to a usable one.
func TestJWTNamesSkippedKeys(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]int{"the only key": 0, "one of two": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idp := issuer.New(t)
			clk := clocktesting.NewFakePassiveClock(time.Now())
			provider := newProvider(t, idp, clk)
			authenticator := newJWT(t, provider, authenticationv1alpha1.JWTAuthenticatorSpec{})
			keys := []string{`{"kty":"EC","kid":"new","crv":"secp256k1","x":"AQ","y":"AQ"}`}
			for range others {
				keys = append(keys, `{"kty":"OKP","kid":"other","crv":"Ed25519","x":"`+strings.Repeat("A", 43)+`"}`)
			}
			idp.SetKeySet([]byte(`{"keys":[` + strings.Join(keys, ",") + `]}`))
			clk.SetTime(clk.Now().Add(time.Minute))
			token := issuer.NewRSA(t, "new", jose.RS256).Sign(t, idp.Claims(audience, nil))
			_, ok, err := authenticator.AuthenticateToken(t.Context(), token)
			refusal, is := errors.AsType[*Refusal](err)
			const want = `the token is signed with a key that cannot be used: key "new": its curve (crv) is "secp256k1"`
			if ok || !is || refusal.Reason != ReasonRefused || !strings.HasPrefix(refusal.Message(), want) {
				t.Errorf("got %v, %v", ok, err)
			}
		})
	}
}

// TestJWTNamesGroupsThatAreElsewhere has a token of a user with more groups than the issuer puts into tokens.
func TestJWTNamesGroupsThatAreElsewhere(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	authenticator := newJWT(t, newProvider(t, idp, clock.RealClock{}), authenticationv1alpha1.JWTAuthenticatorSpec{})
	token := idp.Token(t, idp.Claims(audience, map[string]any{
		"groups": nil, "_claim_names": map[string]any{"groups": "src1"},
		"_claim_sources": map[string]any{"src1": map[string]any{"endpoint": idp.URL + "/users/x/getMemberObjects"}},
	}))
	_, ok, err := authenticator.AuthenticateToken(t.Context(), token)
	refusal, is := errors.AsType[*Refusal](err)
	if ok || !is ||
		!strings.HasPrefix(refusal.Message(), `the issuer left the claim "groups" out of the token (_claim_names)`) {
		t.Errorf("got %v, %v", ok, err)
	}
}

// TestJWTWithShortKey has a key as some issuers publish it: a coordinate without its leading zero.
func TestJWTWithShortKey(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	var key issuer.Key
	for x := make([]byte, 32); x[0] != 0 || x[1] == 0; {
		key = idp.Rotate(t)
		public := must.Get(key.Signer.Public().(*ecdsa.PublicKey).Bytes())(t)
		x = public[1:33]
		idp.SetKeySet(fmt.Appendf(nil, `{"keys":[{"kty":"EC","kid":%q,"crv":"P-256","x":%q,"y":%q,"x5c":["none"]}]}`, key.ID,
			base64.RawURLEncoding.EncodeToString(x[1:]), base64.RawURLEncoding.EncodeToString(public[33:])))
	}
	authenticator := newJWT(t, newProvider(t, idp, clock.RealClock{}), authenticationv1alpha1.JWTAuthenticatorSpec{})
	if _, ok, err := authenticator.AuthenticateToken(t.Context(), key.Sign(t, idp.Claims(audience, nil))); !ok {
		t.Error(err)
	}
}

func TestProviderFollowsNoRedirectAwayFromHTTPS(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked without TLS") }),
	)
	t.Cleanup(plain.Close)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL, http.StatusFound)
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	provider := NewProvider(ProviderOptions{Issuer: server.URL, Roots: roots, Clock: clock.RealClock{}})
	if _, err := provider.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "away from https") {
		t.Errorf("got %v", err)
	}
}

func TestProviderUsesTheProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(proxy.Close)
	through := must.Get(url.Parse(proxy.URL))(t)
	provider := NewProvider(ProviderOptions{
		Issuer: "https://issuer.example.com", Clock: clock.RealClock{},
		Proxy: func(*http.Request) (*url.URL, error) { return through, nil },
	})
	if _, err := provider.Discover(t.Context()); err == nil {
		t.Error("want an error")
	}
	if got := <-asked; got != "CONNECT issuer.example.com:443" {
		t.Errorf("got %q", got)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	exp := time.Now().Add(time.Hour).Truncate(time.Second)
	base := map[string]any{"iss": idp.URL, "sub": "s", "aud": []string{"a", "b"}, "exp": exp.Unix()}
	for _, test := range []struct {
		name   string
		change map[string]any
		want   UnverifiedClaims
	}{
		{"all", nil, UnverifiedClaims{Issuer: idp.URL, Subject: "s", Audiences: []string{"a", "b"}, Expires: exp}},
		{
			"one audience",
			map[string]any{"aud": "a"},
			UnverifiedClaims{Issuer: idp.URL, Subject: "s", Audiences: []string{"a"}, Expires: exp},
		},
		{"odd ones", map[string]any{"aud": 7, "sub": 7, "exp": 1e300}, UnverifiedClaims{Issuer: idp.URL}},
	} {
		claims := maps.Clone(base)
		maps.Copy(claims, test.change)
		got, ok := Read(idp.Token(t, claims))
		if diff := cmp.Diff(test.want, got); !ok || diff != "" {
			t.Errorf("%s: (-want +got):\n%s", test.name, diff)
		}
	}
}
