package jwtauthenticator

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/internal/controller/authenticators"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

func TestCheckIssuer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ issuer, reason, message string }{
		{"https://issuer.example.com", "Success", "issuer is a valid URL"},
		{"https://issuer.example.com:8443/path/", "Success", "issuer is a valid URL"},
		{"http://issuer.example.com", "InvalidIssuerURLScheme", "spec.issuer http://issuer.example.com has invalid scheme, " +
			"require 'https'"},
		{
			"https://issuer.example.com/a/.well-known/openid-configuration", "InvalidIssuerURLContainsWellKnownEndpoint",
			"spec.issuer https://issuer.example.com/a/.well-known/openid-configuration cannot include path " +
				"'/.well-known/openid-configuration'",
		},
		{"https://issuer.example.com?a=b", "InvalidIssuerURLContainsQueryParams", "spec.issuer " +
			"https://issuer.example.com?a=b cannot include query params"},
		{"https://issuer.example.com#x", "InvalidIssuerURLContainsFragment", "spec.issuer https://issuer.example.com#x " +
			"cannot include fragment"},
		{"https://ann:secret@issuer.example.com", "InvalidIssuerURL", "spec.issuer URL is invalid: it contains a username " +
			"or a password"},
		{"https://ann:secret@[::1", "InvalidIssuerURL", "spec.issuer URL is invalid: missing ']' in host"},
		{"https://", "InvalidIssuerURL", "spec.issuer URL is invalid: it has no host"},
	} {
		got := checkIssuer(test.issuer)
		want := authenticators.Good("IssuerURLValid", test.message)
		if test.reason != "Success" {
			want = authenticators.Bad("IssuerURLValid", test.reason, test.message)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", test.issuer, diff)
		}
	}
}

func TestCheckKeysURL(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ url, reason, message string }{
		{"https://issuer.example.com/keys", "Success", "jwks_uri is a valid URL"},
		{"", "InvalidProviderJWKSURL", "has no jwks_uri"},
		{"https://%", "InvalidProviderJWKSURL", "could not parse provider jwks_uri: "},
		{"https:///keys", "InvalidProviderJWKSURL", "no host"},
		{"http://issuer.example.com/keys", "InvalidProviderJWKSURLScheme", "jwks_uri http://issuer.example.com/keys has " +
			"invalid scheme, require 'https'"},
	} {
		if got := checkKeysURL(test.url); got.Reason != test.reason || !strings.Contains(got.Message, test.message) ||
			got.Type != "JWKSURLValid" {
			t.Errorf("%s: got %+v", test.url, got)
		}
	}
}

