package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const audience = "this-cluster"

// trust creates a JWTAuthenticator until the end of the test, and waits until it is ready.
func (w *world) trust(t *testing.T, name string, idp *issuer.Issuer, audience string) {
	t.Helper()
	object := &authenticationv1alpha1.JWTAuthenticator{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: authenticationv1alpha1.JWTAuthenticatorSpec{
			Issuer: idp.URL, Audience: audience,
			TLS: &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: base64.StdEncoding.EncodeToString(idp.CA)},
		},
	}
	w.create(t, object)
	w.waitUntilReady(t, 20*time.Second, object)
}

// waitUntilReady waits until an authenticator is ready.
func (w *world) waitUntilReady(t *testing.T, timeout time.Duration, authenticator client.Object) {
	t.Helper()
	phase, conditions := authenticatorStatus(authenticator)
	testkit.Eventually(t, timeout, func() error {
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(authenticator), authenticator); err != nil {
			return err
		}
		if *phase != authenticationv1alpha1.PhaseReady {
			return fmt.Errorf("the phase is %q: %v", *phase, *conditions)
		}
		return nil
	})
}

// authenticatorStatus returns the phase and the conditions in an authenticator's status.
func authenticatorStatus(object client.Object) (*authenticationv1alpha1.AuthenticatorPhase, *[]metav1.Condition) {
	switch object := object.(type) {
	case *authenticationv1alpha1.JWTAuthenticator:
		return &object.Status.Phase, &object.Status.Conditions
	case *authenticationv1alpha1.WebhookAuthenticator:
		return &object.Status.Phase, &object.Status.Conditions
	}
	return nil, nil
}

// exchange sends a TokenCredentialRequest through the API server and returns the message of the response, "" if it has
// a certificate.
func (w *world) exchange(t *testing.T, kind, name, token string) string {
	t.Helper()
	sent := w.sendLogin(t, kind, name, token)
	if sent.code != 0 {
		t.Fatalf("kubectl ended with %d: %s", sent.code, sent.errOut)
	}
	out := sent.out
	var answer struct {
		Status struct {
			Message    string
			Credential *struct{ ClientCertificateData string }
		}
	}
	must.Do(t, json.Unmarshal([]byte(out), &answer))
	if (answer.Status.Credential == nil) == (answer.Status.Message == "") {
		t.Errorf("got %s", out)
	}
	return answer.Status.Message
}

// sendLogin creates a TokenCredentialRequest with kubectl.
func (w *world) sendLogin(t *testing.T, kind, name, token string) result {
	t.Helper()
	text := must.Get(json.Marshal(map[string]any{
		"apiVersion": "login.concierge.pinniped.dev/v1alpha1", "kind": "TokenCredentialRequest",
		"spec": map[string]any{
			"token":         token,
			"authenticator": map[string]any{"apiGroup": "authentication.concierge.pinniped.dev", "kind": kind, "name": name},
		},
	}))(t)
	path := fileWith(t, "request.json", text)
	return w.kubectlAs(t, w.Cluster.AdminKubeconfig(), "create", "--output=json", "--filename="+path)
}

func (w *world) acceptTokensOf(t *testing.T, accepted ...configv1alpha1.BearerTokenAuthenticator) {
	t.Helper()
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.BearerTokens = &configv1alpha1.BearerTokensSpec{Authenticators: accepted}
	})
}

