package login

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientauthenticationv1beta1 "k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/test/discoverytest"
)

const suffix = "walrus.example.com"

func options(t *testing.T, endpoint, caData string) (*StaticOptions, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	o := &StaticOptions{
		Plugin: Plugin{
			IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &bytes.Buffer{}},
			CachePath: filepath.Join(t.TempDir(), "credentials.yaml"), Now: time.Now,
			Find: func([]string) (string, string, *clientcmdapi.AuthInfo) { return "", "", nil },
		},
		Token:     "token",
		LookupEnv: func(string) (string, bool) { return "", false },
	}
	o.Plugin.concierge = concierge{
		Enabled:           true,
		AuthenticatorType: "webhook",
		AuthenticatorName: "local",
		Endpoint:          endpoint,
		CABundleData:      caData,
		APIGroupSuffix:    suffix,
	}
	return o, &out
}

func cluster(t *testing.T) *discoverytest.Server {
	t.Helper()
	server, err := discoverytest.New(suffix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	server.Users["token"] = discoverytest.User{Name: "pinny"}
	if err := server.Put(discoverytest.Webhook(suffix, "local")); err != nil {
		t.Fatal(err)
	}
	return server
}

// TestRequest compares the exact request to servers.
func TestRequest(t *testing.T) {
	t.Parallel()
	server := cluster(t)
	o, out := options(t, server.URL, server.CAData())
	if err := execute(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := []discoverytest.Request{
		{
			Method:      "POST",
			Path:        "/apis/login.concierge.walrus.example.com/v1alpha1/tokencredentialrequests",
			ContentType: "application/json",
			Body: `{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.walrus.example.com/v1alpha1","metadata":{},` +
				`"spec":{"token":"token","authenticator":{"apiGroup":"authentication.concierge.walrus.example.com","kind":"WebhookAuthenticator","name":"local"}},"status":{}}`,
		},
	}
	if diff := cmp.Diff(want, server.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	var answer clientauthenticationv1beta1.ExecCredential
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Status.ExpirationTimestamp == nil ||
		!strings.Contains(answer.Status.ClientKeyData, "PRIVATE KEY") {
		t.Errorf("want a credential with expiry, got %+v, %v", answer, err)
	}
}

func TestCachedUntilShortlyBeforeExpiry(t *testing.T) {
	t.Parallel()
	server := cluster(t)
	o, out := options(t, server.URL, server.CAData())
	o.Plugin.Args = []string{"login", "static"}
	start := time.Now()
	now := start
	o.Plugin.Now = func() time.Time { return now }
	for _, step := range []struct {
		after     time.Duration
		exchanges int
	}{{0, 1}, {time.Minute, 1}, {4 * time.Minute, 1}, {4*time.Minute + 45*time.Second, 2}} {
		now = start.Add(step.after)
		out.Reset()
		if err := execute(t.Context(), o); err != nil || out.Len() == 0 {
			t.Fatal(err)
		}
		if got := server.Exchanges(); got != step.exchanges {
			t.Errorf("after %s: want %d exchanges, got %d", step.after, step.exchanges, got)
		}
	}
	o.Plugin.Args = append(o.Plugin.Args, "--another-flag")
	if err := execute(t.Context(), o); err != nil || server.Exchanges() != 3 {
		t.Errorf("want another exchange for other arguments, got %d, %v", server.Exchanges(), err)
	}
}

// TestWrongClock checks that with a wrong local clock, a credential is used for its lifetime by the cluster's clock.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-20 * time.Minute, 20 * time.Minute} {
		t.Run(skew.String(), func(t *testing.T) {
			t.Parallel()
			server := cluster(t)
			o, out := options(t, server.URL, server.CAData())
			o.Plugin.Args = []string{"login", "static"}
			var later time.Duration
			o.Plugin.Now = func() time.Time { return time.Now().Add(skew + later) }
			for _, step := range []struct {
				after     time.Duration
				exchanges int
			}{{0, 1}, {4 * time.Minute, 1}, {6 * time.Minute, 2}} {
				later = step.after
				out.Reset()
				if err := execute(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				if got := server.Exchanges(); got != step.exchanges {
					t.Errorf("after %s: want %d exchanges, got %d", step.after, step.exchanges, got)
				}
			}
		})
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		failures  []int
		exchanges int
		says      string
	}{
		{name: "comes again when the cluster is busy", failures: []int{429, 503}, exchanges: 3},
		{name: "comes again three times at most", failures: []int{503, 503, 503, 503}, exchanges: 3, says: "returned 503: " +
			"try again"},
		{
			name: "does not come again after another error", failures: []int{500}, exchanges: 1, says: "returned 500: try again",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := cluster(t)
			server.FailExchanges(test.failures...)
			o, out := options(t, server.URL, server.CAData())
			err := execute(t.Context(), o)
			if test.says == "" && err != nil ||
				test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) || out.Len() > 0) {
				t.Errorf("want an error that says %q, got %v", test.says, err)
			}
			if test.says != "" && !strings.Contains(ui.HintOf(err), `audit ID "audit-1"`) {
				t.Errorf("want a hint with the audit ID, got %q", ui.HintOf(err))
			}
			if got := server.Exchanges(); got != test.exchanges {
				t.Errorf("want %d exchanges, got %d", test.exchanges, got)
			}
		})
	}
}

