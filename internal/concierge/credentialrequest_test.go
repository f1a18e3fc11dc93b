package concierge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/authenticator"
	"github.com/pinniped-toolkit/pinniped/internal/signer"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	loginv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/login/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

var testReference = corev1.TypedLocalObjectReference{
	APIGroup: ptr.To("authentication.concierge.pinniped.dev"), Kind: "WebhookAuthenticator", Name: "webhook",
}

// vouching is an authenticator that returns the same result for every token, and records the tokens.
type vouching struct {
	user  user.Info
	ok    bool
	err   error
	asked []string
}

func (v *vouching) AuthenticateToken(
	_ context.Context, reference corev1.TypedLocalObjectReference, token string,
) (user.Info, bool, error) {
	v.asked = append(v.asked, reference.Name+"/"+token)
	return v.user, v.ok, v.err
}

// newLogins returns the storage of TokenCredentialRequests, and its audit log.
func newLogins(by TokenAuthenticator, signer *issuing, showNames bool) (*credentialRequests, *bytes.Buffer) {
	log := &bytes.Buffer{}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log)))
	return newCredentialRequests(by, issuers{agent: signer}, 0, auditLog{logger: logger, showNames: showNames}), log
}

// issuing records its requests.
type issuing struct {
	err    error
	issued []any
}

func (i *issuing) IssueClientCertificate(
	username string, groups, units []string, ttl time.Duration,
) (*certs.KeyPair, error) {
	i.issued = append(i.issued, username, groups, units, ttl)
	pair := &certs.KeyPair{
		CertPEM:  []byte("the certificate"),
		KeyPEM:   []byte("the key"),
		NotAfter: time.Unix(1234567890, 0),
	}
	return pair, i.err
}

func TestTokenCredentialRequest(t *testing.T) {
	t.Parallel()
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{"g2", "g1"}, Extra: map[string][]string{
		"example.com/b": {"2", "1"}, "example.com/a": {"3"}, "authentication.kubernetes.io/credential-id": {"X"},
	}}
	credential := &loginv1alpha1.TokenCredentialRequest{Status: loginv1alpha1.TokenCredentialRequestStatus{
		Credential: &loginv1alpha1.ClusterCredential{
			ExpirationTimestamp:   metav1.NewTime(time.Unix(1234567890, 0).UTC()),
			ClientCertificateData: "the certificate", ClientKeyData: "the key",
		},
	}}
	failed := &loginv1alpha1.TokenCredentialRequest{
		Status: loginv1alpha1.TokenCredentialRequestStatus{Message: ptr.To("authentication failed")},
	}
	issued := []any{
		"ann",
		[]string{"g2", "g1"},
		[]string{"authentication.kubernetes.io/credential-id=X", "example.com/a=3", "example.com/b=1", "example.com/b=2"},
		5 * time.Minute,
	}
	allowed := []string{"TokenCredentialRequest Token Received", "TokenCredentialRequest Authenticated User", "expires"}
	for _, test := range []struct {
		name   string
		result vouching
		signer issuing
		want   *loginv1alpha1.TokenCredentialRequest
		log    []string
		issued []any
	}{
		{
			name: "gives a certificate with all that is known of the user", result: vouching{user: ann, ok: true},
			want: credential, log: allowed,
			issued: issued,
		},
		{
			name: "gives one to a user without groups", want: credential, log: allowed,
			result: vouching{user: &user.DefaultInfo{Name: "ann"}, ok: true},
			issued: []any{"ann", []string(nil), []string(nil), 5 * time.Minute},
		},
		{name: "fails for a wrong token", want: failed, log: []string{"Authentication Failed"}},
		{name: "fails when nobody is vouched for", result: vouching{ok: true}, want: failed, log: []string{"Authentication " +
			"Failed"}},
		{
			name: "fails when the authenticator does", result: vouching{err: errors.New("webhook is down")}, want: failed,
			log: []string{"Unexpected Error", "webhook is down"},
		},
		{
			name:   "ignores a user that comes with an error",
			result: vouching{user: ann, ok: true, err: errors.New("half a response")},
			want:   failed, log: []string{"Unexpected Error", "half a response"},
		},
		{
			name: "fails without a signer", result: vouching{user: ann, ok: true}, signer: issuing{err: errors.New("no CA")},
			want: failed, log: []string{"Unexpected Error", "no CA"},
			issued: issued,
		},
		{
			name: "fails for a user that cannot be", result: vouching{user: &user.DefaultInfo{Name: "ann", UID: "1"}, ok: true},
			want: failed, log: []string{"Unsupported UserInfo", "UIDs are not supported"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			storage, log := newLogins(&test.result, &test.signer, false)
			var ended loginResults
			storage.ended = &ended
			got := must.Get(storage.Create(t.Context(), &loginv1alpha1.TokenCredentialRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "given"},
				Spec:       loginv1alpha1.TokenCredentialRequestSpec{Token: "very-secret", Authenticator: testReference},
			}, nil, &metav1.CreateOptions{}))(t)
			same.Values(t, "", runtime.Object(test.want), got)
			wantEnded := loginDone
			switch {
			case test.want == failed && strings.Contains(strings.Join(test.log, " "), "Unexpected Error"):
				wantEnded = loginFailed
			case test.want == failed:
				wantEnded = loginRefused
			}
			for how := range ended {
				if got := ended[how].Load(); got != 1 && how == int(wantEnded) || got != 0 && how != int(wantEnded) {
					t.Errorf("counted %d logins with result %d, and it ended with %d", got, how, wantEnded)
				}
			}
			same.Values(t, "asked", []string{"webhook/very-secret"}, test.result.asked)
			same.Values(t, "issued", test.issued, test.signer.issued)
			for _, want := range append(test.log, "tokenID", tokenID("very-secret"), "auditEvent") {
				if !strings.Contains(log.String(), want) {
					t.Errorf("want %q in the log:\n%s", want, log.String())
				}
			}
			for _, never := range []string{"very-secret", "ann", "g1", "the key"} {
				if strings.Contains(log.String(), never) {
					t.Errorf("%q is in the log:\n%s", never, log.String())
				}
			}
		})
	}
}

