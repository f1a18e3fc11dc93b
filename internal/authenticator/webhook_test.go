package authenticator

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// startWebhook starts a TLS server and returns the options to call it. It counts the calls.
func startWebhook(
	t *testing.T,
	configure func(*httptest.Server),
	handler http.HandlerFunc,
) (WebhookOptions, *atomic.Int32) {
	t.Helper()
	calls := &atomic.Int32{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		handler(w, r)
	}))
	server.EnableHTTP2 = true
	if configure != nil {
		configure(server)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	endpoint := must.Get(url.Parse(server.URL + "/authenticate"))(t)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return WebhookOptions{Endpoint: endpoint, Roots: roots, Timeout: 20 * time.Second}, calls
}

func newWebhook(t *testing.T, options WebhookOptions) *Webhook {
	t.Helper()
	webhook := must.Get(NewWebhook(options))(t)
	webhook.backoff.Duration = time.Millisecond
	t.Cleanup(webhook.Close)
	return webhook
}

const (
	reviewOf = `{"apiVersion":"authentication.k8s.io/v1beta1","kind":"TokenReview","status":%s}`
	yes      = `{"authenticated":true,"user":{"username":"ann"}}` // a status
)

func reviewed(status string) http.HandlerFunc {
	return respond(http.StatusOK, fmt.Sprintf(reviewOf, status))
}

func respond(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

func TestWebhookResponses(t *testing.T) {
	t.Parallel()
	const token = "ann:very-secret"
	annIn := fmt.Sprintf(reviewOf, yes)
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    *user.DefaultInfo // nil: not authenticated
		err     string            // part of the error
		calls   int32             // 0: one
	}{
		{
			name: "returns the whole user",
			handler: reviewed(
				`{"authenticated":true,"user":{"username":"ann","uid":"7","groups":["b","a"],"extra":{"example.com/x":["1","2"]}}}`,
			),
			want: &user.DefaultInfo{
				Name: "ann", UID: "7", Groups: []string{"b", "a"}, Extra: map[string][]string{"example.com/x": {"1", "2"}},
			},
		},
		{
			name:    "takes a response without apiVersion and kind, as the API server does",
			handler: respond(http.StatusCreated, `{"status":{"authenticated":true,"user":{"username":"ann"}}}`),
			want:    &user.DefaultInfo{Name: "ann"},
		},
		{name: "takes a refusal", handler: reviewed(`{"user":{}}`)},
		{
			name:    "believes no user who is not authenticated",
			handler: reviewed(`{"authenticated":false,"user":{"username":"ann"}}`),
		},
		{name: "reads names of fields exactly", handler: reviewed(`{"Authenticated":true,"user":{"username":"ann"}}`)},
		{
			name: "reports the webhook's error without the token", handler: reviewed(`{"error":"ann:very-secret, very-secret?"}`),
			err: `"[token], [token]?"`,
		},
		{
			name: "refuses a user without a name", handler: reviewed(`{"authenticated":true,"user":{"groups":["x"]}}`),
			err: "without a name",
		},
		{
			name:    "refuses another version",
			handler: respond(200, strings.Replace(annIn, "v1beta1", "v1", 1)),
			err:     `apiVersion is "authentication.k8s.io/v1"`,
		},
		{
			name:    "refuses another kind",
			handler: respond(200, strings.Replace(annIn, "TokenReview", "Status", 1)),
			err:     `kind is "Status"`,
		},
		{
			name: "refuses what is not JSON", handler: respond(200, `authenticated: true # ann:very-secret`),
			err: "not a TokenReview",
		},
		{
			name: "refuses JSON of another form", handler: respond(200, `{"status":{"authenticated":"ann:very-secret"}}`),
			err: "not a TokenReview",
		},
		{
			name: "refuses half a response", handler: respond(200, `{"status":{"authenticated":true,"user":{"username":"ann"}}`),
			err: "not a TokenReview",
		},
		{
			name:    "refuses a response with trailing data",
			handler: respond(200, `{"status":{"authenticated":true,"user":{"username":"ann"}}}{}`), err: "not a TokenReview",
		},
		{name: "refuses nothing", handler: respond(200, ``), err: "not a TokenReview"},
		{
			name:    "refuses an endless response",
			handler: respond(200, `{"status":{"error":"`+strings.Repeat("x", 2*maxResponseSize)+`"}}`), err: "longer than",
		},
		{name: "does not believe a yes with status 400", handler: respond(400, annIn), err: "status code 400"},
		{
			name:    "does not believe a yes with status 500, and asks again",
			handler: respond(500, annIn),
			err:     "status code 500", calls: 4,
		},
		{name: "asks again when it was asked too often", handler: respond(429, ``), err: "status code 429", calls: 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			options, calls := startWebhook(t, nil, test.handler)
			info, authenticated, err := newWebhook(t, options).AuthenticateToken(t.Context(), token)
			if authenticated != (test.want != nil) || (test.err == "") != (err == nil) {
				t.Fatalf("authenticated %v, error %v", authenticated, err)
			}
			if err != nil &&
				(!strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "very-secret") || len(err.Error()) > 1000) {
				t.Errorf("want an error with %q and without the token, got %v", test.err, err)
			}
			if test.want != nil {
				if diff := cmp.Diff(test.want, info); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if calls.Load() != max(test.calls, 1) {
				t.Errorf("want %d calls, got %d", max(test.calls, 1), calls.Load())
			}
		})
	}
}