// TestResponses checks misbehaving servers.
func TestResponses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		body   string
		says   string
		hint   string
	}{
		{
			name: "passes on the message", status: 201, body: `{"status":{"message":"authentication failed"}}`,
			says: "login failed: authentication failed", hint: "did not accept the token",
		},
		{name: "knows no cause", status: 201, body: `{"status":{}}`, says: "login failed: unknown cause"},
		{
			name: "refuses half a credential", status: 201, body: `{"status":{"credential":{"clientCertificateData":"x"}}}`,
			says: "login failed: unknown cause",
		},
		{name: "refuses what is not JSON", status: 200, body: `<html>`, says: "decoding the response"},
		{
			name: "names the API error", status: 422, body: `{"kind":"Status","message":"spec.token.value: Required value"}`,
			says: "returned 422: spec.token.value: Required value",
		},
		{name: "names a gateway's error", status: 502, body: `<html>`, says: "returned 502: Bad Gateway"},
		{
			name: "says that the agent may be missing", status: 404, body: `404 page not found`, says: "returned 404: Not Found",
			hint: "login.concierge.walrus.example.com",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			}))
			t.Cleanup(server.Close)
			o, out := options(t, server.URL, caData(server))
			err := execute(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(ui.HintOf(err), test.hint) ||
				out.Len() > 0 {
				t.Errorf(
					"want an error that says %q with hint %q and no output, got %v, hint %q, %q",
					test.says,
					test.hint,
					err,
					ui.HintOf(err),
					out,
				)
			}
		})
	}
}

// TestNeverFollowsRedirects checks that the token is sent only to the endpoint.
func TestNeverFollowsRedirects(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	thief := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Store(true) }))
	t.Cleanup(thief.Close)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	o, _ := options(t, server.URL, caData(server))
	if err := execute(t.Context(), o); err == nil || !strings.Contains(err.Error(), "returned 307") || leaked.Load() {
		t.Errorf("want an error and no second request, got %v, %v", err, leaked.Load())
	}
}

// TestClusterInfo checks that kubectl's TLS server name and proxy are used, but only for the same endpoint.
func TestClusterInfo(t *testing.T) {
	t.Parallel()
	server := cluster(t)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	info := func(endpoint, serverName, proxy string) string {
		text, err := json.Marshal(map[string]any{
			"apiVersion": "client.authentication.k8s.io/v1beta1",
			"kind":       "ExecCredential",
			"spec": map[string]any{
				"cluster": map[string]any{"server": endpoint, "tls-server-name": serverName, "proxy-url": proxy},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, test := range []struct {
		name, info, says string
	}{
		{name: "uses the server name", info: info(server.URL+"/", "cluster.test", "")},
		{name: "verifies it", info: info(server.URL, "other.test", ""), says: "certificate is valid for localhost, " +
			"cluster.test, not other.test"},
		{name: "ignores another cluster's", info: info("https://127.0.0.1:1", "other.test", "http://127.0.0.1:1")},
		{name: "uses the proxy", info: info(server.URL, "", "http://127.0.0.1:1"), says: "proxyconnect tcp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, _ := options(t, "https://"+address.Host, server.CAData())
			o.Plugin.ExecInfo = test.info
			err := execute(t.Context(), o)
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("want an error that says %q, got %v", test.says, err)
			}
		})
	}
}

// TestSecretsStayOut checks that no error, hint or debug line contains the token.
func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	o, _ := options(t, "https://127.0.0.1:1", "")
	var errOut bytes.Buffer
	o.Token, o.Plugin.Debug, o.Plugin.ErrOut = "very-secret", true, &errOut
	err := execute(t.Context(), o)
	if err == nil || strings.Contains(err.Error()+ui.HintOf(err)+errOut.String(), "very-secret") || errOut.Len() == 0 {
		t.Errorf("want an error and a debug line without the token, got %v, %q", err, &errOut)
	}
}

func caData(server *httptest.Server) string {
	return base64.StdEncoding.EncodeToString(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	)
}

// TestOneExchange checks that many commands that need the same credential at once, with a cold cache, make one
// exchange.
func TestOneExchange(t *testing.T) {
	t.Parallel()
	server := cluster(t)
	first, _ := options(t, server.URL, server.CAData())
	var all sync.WaitGroup
	for range 12 {
		o, out := options(t, server.URL, server.CAData())
		o.Plugin.CachePath = first.Plugin.CachePath
		all.Go(func() {
			if err := execute(t.Context(), o); err != nil || !strings.Contains(out.String(), "PRIVATE KEY") {
				t.Errorf("want a credential, got %v", err)
			}
		})
	}
	all.Wait()
	if got := server.Exchanges(); got != 1 {
		t.Errorf("want one exchange, got %d", got)
	}
}
