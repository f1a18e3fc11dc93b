package discovery_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

const suffix = "walrus.example.com"

func connect(t *testing.T, objects ...any) (*discoverytest.Server, *discovery.Client) {
	t.Helper()
	server, err := discoverytest.New(suffix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	for _, object := range objects {
		if err := server.Put(object); err != nil {
			t.Fatal(err)
		}
	}
	client, err := discovery.Connect(server.Config(), suffix)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

func TestCredentialIssuer(t *testing.T) {
	t.Parallel()
	one, two := discoverytest.Issuer(suffix, "one"), discoverytest.Issuer(suffix, "two")
	for _, test := range []struct {
		name    string
		objects []any
		ask     string
		prepare func(*discoverytest.Server)
		want    string
		is      error
		says    string
	}{
		{name: "takes the only one", objects: []any{one}, want: "one"},
		{name: "takes the one that is asked for", objects: []any{one, two}, ask: "two", want: "two"},
		{name: "finds none", is: discovery.ErrNoCredentialIssuer, says: "no CredentialIssuer in the cluster"},
		{name: "names the candidates when there are several", objects: []any{one, two}, says: "several CredentialIssuers " +
			"in the cluster: one, two"},
		{
			name: "misses the one that is asked for", objects: []any{one}, ask: "other", is: discovery.ErrNotFound,
			says: `"other": not found`,
		},
		{
			name: "says that the agent is not installed", prepare: (*discoverytest.Server).Uninstall,
			is: discovery.ErrNotInstalled, says: "config.concierge.walrus.example.com",
		},
		{
			name: "says that the agent is not installed, asked for a name", ask: "one", prepare: (*discoverytest.Server).Uninstall,
			is: discovery.ErrNotInstalled, says: "the pinniped agent is not installed",
		},
		{
			name: "says which verb on what is forbidden", objects: []any{one},
			prepare: func(s *discoverytest.Server) { s.Forbid("list", "credentialissuers") },
			is:      discovery.ErrForbidden, says: "not permitted to list credentialissuers.config.concierge.walrus.example.com",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, client := connect(t, test.objects...)
			if test.prepare != nil {
				test.prepare(server)
			}
			issuer, err := client.CredentialIssuer(t.Context(), test.ask)
			if test.want != "" {
				if err != nil || issuer.Name != test.want || issuer.Kind != "CredentialIssuer" {
					t.Fatalf("want CredentialIssuer %q, got %+v, %v", test.want, issuer, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("want an error that says %q and is %v, got %v", test.says, test.is, err)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "https://" + listener.Addr().String()
	_ = listener.Close() // no server listens there now
	client, err := discovery.Connect(&rest.Config{Host: address}, suffix)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CredentialIssuer(t.Context(), "")
	if !errors.Is(err, discovery.ErrUnreachable) || !strings.Contains(err.Error(), address) {
		t.Errorf("want ErrUnreachable that names %q, got %v", address, err)
	}
}

func TestSilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	client, err := discovery.Connect(&rest.Config{Host: "https://" + listener.Addr().String()}, suffix)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.CredentialIssuer(ctx, "")
	if !errors.Is(err, discovery.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want ErrUnreachable and DeadlineExceeded, got %v", err)
	}
}

func TestConnectRefusesBadSuffix(t *testing.T) {
	t.Parallel()
	if _, err := discovery.Connect(
		&rest.Config{},
		"nodots",
	); err == nil ||
		!strings.Contains(err.Error(), "invalid API group suffix") {
		t.Errorf("want an invalid API group suffix, got %v", err)
	}
}

func TestAuthenticator(t *testing.T) {
	t.Parallel()
	webhook, other := discoverytest.Webhook(suffix, "local"), discoverytest.Webhook(suffix, "other")
	jwt, sameName := discoverytest.JWT(
		suffix,
		"corp",
		"https://issuer.example.com",
		"aud",
	), discoverytest.JWT(
		suffix,
		"local",
		"https://issuer.example.com",
		"aud",
	)
	for _, test := range []struct {
		name    string
		objects []any
		kind    discovery.AuthenticatorType
		ask     string
		want    string
		is      error
		says    string
	}{
		{name: "takes the only one", objects: []any{webhook}, want: "webhook/local"},
		{name: "takes the only JWTAuthenticator", objects: []any{jwt}, want: "jwt/corp"},
		{
			name: "takes type and name", objects: []any{webhook, other, sameName}, kind: discovery.JWT, ask: "local",
			want: "jwt/local",
		},
		{
			name: "needs only the type where that is enough", objects: []any{webhook, jwt}, kind: discovery.JWT,
			want: "jwt/corp",
		},
		{
			name: "needs only the name where that is enough", objects: []any{webhook, other, jwt}, ask: "corp", want: "jwt/corp",
		},
		{
			name: "refuses a name that both types have", objects: []any{webhook, sameName}, ask: "local",
			says: "several authenticators in the cluster: webhook/local, jwt/local",
		},
		{
			name: "refuses a type with several", objects: []any{webhook, other}, kind: discovery.Webhook,
			says: "webhook/local, webhook/other",
		},
		{name: "refuses a choice", objects: []any{webhook, jwt}, says: "webhook/local, jwt/corp"},
		{name: "finds none", is: discovery.ErrNotFound, says: "no authenticator in the cluster"},
		{
			name: "finds none of the type", objects: []any{webhook}, kind: discovery.JWT, is: discovery.ErrNotFound,
			says: "no JWTAuthenticator in the cluster",
		},
		{
			name: "finds none of the name", objects: []any{webhook}, ask: "corp", is: discovery.ErrNotFound,
			says: `reading authenticator "corp": not found`,
		},
		{
			name: "finds none of type and name", objects: []any{webhook}, kind: discovery.JWT, ask: "local",
			is: discovery.ErrNotFound, says: `"local": not found`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, client := connect(t, test.objects...)
			found, err := client.Authenticator(t.Context(), test.kind, test.ask)
			if test.want != "" {
				if err != nil {
					t.Fatal(err)
				}
				if got := string(found.Type) + "/" + found.Name; got != test.want {
					t.Fatalf("want %s, got %s", test.want, got)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("want an error that says %q and is %v, got %v", test.says, test.is, err)
			}
		})
	}
}

func TestAuthenticatorCABundle(t *testing.T) {
	t.Parallel()
	apiService := map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1alpha1.login.concierge." + suffix},
		"spec":     map[string]any{"service": map[string]any{"namespace": "agent-ns", "name": "api"}},
	}
	secret := &corev1.Secret{
		TypeMeta: metav1.TypeMeta{
			APIVersion: "v1",
			Kind:       "Secret",
		},
		ObjectMeta: metav1.ObjectMeta{Namespace: "agent-ns", Name: "ca"},
		Data:       map[string][]byte{"ca.crt": []byte("from secret"), "empty": {}},
	}
	configMap := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{
			APIVersion: "v1",
			Kind:       "ConfigMap",
		},
		ObjectMeta: metav1.ObjectMeta{Namespace: "agent-ns", Name: "ca"},
		Data:       map[string]string{"ca.crt": "from config map"},
	}
	source := func(kind authenticationv1alpha1.CertificateAuthorityDataSourceKind, name, key string) *authenticationv1alpha1.TLSSpec {
		return &authenticationv1alpha1.TLSSpec{
			CertificateAuthorityDataSource: &authenticationv1alpha1.CertificateAuthorityDataSourceSpec{
				Kind: kind,
				Name: name,
				Key:  key,
			},
		}
	}
	for _, test := range []struct {
		name string
		tls  *authenticationv1alpha1.TLSSpec
		want string
		says string
	}{
		{name: "is empty without tls"},
		{
			name: "is inline",
			tls:  &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: base64.StdEncoding.EncodeToString([]byte("inline"))},
			want: "inline",
		},
		{
			name: "is not base64", tls: &authenticationv1alpha1.TLSSpec{CertificateAuthorityData: "%"},
			says: "decoding spec.tls.certificateAuthorityData",
		},
		{name: "is in a Secret", tls: source("Secret", "ca", "ca.crt"), want: "from secret"},
		{name: "is in a ConfigMap", tls: source("ConfigMap", "ca", "ca.crt"), want: "from config map"},
		{
			name: "misses the key", tls: source("Secret", "ca", "other"),
			says: `key "other" of Secret "agent-ns/ca" does not exist`,
		},
		{
			name: "has an empty key", tls: source("Secret", "ca", "empty"), says: `key "empty" of Secret "agent-ns/ca" is empty`,
		},
		{
			name: "misses the object", tls: source("ConfigMap", "nope", "ca.crt"),
			says: `reading configmaps "nope" in namespace "agent-ns": not found`,
		},
		{name: "knows no other kind", tls: source("Pod", "ca", "ca.crt"), says: `unknown kind "Pod"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, client := connect(t, apiService, secret, configMap)
			bundle, err := client.AuthenticatorCABundle(t.Context(), test.tls)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Fatalf("want an error that says %q, got %v", test.says, err)
				}
				return
			}
			if err != nil || string(bundle) != test.want {
				t.Fatalf("want %q, got %q, %v", test.want, bundle, err)
			}
		})
	}
}

func TestApplyCredentialIssuer(t *testing.T) {
	t.Parallel()
	server, client := connect(t, discoverytest.Issuer(suffix, "one"))
	fields := map[string]any{
		"spec": map[string]any{"impersonationProxy": map[string]any{"tls": map[string]any{"secretName": "mine"}}},
	}

	dry, err := client.ApplyCredentialIssuer(
		t.Context(),
		"one",
		fields,
		discovery.ApplyOptions{FieldManager: "pinniped-cli", DryRun: true},
	)
	if err != nil || dry.Spec.ImpersonationProxy.TLS.SecretName != "mine" {
		t.Fatalf("want the answer of a dry run with the Secret's name, got %+v, %v", dry, err)
	}
	if stored, _ := client.CredentialIssuer(t.Context(), "one"); stored.Spec.ImpersonationProxy.TLS != nil {
		t.Fatalf("want nothing stored by a dry run, got %+v", stored.Spec)
	}
	applied, err := client.ApplyCredentialIssuer(
		t.Context(),
		"one",
		fields,
		discovery.ApplyOptions{FieldManager: "pinniped-cli"},
	)
	if err != nil || applied.Spec.ImpersonationProxy.Mode != configv1alpha1.ImpersonationProxyModeEnabled ||
		applied.Spec.ImpersonationProxy.TLS.SecretName != "mine" {
		t.Fatalf("want the field applied next to the others, got %+v, %v", applied, err)
	}
	var patches []discoverytest.Request
	for _, r := range server.Requests() {
		if r.Method == "PATCH" {
			r.Authorization = ""
			patches = append(patches, r)
		}
	}
	body := `{"apiVersion":"config.concierge.walrus.example.com/v1alpha1","kind":"CredentialIssuer","metadata":{"name":"one"},"spec":{"impersonationProxy":{"tls":{"secretName":"mine"}}}}`
	path := "/apis/config.concierge.walrus.example.com/v1alpha1/credentialissuers/one"
	want := []discoverytest.Request{
		{
			Method:      "PATCH",
			Path:        path,
			Query:       "dryRun=All&fieldManager=pinniped-cli",
			ContentType: "application/apply-patch+yaml",
			Body:        body,
		},
		{
			Method:      "PATCH",
			Path:        path,
			Query:       "fieldManager=pinniped-cli",
			ContentType: "application/apply-patch+yaml",
			Body:        body,
		},
	}
	if diff := cmp.Diff(want, patches); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if _, err := client.ApplyCredentialIssuer(
		t.Context(),
		"one",
		fields,
		discovery.ApplyOptions{FieldManager: "conflict"},
	); !errors.Is(
		err,
		discovery.ErrConflict,
	) {
		t.Errorf("want ErrConflict, got %v", err)
	}
	if _, err := client.ApplyCredentialIssuer(
		t.Context(),
		"one",
		fields,
		discovery.ApplyOptions{FieldManager: "conflict", Force: true},
	); err != nil {
		t.Errorf("want a forced apply to take over, got %v", err)
	}
	server.Forbid("patch", "credentialissuers")
	_, err = client.ApplyCredentialIssuer(t.Context(), "one", fields, discovery.ApplyOptions{FieldManager: "pinniped-cli"})
	forbidden, ok := errors.AsType[*discovery.ForbiddenError](err)
	if !ok || forbidden.Verb != "patch" || forbidden.Resource.Resource != "credentialissuers" || forbidden.Name != "one" {
		t.Errorf("want a ForbiddenError for the patch, got %v", err)
	}
}

func TestWhoAmI(t *testing.T) {
	t.Parallel()
	server, client := connect(t)
	answer, err := client.WhoAmI(t.Context())
	if err != nil || answer.Status.KubernetesUserInfo.User.Username != "admin" ||
		answer.APIVersion != "identity.concierge.walrus.example.com/v1alpha1" {
		t.Fatalf("want admin, got %+v, %v", answer, err)
	}
	server.Uninstall()
	if _, err := client.WhoAmI(t.Context()); !errors.Is(err, discovery.ErrNotInstalled) {
		t.Errorf("want ErrNotInstalled, got %v", err)
	}
}

// testCA returns the certificate of a CA that has issued nothing.
func testCA(t *testing.T) []byte {
	t.Helper()
	ca, err := certs.NewCA("unrelated", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca.CertPEM()
}

func TestHintsNameRoles(t *testing.T) {
	t.Parallel()
	issuers := schema.GroupResource{Group: "config.concierge.pinniped.dev", Resource: "credentialissuers"}
	secrets := schema.GroupResource{Resource: "secrets"}
	seen := map[string]bool{}
	for _, tt := range []struct {
		forbidden discovery.ForbiddenError
		want      string
	}{
		{discovery.ForbiddenError{Verb: "list", Resource: issuers}, "{name: pinniped-list-credentialissuers}"},
		{discovery.ForbiddenError{Verb: "patch", Resource: issuers, Name: "a"}, "{name: pinniped-patch-credentialissuers-a}"},
		{
			discovery.ForbiddenError{Verb: "get", Resource: secrets, Namespace: "n", Name: "a"},
			"{name: pinniped-get-secrets-a, namespace: n}",
		},
		{
			discovery.ForbiddenError{Verb: "get", Resource: secrets, Namespace: "n", Name: "b"},
			"{name: pinniped-get-secrets-b, namespace: n}",
		},
	} {
		role := tt.forbidden.Role()
		if !strings.Contains(role, "metadata: "+tt.want+"\n") || seen[tt.want] {
			t.Errorf("want %s once in\n%s", tt.want, role)
		}
		seen[tt.want] = true
	}
}

func TestHintOfACredentialPluginThatFails(t *testing.T) {
	t.Parallel()
	client, err := discovery.Connect(&rest.Config{Host: "https://127.0.0.1:1", ExecProvider: &clientcmdapi.ExecConfig{
		Command:         "no-such-plugin",
		APIVersion:      "client.authentication.k8s.io/v1",
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}, suffix)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.WhoAmI(t.Context())
	hinter, ok := errors.AsType[interface {
		error
		Hint() string
	}](err)
	if !ok || !errors.Is(err, discovery.ErrUnauthorized) || !errors.Is(err, discovery.ErrPluginFailed) ||
		!strings.HasPrefix(hinter.Hint(), "the credential plugin") {
		t.Errorf("want ErrPluginFailed, which is an ErrUnauthorized, with a hint at the plugin, got %v", err)
	}
}