// summary returns the reasons of an evaluation, in order.
func summary(f authenticators.Evaluation) string {
	var reasons []string
	for _, condition := range f.Conditions {
		reasons = append(reasons, condition.Reason)
	}
	return fmt.Sprintf("%v usable=%v", reasons, f.Known != nil && f.Known.InUse() != nil)
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	const (
		ready   = "[Success Success Success Success Success Success] usable=true"
		away    = "[Success Success InvalidDiscoveryProbe UnableToValidate UnableToValidate UnableToValidate] usable=false"
		lost    = "[Success Success InvalidDiscoveryProbe UnableToValidate UnableToValidate Success] usable=true"
		noKeys  = "[Success Success Success Success InvalidCouldNotFetchJWKS UnableToValidate] usable=false"
		noURL   = "[Success Success Success InvalidProviderJWKSURLScheme UnableToValidate UnableToValidate] usable=false"
		badCEL  = "[Success Success Success Success Success InvalidAuthenticator] usable=false"
		awayCEL = "[Success Success InvalidDiscoveryProbe UnableToValidate UnableToValidate InvalidAuthenticator] " +
			"usable=false"
		badSpec = "[Success InvalidIssuerURLContainsFragment UnableToValidate UnableToValidate UnableToValidate " +
			"UnableToValidate] usable=false"
		badRoots = "[InvalidTLSConfig Success UnableToValidate UnableToValidate UnableToValidate UnableToValidate] " +
			"usable=false"
	)
	idp := issuer.New(t)
	clock := clocktesting.NewFakeClock(time.Now())
	e := &Evaluator{Clock: clock}
	spec := func(change func(*authenticationv1alpha1.JWTAuthenticatorSpec)) *authenticationv1alpha1.JWTAuthenticatorSpec {
		s := &authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: idp.URL, Audience: "a"}
		if change != nil {
			change(s)
		}
		return s
	}
	plain := spec(nil)
	other := spec(func(s *authenticationv1alpha1.JWTAuthenticatorSpec) { s.Claims.Username = "sub" })
	invalid := spec(func(s *authenticationv1alpha1.JWTAuthenticatorSpec) { s.Claims.UsernameExpression = "claims." })
	fragment := spec(func(s *authenticationv1alpha1.JWTAuthenticatorSpec) { s.Issuer += "#x" })
	good := authenticators.CABundle{PEM: idp.CA, Condition: authenticators.Good(authenticators.TypeTLS, "fine")}
	bad := authenticators.CABundle{Condition: authenticators.Bad(authenticators.TypeTLS, "InvalidTLSConfig", "bad")}
	present := func() { idp.SetAway(false); idp.SetDocument(nil); idp.SetKeySet(nil) }
	gone := func() { idp.SetAway(true) }
	var k *known
	for _, step := range []struct {
		name     string
		wait     time.Duration
		prepare  func()
		spec     *authenticationv1alpha1.JWTAuthenticatorSpec
		bundle   authenticators.CABundle
		want     string
		probes   int
		again    time.Duration
		provider bool // is kept
		jwt      bool // is kept
	}{
		{"is not usable before the issuer ever answered", 0, gone, plain, good, away, 1, time.Second, false, false},
		{
			"is not asked before its time", 500 * time.Millisecond, present, plain, good, away, 0, 500 * time.Millisecond, true,
			true,
		},
		{"waits longer after each failure", time.Second, gone, plain, good, away, 1, 2 * time.Second, true, true},
		{
			"says that the keys cannot be fetched", 2 * time.Second, func() { present(); idp.SetKeySet([]byte("{}")) }, plain,
			good, noKeys, 1, 4 * time.Second, true, true,
		},
		{"says that the keys are nowhere", 4 * time.Second, func() {
			idp.SetDocument(map[string]any{"issuer": idp.URL, "jwks_uri": "http://x"})
		}, plain, good, noURL, 1, 8 * time.Second, true, true},
		{
			"is usable when the issuer answers", 8 * time.Second, present, plain, good, ready, 1, authenticators.ProbeEvery,
			true, true,
		},
		{"is left alone then", time.Minute, gone, plain, good, ready, 0, time.Minute, true, true},
		{
			"stays usable when the issuer is away, and that is said", time.Minute, gone, plain, good, lost, 1, time.Second, true,
			true,
		},
		{"takes up other claims while the issuer is away", 0, gone, other, good, lost, 0, time.Second, true, false},
		{"is not usable with claims that make no sense", 0, gone, invalid, good, awayCEL, 0, time.Second, true, false},
		{
			"says so when the issuer is back", time.Hour, present, invalid, good, badCEL, 1, authenticators.ProbeEvery, true,
			true,
		},
		{"is usable with others", 0, present, plain, good, ready, 0, authenticators.ProbeEvery, true, false},
		{"is nothing with a bad issuer", 0, present, fragment, good, badSpec, 0, authenticators.ProbeEvery, false, false},
		{"is nothing with a bad CA bundle", 0, present, plain, bad, badRoots, 0, authenticators.ProbeEvery, false, false},
		{"is another one again", 0, present, plain, good, ready, 1, authenticators.ProbeEvery, false, false},
		{
			"is another one with the system's roots", 0, present, plain,
			authenticators.CABundle{Condition: good.Condition},
			away, 0, time.Second, false, false,
		},
	} {
		clock.Step(step.wait)
		step.prepare()
		before, _ := idp.Requests()
		found := e.evaluate(t.Context(), step.spec, step.bundle, k)
		if diff := cmp.Diff(step.want, summary(found)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", step.name, diff)
		}
		if after, _ := idp.Requests(); after-before != step.probes {
			t.Errorf("%s: want %d probes, got %d", step.name, step.probes, after-before)
		}
		if again := found.RequeueAfter.Truncate(10 * time.Millisecond); again != step.again {
			t.Errorf("%s: want the next probe after %s, got %s", step.name, step.again, again)
		}
		now, _ := found.Known.(*known)
		if same := k != nil && now != nil && k.provider == now.provider; same != step.provider {
			t.Errorf("%s: same provider: want %v, got %v", step.name, step.provider, same)
		}
		if same := k != nil && now != nil && k.jwt == now.jwt; same != step.jwt {
			t.Errorf("%s: same authenticator: want %v, got %v", step.name, step.jwt, same)
		}
		if k != nil {
			k.Release(found.Known)
		}
		k = now
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	e := &Evaluator{Clock: clocktesting.NewFakeClock(time.Now())}
	bundle := authenticators.CABundle{PEM: idp.CA, Condition: authenticators.Good(authenticators.TypeTLS, "fine")}
	check := func(f authenticators.Evaluation, kind, want string) {
		t.Helper()
		is := func(condition metav1.Condition) bool {
			return condition.Type == kind && strings.HasPrefix(string(condition.Status)+": "+condition.Message, want)
		}
		if !slices.ContainsFunc(f.Conditions, is) {
			t.Errorf("%s: want %q, got %+v", kind, want, f.Conditions)
		}
	}
	spec := &authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: idp.URL, Audience: "a"}
	f := e.evaluate(t.Context(), spec, bundle, nil)
	for kind, want := range map[string]string{
		"IssuerURLValid": "issuer is a valid URL", "DiscoveryURLValid": "discovery performed successfully", "JWKSURLValid": "jwks_uri is a valid URL",
		"JWKSFetchValid": "successfully fetched jwks", "AuthenticatorValid": "authenticator initialized",
	} {
		check(f, kind, string(metav1.ConditionTrue)+": "+want)
	}
	const unusable, usable = `{"kty":"EC","kid":"old","crv":"secp256k1"}`, `{"kty":"OKP","crv":"Ed25519","x":"` +
		"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" + `"}`
	idp.SetKeySet([]byte(`{"keys":[` + unusable + "," + usable + `]}`))
	check(e.evaluate(t.Context(), spec, bundle, nil), "JWKSFetchValid",
		`True: successfully fetched jwks; not used: key "old": its curve (crv) is "secp256k1"`)
	idp.SetKeySet([]byte(`{"keys":[` + unusable + `]}`))
	check(e.evaluate(t.Context(), spec, bundle, nil), "JWKSFetchValid",
		`False: could not fetch keys: none of the issuer's keys can be used: key "old": its curve (crv) is "secp256k1"`)
	idp.SetKeySet([]byte("{}"))
	f = e.evaluate(t.Context(), spec, bundle, nil)
	check(f, "JWKSFetchValid", "False: could not fetch keys: ")
	check(f, "AuthenticatorValid", "Unknown: unable to validate; see other conditions for details")
	idp.SetAway(true)
	spec.Claims.UsernameExpression = "claims."
	f = e.evaluate(t.Context(), spec, bundle, nil)
	check(f, "DiscoveryURLValid", "False: could not perform oidc discovery on provider issuer: ")
	check(f, "AuthenticatorValid",
		"False: could not initialize jwt authenticator: claims.usernameExpression: Invalid value: ")
}