// TestTokensOfAnIssuer logs in with tokens of an OpenID Connect issuer: in exchange for a certificate, and as bearer
// tokens at the proxy.
func TestTokensOfAnIssuer(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	idp := issuer.New(t)
	w.trust(t, "ci", idp, audience)
	good := idp.Claims(audience, map[string]any{"jti": "42"})

	const failed = "authentication failed"
	// A replica may lag behind the leader, and each gets some of the requests.
	testkit.Eventually(t, 20*time.Second, func() error {
		for range 4 {
			if got := w.exchange(t, "JWTAuthenticator", "ci", idp.Token(t, good)); got != "" {
				return fmt.Errorf("a good token: %s", got)
			}
		}
		return nil
	})
	for name, claims := range map[string]map[string]any{
		"the masters":      {"groups": []string{"system:masters"}},
		"an administrator": {"username": "system:admin"},
		"another audience": {"aud": "another-cluster"},
		"expired":          {"exp": time.Now().Add(-time.Minute).Unix()},
		"too many groups":  {"groups": manyGroups(4500)},
	} {
		if got := w.exchange(t, "JWTAuthenticator", "ci", idp.Token(t, idp.Claims(audience, claims))); got != failed {
			t.Errorf("%s: got %q", name, got)
		}
	}

	huge := idp.Token(t, idp.Claims(audience, map[string]any{"groups": manyGroups(20000)}))
	if got := w.sendLogin(t, "JWTAuthenticator", "ci", huge); got.code == 0 ||
		!strings.Contains(got.errOut, "(RequestEntityTooLarge)") {
		t.Errorf("a token of %d bytes: got %+v", len(huge), got)
	}

	// As bearer tokens at the proxy: only when enabled.
	tokenFile := filepath.Join(t.TempDir(), "token")
	present := func(token string) {
		t.Helper()
		must.Do(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	}
	kubeconfig := filepath.Join(t.TempDir(), "ci.kubeconfig")
	command := []string{"get", "kubeconfig", "--login=bearer", "--token-file=" + tokenFile, "--output=" + kubeconfig}
	w.asAdmin(t, command...).fails(t, "accepts no tokens from authenticators")
	w.acceptTokensOf(t, configv1alpha1.BearerTokenAuthenticator{Kind: configv1alpha1.AuthenticatorKindJWT, Name: "ci"})
	w.asAdmin(t, command...).ok(t)
	whoAmI := func(agent *devinstall.Agent) result {
		return w.kubectlAs(t, kubeconfig, "--server=https://"+agent.ProxyAddress(),
			"--tls-server-name=localhost", "auth", "whoami", "--output=json")
	}
	present(idp.Token(t, good))
	w.everyReplica(t, 10*time.Second, func(agent *devinstall.Agent) error {
		got := whoAmI(agent)
		for _, want := range []string{`"username": "ann"`, `"dev"`, `"JTI=42"`, `"JWTAuthenticator/ci"`} {
			if !strings.Contains(got.out, want) {
				return fmt.Errorf("no %s in %s%s", want, got.out, got.errOut)
			}
		}
		return nil
	})
	for name, token := range map[string]string{
		"the masters":            idp.Token(t, idp.Claims(audience, map[string]any{"groups": []string{"system:masters"}})),
		"another audience":       idp.Token(t, idp.Claims("another-cluster", nil)),
		"expired":                idp.Token(t, idp.Claims(audience, map[string]any{"exp": 1})),
		"a key of somebody":      issuer.New(t).Token(t, good),
		"no signature":           issuer.Forge(t, map[string]any{"alg": "none"}, good, func(string) []byte { return nil }),
		"a webhook's, not named": "pinny:password123",
	} {
		present(token)
		if got := whoAmI(w.agents[0]); got.code == 0 ||
			!strings.Contains(got.errOut, "Unauthorized") && !strings.Contains(got.errOut, "must be logged in") {
			t.Errorf("%s: %d %s%s", name, got.code, got.out, got.errOut)
		}
	}

	// The issuer rotates its keys.
	idp.Rotate(t)
	present(idp.Token(t, good))
	w.everyReplica(t, 15*time.Second, func(agent *devinstall.Agent) error {
		if got := whoAmI(agent); got.code != 0 {
			return fmt.Errorf("with a new key: %s", got.errOut)
		}
		return nil
	})
	// The cluster's own credentials keep working.
	account := must.Get(w.Cluster.ServiceAccountConfig(
		t.Context(),
		devinstall.Namespace,
		"pinniped-concierge-impersonation-proxy",
	))(t)
	present(account.BearerToken)
	if got := whoAmI(w.agents[0]); !strings.Contains(got.out, "system:serviceaccount:") {
		t.Errorf("a service account's token: %d %s", got.code, got.errOut)
	}

	// Without authenticators in the spec, the token is rejected within seconds.
	present(idp.Token(t, good))
	w.acceptTokensOf(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		if got := whoAmI(w.agents[0]); got.code == 0 {
			return fmt.Errorf("it still works: %s", got.out)
		}
		return nil
	})
}

// TestTokensOfAWebhook presents a webhook's token as a bearer token to the proxy, and revokes it.
func TestTokensOfAWebhook(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "corporate-cert", pairData(w.issue(t, "localhost")))
	hash := must.Get(bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost))(t)
	must.Do(t, w.createUser(t.Context(), "temporary", string(hash), "contractors"))
	user := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: devinstall.LocalUserNamespace, Name: "temporary"}}
	w.removeAfterwards(t, user)
	webhook := configv1alpha1.BearerTokenAuthenticator{
		Kind: configv1alpha1.AuthenticatorKindWebhook, Name: "local-user-authenticator",
	}
	sameName, foreign := webhook, webhook
	sameName.Kind = configv1alpha1.AuthenticatorKindJWT
	foreign.Kind, foreign.Name, foreign.UnknownIssuers = configv1alpha1.AuthenticatorKindJWT, "ci", true
	current := w.issuer(t)
	refused := current.DeepCopy()
	refused.Spec.ImpersonationProxy.BearerTokens = &configv1alpha1.BearerTokensSpec{
		Authenticators: []configv1alpha1.BearerTokenAuthenticator{foreign},
	}
	if err := w.admin.Patch(t.Context(), refused, client.MergeFrom(current)); !apierrors.IsInvalid(err) {
		t.Errorf("want a JWTAuthenticator with unknownIssuers to be refused, got %v", err)
	}
	w.acceptTokensOf(t, sameName, webhook)
	tokenFile := fileWith(t, "token", []byte("temporary:secret"))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	w.asAdmin(t, "get", "kubeconfig", "--login=bearer", "--token-file="+tokenFile,
		"--output="+kubeconfig).ok(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		got := w.kubectlAs(t, kubeconfig, "auth", "whoami", "--output=json")
		for _, want := range []string{
			`"username": "temporary"`, `"contractors"`, `"WebhookAuthenticator/local-user-authenticator"`,
		} {
			if !strings.Contains(got.out, want) {
				return fmt.Errorf("no %s in %s%s", want, got.out, got.errOut)
			}
		}
		return nil
	})
	testkit.Eventually(t, 10*time.Second, func() error {
		if message := w.strategy(t).Message; !strings.Contains(
			message,
			`authenticators that do not exist: JWTAuthenticator "local-user-authenticator"`,
		) {
			return fmt.Errorf("the message is %q", message)
		}
		return nil
	})
	must.Do(t, w.admin.Delete(t.Context(), user))
	testkit.Eventually(t, 6*time.Second, func() error {
		if got := w.kubectlAs(t, kubeconfig, "auth", "whoami"); got.code == 0 {
			return fmt.Errorf("the token still works: %s", got.out)
		}
		return nil
	})
}

func manyGroups(number int) []string {
	groups := make([]string, number)
	for i := range groups {
		groups[i] = fmt.Sprintf("g%05d", i)
	}
	return groups
}