func TestTokenCredentialRequestRefusals(t *testing.T) {
	t.Parallel()
	whole := func() *loginv1alpha1.TokenCredentialRequest {
		return &loginv1alpha1.TokenCredentialRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "given"},
			Spec:       loginv1alpha1.TokenCredentialRequestSpec{Token: "very-secret", Authenticator: testReference},
		}
	}
	var order []string
	for _, test := range []struct {
		name     string
		object   runtime.Object
		ctx      context.Context //nolint:containedctx // an input of the test
		options  *metav1.CreateOptions
		validate func(context.Context, runtime.Object) error
		code     int32
		message  string
	}{
		{name: "refuses another kind", object: &corev1.Pod{}, code: 400, message: "not a TokenCredentialRequest"},
		{
			name: "refuses an empty token before all else", object: &loginv1alpha1.TokenCredentialRequest{}, options: &metav1.CreateOptions{DryRun: []string{"All"}},
			code: 422, message: `.login.concierge.pinniped.dev "" is invalid: spec.token.value: Required value: token must be supplied`,
		},
		{
			name: "refuses a dry run", object: whole(), options: &metav1.CreateOptions{DryRun: []string{"All"}}, ctx: genericapirequest.WithNamespace(t.Context(), "ns"),
			code: 422, message: `.login.concierge.pinniped.dev "given" is invalid: dryRun: Unsupported value: ["All"]`,
		},
		{
			name: "refuses a strategy that it does not know", object: &loginv1alpha1.TokenCredentialRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "given"}, Spec: loginv1alpha1.TokenCredentialRequestSpec{
					Token: "very-secret", Authenticator: testReference, Strategy: "ServiceAccountTokens",
				},
			},
			code: 422, message: `"given" is invalid: spec.strategy: Unsupported value: "ServiceAccountTokens": supported values: ` +
				`"KubeClusterSigningCertificate", "ImpersonationProxy", "ServiceAccountToken"`,
		},
		{
			name: "refuses a namespace", object: whole(), ctx: genericapirequest.WithNamespace(t.Context(), "ns"),
			code: 400, message: "namespace is not allowed on TokenCredentialRequest: ns",
		},
		{
			name: "refuses what admission refuses, which does not see the token", object: whole(),
			validate: func(_ context.Context, object runtime.Object) error {
				order = append(order, "validated")
				if token := object.(*loginv1alpha1.TokenCredentialRequest).Spec.Token; token != "" {
					t.Errorf("admission sees the token %q", token)
				}
				object.(*loginv1alpha1.TokenCredentialRequest).Spec.Authenticator.Name = "changed"
				return apierrors.NewForbidden(loginResource, "given", errors.New("by policy"))
			},
			code: 403, message: "by policy",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			authenticator := &vouching{}
			storage := newCredentialRequests(authenticator, issuers{agent: &issuing{}}, 0, auditLog{})
			ctx := test.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			_, err := storage.Create(ctx, test.object, test.validate, test.options)
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				t.Fatalf("want a status, got %v", err)
			}
			if status.Status().Code != test.code || !strings.Contains(status.Status().Message, test.message) {
				t.Errorf("want %d and %q, got %d and %q", test.code, test.message, status.Status().Code, status.Status().Message)
			}
			if strings.Contains(err.Error(), "very-secret") || len(authenticator.asked) > 0 {
				t.Errorf("the token went further: %v, %v", err, authenticator.asked)
			}
		})
	}
	if !slices.Equal(order, []string{"validated"}) {
		t.Errorf("want one validation, got %v", order)
	}
}