// TestStatusSaysLittleOfWhatIsNoIssuer probes addresses that are not issuers. A user who can write an authenticator
// must not learn from its status what is there.
func TestStatusSaysLittleOfWhatIsNoIssuer(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	answers := func(code int, body string) *httptest.Server {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(server.Close)
		return server
	}
	closed := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Do(t, closed.Close())
	secret := answers(http.StatusUnauthorized, "secret")
	bundle := authenticators.CABundle{
		// httptest uses one certificate for all servers.
		PEM:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secret.Certificate().Raw}),
		Condition: authenticators.Good(authenticators.TypeTLS, "fine"),
	}
	texts := map[string][]string{}
	for what, issuer := range map[string]string{
		"nothing": "https://" + closed.Addr().String(), "no TLS": "https://" + plain.Listener.Addr().String(),
		"refusal": secret.URL, "error": answers(http.StatusInternalServerError, "x").URL,
		"no JSON": answers(http.StatusOK, "<html>").URL, "a redirect": answers(http.StatusFound, "").URL,
	} {
		found := (&Evaluator{Clock: clock.RealClock{}}).evaluate(t.Context(),
			&authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: issuer, Audience: "a"}, bundle, nil)
		for _, condition := range found.Conditions {
			if condition.Type == typeDiscovery {
				texts[condition.Message] = append(texts[condition.Message], what)
			}
		}
	}
	if len(texts) != 1 {
		t.Errorf("the status tells them apart: %q", texts)
	}
}