func TestWebhookRequest(t *testing.T) {
	t.Parallel()
	type request struct {
		Method, Path, ContentType, Accept string
		Keys                              []string
		Body                              map[string]any
	}
	var got request
	options, _ := startWebhook(t, nil, func(w http.ResponseWriter, r *http.Request) {
		got = request{
			Method: r.Method, Path: r.URL.Path, ContentType: r.Header.Get("Content-Type"), Accept: r.Header.Get("Accept"),
			Keys: r.Header.Values("Idempotency-Key"),
		}
		if err := json.NewDecoder(r.Body).Decode(&got.Body); err != nil {
			t.Error(err)
		}
		reviewed(`{}`)(w, r)
	})
	if _, _, err := newWebhook(t, options).AuthenticateToken(t.Context(), "a token"); err != nil {
		t.Fatal(err)
	}
	want := request{
		Method: "POST", Path: "/authenticate", ContentType: "application/json", Accept: "application/json",
		Body: map[string]any{
			"apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview", "metadata": map[string]any{},
			"spec": map[string]any{"token": "a token"}, "status": map[string]any{"user": map[string]any{}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWebhookIsNotAskedAboutBlankTokens(t *testing.T) {
	t.Parallel()
	options, calls := startWebhook(t, nil, reviewed(yes))
	webhook := newWebhook(t, options)
	for _, token := range []string{"", " ", "\t\r\n", "\u00a0"} {
		if _, authenticated, err := webhook.AuthenticateToken(t.Context(), token); authenticated || err != nil {
			t.Errorf("token %q: authenticated %v, error %v", token, authenticated, err)
		}
	}
	if calls.Load() != 0 {
		t.Errorf("want no calls, got %d", calls.Load())
	}
}

func TestWebhookFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	elsewhere, stolen := startWebhook(t, nil, reviewed(yes))
	options, _ := startWebhook(t, nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.Endpoint.String(), http.StatusTemporaryRedirect)
	})
	_, authenticated, err := newWebhook(t, options).AuthenticateToken(t.Context(), "token")
	if authenticated || err == nil || !strings.Contains(err.Error(), "status code 307") {
		t.Errorf("authenticated %v, error %v", authenticated, err)
	}
	if stolen.Load() != 0 {
		t.Error("the token was sent elsewhere")
	}
}

func TestWebhookMustBeTheRightOne(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		configure func(*httptest.Server)
		change    func(*WebhookOptions)
		err       string
	}{
		{
			"refuses a certificate of another CA", nil, func(o *WebhookOptions) { o.Roots = x509.NewCertPool() },
			"unknown authority",
		},
		{
			"refuses a certificate that the system's roots do not know", nil, func(o *WebhookOptions) { o.Roots = nil },
			"certificate",
		},
		{"refuses another name", nil, func(o *WebhookOptions) {
			o.Endpoint.Host = strings.Replace(o.Endpoint.Host, "127.0.0.1", "localhost", 1)
		}, "not localhost"},
		{"refuses old TLS", func(s *httptest.Server) {
			s.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10} // refused versions
		}, nil, "protocol version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			options, calls := startWebhook(t, test.configure, reviewed(yes))
			if test.change != nil {
				test.change(&options)
			}
			_, authenticated, err := newWebhook(t, options).AuthenticateToken(t.Context(), "token")
			if authenticated || err == nil || !strings.Contains(err.Error(), test.err) || calls.Load() != 0 {
				t.Errorf("authenticated %v, calls %d, error %v", authenticated, calls.Load(), err)
			}
		})
	}
	for _, endpoint := range []string{"http://webhook.example.com", "https://", "ftp://x"} {
		parsed := must.Get(url.Parse(endpoint))(t)
		if _, err := NewWebhook(WebhookOptions{Endpoint: parsed}); err == nil {
			t.Errorf("%q was accepted", endpoint)
		}
	}
}

func TestWebhookEndsInTime(t *testing.T) {
	t.Parallel()
	released := make(chan struct{})
	t.Cleanup(func() { close(released) }) // before the server is closed
	options, _ := startWebhook(t, nil, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	})
	options.Timeout = 50 * time.Millisecond
	began := time.Now()
	_, authenticated, err := newWebhook(t, options).AuthenticateToken(t.Context(), "token")
	if authenticated || err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("authenticated %v, error %v", authenticated, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestWebhookKeepsConnections(t *testing.T) {
	t.Parallel()
	options, _ := startWebhook(t, func(s *httptest.Server) { s.EnableHTTP2 = false }, respond(http.StatusBadRequest, "no"))
	webhook := newWebhook(t, options)
	var fresh atomic.Int32
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			fresh.Add(1)
		}
	}})
	for range 5 {
		_, _, _ = webhook.AuthenticateToken(ctx, "token")
	}
	if fresh.Load() != 1 {
		t.Errorf("want one connection, got %d", fresh.Load())
	}
}

func TestWebhookSurvivesDeadConnections(t *testing.T) {
	t.Parallel()
	var server *httptest.Server
	options, _ := startWebhook(t, func(s *httptest.Server) { server = s }, reviewed(yes))
	webhook := newWebhook(t, options)
	for range 5 {
		if _, authenticated, err := webhook.AuthenticateToken(t.Context(), "token"); !authenticated || err != nil {
			t.Fatalf("authenticated %v, error %v", authenticated, err)
		}
		server.CloseClientConnections()
	}
}

func TestWebhookUsesTheProxy(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method + " " + r.Host)
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(proxy.Close)
	through := must.Get(url.Parse(proxy.URL))(t)
	webhook := newWebhook(t, WebhookOptions{
		Endpoint: &url.URL{Scheme: "https", Host: "webhook.example.com"},
		Proxy:    func(*http.Request) (*url.URL, error) { return through, nil },
	})
	if _, authenticated, err := webhook.AuthenticateToken(t.Context(), "token"); authenticated || err == nil {
		t.Errorf("authenticated %v, error %v", authenticated, err)
	}
	if diff := cmp.Diff(any("CONNECT webhook.example.com:443"), asked.Load()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