func TestAuditLogShowsNamesIfConfigured(t *testing.T) {
	t.Parallel()
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{"g1"}}
	storage, log := newLogins(&vouching{user: ann, ok: true}, &issuing{}, true)
	must.Get(storage.Create(t.Context(), &loginv1alpha1.TokenCredentialRequest{
		Spec: loginv1alpha1.TokenCredentialRequestSpec{Token: "very-secret", Authenticator: testReference},
	}, nil, nil))(t)
	if text := log.String(); !strings.Contains(text, `username="ann"`) || !strings.Contains(text, "g1") ||
		strings.Contains(text, "very-secret") {
		t.Errorf("got:\n%s", text)
	}
}

// said records warnings.
type said []string

func (s *said) AddWarning(_, text string) { *s = append(*s, text) }

// TestUsersLearnWhyALoginFailed checks that the message is always the same, because clients rely on it, and that a
// warning has the reason, without secrets.
func TestUsersLearnWhyALoginFailed(t *testing.T) {
	t.Parallel()
	idp := issuer.New(t)
	options := authenticator.ProviderOptions{Issuer: idp.URL, Roots: idp.Roots(), Clock: clock.RealClock{}}
	provider := authenticator.NewProvider(options)
	provider.UseKeysURL(must.Get(provider.Discover(t.Context()))(t))
	must.Do(t, provider.FetchKeys(t.Context()))
	spec := &authenticationv1alpha1.JWTAuthenticatorSpec{Issuer: idp.URL, Audience: "this"}
	jwt := must.Get(authenticator.NewJWT(spec, provider))(t)
	t.Cleanup(jwt.Close)
	cache := authenticator.NewCache("g")
	cache.Put("JWTAuthenticator", "jwt", jwt)
	cache.Suspend("JWTAuthenticator", "suspended", "the password of the proxy is swordfish")
	cache.Put("WebhookAuthenticator", "away", broken{})
	token := func(claims map[string]any) string { return idp.Token(t, idp.Claims("this", claims)) }
	const aJWT, aWebhook = "JWTAuthenticator", "WebhookAuthenticator"
	for _, test := range []struct{ name, kind, token, warning, code string }{
		{"none", aJWT, "x", `there is no authenticator "none" of kind "JWTAuthenticator"`, ""},
		{"suspended", aJWT, "x", `authenticator "suspended" of kind "JWTAuthenticator" is not ready`, "swordfish"},
		{
			"away", aWebhook, "x", `authenticator "away" of kind "WebhookAuthenticator" does not respond`,
			"connection refused by 10.0.0.1",
		},
		{"jwt", aJWT, "x", "this is not a JSON Web Token", "NotAToken"},
		{"jwt", aJWT, token(map[string]any{"exp": 1700000000}), "the token expired at 2023-11-14T22:13:20Z", "Expired"},
		{"jwt", aJWT, idp.Token(t, idp.Claims("that", nil)), `the token is for another audience, "that"`, "WrongAudience"},
		{
			"jwt", aJWT, issuer.New(t).Token(t, idp.Claims("this", nil)), "the authenticator rejects the token",
			"no key of the issuer verifies",
		},
		{
			"jwt", aJWT, token(map[string]any{"username": "system:admin"}),
			`the username begins with "system:", which is reserved for Kubernetes`, "reserved for Kubernetes",
		},
		{
			"jwt", aJWT, token(map[string]any{"groups": []string{"dev", ""}}),
			"an invalid user: group number 2 is empty", "empty",
		},
		{
			"jwt", aJWT, token(map[string]any{"username": "ann\u00a0"}),
			"the username contains a space other than U+0020", "other than U+0020",
		},
		{"jwt", aJWT, token(map[string]any{"username": ""}), "the token names no user", "no user"},
	} {
		var warnings said
		storage, log := newLogins(cache, &issuing{}, false)
		request := &loginv1alpha1.TokenCredentialRequest{Spec: loginv1alpha1.TokenCredentialRequestSpec{
			Token:         test.token,
			Authenticator: corev1.TypedLocalObjectReference{APIGroup: ptr.To("g"), Kind: test.kind, Name: test.name},
		}}
		ctx := warning.WithWarningRecorder(t.Context(), &warnings)
		got := must.Get(storage.Create(ctx, request, nil, nil))(t)
		if message := got.(*loginv1alpha1.TokenCredentialRequest).Status.Message; message == nil ||
			*message != "authentication failed" {
			t.Errorf("got message %v", message)
		}
		if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "login failed: ") ||
			!strings.Contains(warnings[0], test.warning) ||
			strings.Contains(warnings[0], "swordfish") || strings.Contains(warnings[0], "10.0.0.1") {
			t.Errorf("want a warning with %q, got %q", test.warning, warnings)
		}
		if !strings.Contains(log.String(), test.code) || len(test.token) > 1 && strings.Contains(log.String(), test.token) {
			t.Errorf("want %q in the log:\n%s", test.code, log.String())
		}
	}
}

// broken is an authenticator that does not respond.
type broken struct{}

func (broken) AuthenticateToken(context.Context, string) (user.Info, bool, error) {
	return nil, false, errors.New("connection refused by 10.0.0.1")
}

func TestCredentialLifetime(t *testing.T) {
	t.Parallel()
	signer := &issuing{}
	storage := newCredentialRequests(&vouching{user: &user.DefaultInfo{Name: "ann"}, ok: true}, issuers{agent: signer},
		12*time.Hour, auditLog{})
	must.Get(storage.Create(t.Context(), &loginv1alpha1.TokenCredentialRequest{
		Spec: loginv1alpha1.TokenCredentialRequestSpec{Token: "t", Authenticator: testReference},
	}, nil, nil))(t)
	same.Values(t, "", []any{"ann", []string(nil), []string(nil), 12 * time.Hour}, signer.issued)
}

// TestCertificatesFitTheHandshake has users with so many groups that the proxy would end the handshake with their
// certificate. Their login fails with a reason.
func TestCertificatesFitTheHandshake(t *testing.T) {
	t.Parallel()
	ca := must.Get(certs.NewCA("CA", time.Now(), time.Hour))(t)
	agent := &signer.Signer{}
	agent.Load(ca, nil)
	for count, fits := range map[int]bool{350: true, 1000: false} {
		groups := make([]string, 0, count)
		for i := range count {
			groups = append(groups, fmt.Sprintf("%060d", i))
		}
		vouches := &vouching{user: &user.DefaultInfo{Name: "ann", Groups: groups}, ok: true}
		var warnings said
		got := must.Get(newCredentialRequests(vouches, issuers{agent: agent}, 0, auditLog{}).Create(
			warning.WithWarningRecorder(t.Context(), &warnings),
			&loginv1alpha1.TokenCredentialRequest{
				Spec: loginv1alpha1.TokenCredentialRequestSpec{Token: "t", Authenticator: testReference},
			}, nil, nil))(t)
		if issued := got.(*loginv1alpha1.TokenCredentialRequest).Status.Credential != nil; issued != fits {
			t.Errorf("%d groups: issued %v, %v", count, issued, warnings)
		}
		if !fits && (len(warnings) != 1 || !strings.Contains(warnings[0], "the impersonation proxy accepts at most 28672")) {
			t.Errorf("%d groups: %q", count, warnings)
		}
	}
}
