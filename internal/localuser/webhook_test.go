package localuser

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	beta = "authentication.k8s.io/v1beta1"
	v1   = "authentication.k8s.io/v1"
)

// userSecret returns the Secret of a user: without a hash for an empty password, and without groups for nil.
func userSecret(t *testing.T, name, password string, groups *string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{}}
	if password != "" {
		hash := must.Get(bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost))(t)
		secret.Data[passwordHashKey] = hash
	}
	if groups != nil {
		secret.Data[groupsKey] = []byte(*groups)
	}
	return secret
}

func newTestWebhook(t *testing.T, log logr.Logger, secrets ...*corev1.Secret) *webhook {
	t.Helper()
	builder := fake.NewClientBuilder()
	for _, secret := range secrets {
		builder.WithObjects(secret.DeepCopy())
	}
	return &webhook{
		users: builder.Build(), unknown: userSecret(t, "x", "another", nil).Data[passwordHashKey],
		logins: make(chan struct{}, maxLogins), seats: make(chan struct{}, 2), log: log,
	}
}

func reviewBody(apiVersion, kind, token string) string {
	return `{"apiVersion":"` + apiVersion + `","kind":"` + kind + `","metadata":{"creationTimestamp":null},"spec":{"token":"` + token + `"},"status":{"user":{}}}` + "\n"
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 72)
	hash := userSecret(t, "x", "password123", nil).Data[passwordHashKey]
	secrets := []*corev1.Secret{
		userSecret(t, "pinny", "password123", new(" group-for-mtls , two words,,\"with,comma\"\nsecond,line")),
		userSecret(t, "alone", "pass:with:colons", nil),
		userSecret(t, "nogroups", "password123", new("")),
		userSecret(t, "blankgroups", "password123", new("\n")),
		userSecret(t, "longest", long, nil),
		userSecret(t, "badcsv", "password123", new(`a,"b`)),
		userSecret(t, "master", "password123", new("ok,system:masters")),
		userSecret(t, "odd", "password123", new("\"two\nlines\"")),
		userSecret(t, "hashless", "", new("group")),
		{ObjectMeta: metav1.ObjectMeta{Name: "badhash"}, Data: map[string][]byte{passwordHashKey: []byte("password123")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "newline"}, Data: map[string][]byte{passwordHashKey: append(hash, '\n')}},
		{ObjectMeta: metav1.ObjectMeta{Name: "htpasswd"}, Data: map[string][]byte{ // in its format
			passwordHashKey: bytes.Replace(hash, []byte("$2a$"), []byte("$2y$"), 1),
		}},
		// The Secret of the serving certificate is not a user, even with a password in it.
		userSecret(t, ServingSecretName, "password123", nil),
	}
	refused := func(version string) string {
		return `{"kind":"TokenReview","apiVersion":"` + version + `","metadata":{},"spec":{},"status":{"user":{}}}` + "\n"
	}
	accepted := func(version, user string) string {
		return `{"kind":"TokenReview","apiVersion":"` + version + `","metadata":{},"spec":{},"status":{"authenticated":true,"user":` + user + "}}\n"
	}
	tests := []struct {
		name    string
		method  string // default POST
		path    string // default /authenticate
		header  http.Header
		drop    string // a header that is not sent
		version string
		kind    string
		token   string
		body    string // instead of version, kind and token
		want    int    // default 200
		answer  string // the response; empty for a refusal
	}{
		{name: "answers 404 for another path", path: "/", token: "pinny:password123", want: 404},
		{name: "answers 404 for a health check", method: "GET", path: "/healthz", want: 404},
		{name: "answers 404 for a longer path", path: "/authenticate/", token: "pinny:password123", want: 404},
		{name: "answers 404 before 405", method: "GET", path: "/x", want: 404},
		{name: "answers 405 for GET", method: "GET", token: "pinny:password123", want: 405},
		{name: "answers 405 for PUT", method: "PUT", token: "pinny:password123", want: 405},
		{name: "answers 405 before 415", method: "PUT", header: http.Header{"Content-Type": {"text/plain"}}, want: 405},
		{
			name: "answers 415 for another content type", header: http.Header{"Content-Type": {"application/xml"}},
			token: "pinny:password123", want: 415,
		},
		{name: "answers 415 without a content type", drop: "Content-Type", token: "pinny:password123", want: 415},
		{
			name: "answers 415 to a client that takes only XML", header: http.Header{"Accept": {"application/xml"}},
			token: "pinny:password123", want: 415,
		},
		{name: "answers 415 without Accept", drop: "Accept", token: "pinny:password123", want: 415},
		{name: "answers 415 before 400", header: http.Header{"Accept": {"application/xml"}}, body: "{", want: 415},
		{name: "answers 400 to what is no JSON", body: "token", want: 400},
		{name: "answers 400 to half an object", body: `{"kind":"TokenReview"`, want: 400},
		{
			name: "answers 400 to fields of other types",
			body: `{"apiVersion":"` + beta + `","kind":"TokenReview","spec":{"token":7}}`, want: 400,
		},
		{name: "answers 400 to no body", body: " ", want: 400},
		{name: "answers 400 to a list", body: "[]", want: 400},
		{name: "answers 400 to another version", version: "authentication.k8s.io/v9", token: "pinny:password123", want: 400},
		{name: "answers 400 to another group", version: "v1", token: "pinny:password123", want: 400},
		{name: "answers 400 to another kind", kind: "SubjectAccessReview", token: "pinny:password123", want: 400},
		{
			name: "answers 400 to a field in other case",
			body: `{"apiVersion":"` + beta + `","Kind":"TokenReview","spec":{"token":"pinny:password123"}}`, want: 400,
		},
		{name: "answers 400 to a token without a colon", token: "pinny", want: 400},
		{name: "answers 400 to an empty token", token: "", want: 400},
		{name: "answers 413 to a huge body", token: "pinny:" + strings.Repeat("x", maxBody), want: 413},
		{name: "answers 500 for unreadable groups", token: "badcsv:password123", want: 500},

		{
			name: "does not tell that groups are unreadable without the password", token: "badcsv:wrong",
			answer: refused(beta),
		},
		{name: "refuses an unknown user", token: "nobody:password123", answer: refused(beta)},
		{name: "refuses a wrong password", token: "pinny:password124", answer: refused(beta)},
		{name: "refuses a wrong password of version v1", version: v1, token: "pinny:password124", answer: refused(v1)},
		{name: "refuses an empty password", token: "pinny:", answer: refused(beta)},
		{name: "refuses a blank password", token: "pinny: ", answer: refused(beta)},
		{name: "refuses an empty username", token: ":password123", answer: refused(beta)},
		{name: "refuses a lone colon", token: ":", answer: refused(beta)},
		{name: "refuses a username in other case", token: "Pinny:password123", answer: refused(beta)},
		{name: "refuses a system username", token: "system:masters:password123", answer: refused(beta)},
		{name: "refuses a user with a system group", token: "master:password123", answer: refused(beta)},
		{name: "refuses a user with a control character in a group", token: "odd:password123", answer: refused(beta)},
		{name: "refuses a user without a hash", token: "hashless:password123", answer: refused(beta)},
		{name: "refuses a user with a plain password for a hash", token: "badhash:password123", answer: refused(beta)},
		{name: "refuses its own Secret", token: ServingSecretName + ":password123", answer: refused(beta)},
		{
			name: "accepts a user with groups", token: "pinny:password123",
			answer: accepted(beta, `{"username":"pinny","groups":["group-for-mtls","two words","with,comma"]}`),
		},
		{
			name: "accepts a user of version v1", version: v1, token: "pinny:password123",
			answer: accepted(v1, `{"username":"pinny","groups":["group-for-mtls","two words","with,comma"]}`),
		},
		{
			name: "accepts a password with colons, and no groups", token: "alone:pass:with:colons",
			answer: accepted(beta, `{"username":"alone"}`),
		},
		{
			name: "accepts a user with empty groups", token: "nogroups:password123",
			answer: accepted(beta, `{"username":"nogroups"}`),
		},
		{
			name: "accepts a user with a line break for groups", token: "blankgroups:password123",
			answer: accepted(beta, `{"username":"blankgroups"}`),
		},
		{name: "accepts the longest password", token: "longest:" + long, answer: accepted(beta, `{"username":"longest"}`)},
		{
			name: "accepts a hash with a line break after it", token: "newline:password123",
			answer: accepted(beta, `{"username":"newline"}`),
		},
		{
			name: "accepts a hash of htpasswd", token: "htpasswd:password123",
			answer: accepted(beta, `{"username":"htpasswd"}`),
		},
		{
			name:   "accepts a charset in the content type",
			header: http.Header{"Content-Type": {"application/json; charset=utf-8"}},
			token:  "alone:pass:with:colons",
			answer: accepted(beta, `{"username":"alone"}`),
		},
		{
			name:   "accepts application/* and parameters",
			header: http.Header{"Accept": {"text/html, application/*;q=0.8"}},
			token:  "alone:pass:with:colons",
			answer: accepted(beta, `{"username":"alone"}`),
		},
		{
			name:   "accepts */* in a second header line",
			header: http.Header{"Accept": {"text/html", "*/*"}},
			token:  "alone:pass:with:colons",
			answer: accepted(beta, `{"username":"alone"}`),
		},
		{
			name:   "ignores unknown fields",
			body:   `{"apiVersion":"` + v1 + `","kind":"TokenReview","new":1,"spec":{"token":"alone:pass:with:colons","audiences":["a"]}}`,
			answer: accepted(v1, `{"username":"alone"}`),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			logged := new(bytes.Buffer)
			log := funcr.New(func(prefix, args string) { logged.WriteString(prefix + args + "\n") },
				funcr.Options{Verbosity: 10})
			body := test.body
			if body == "" {
				body = reviewBody(cmp.Or(test.version, beta), cmp.Or(test.kind, "TokenReview"), test.token)
			}
			request := httptest.NewRequestWithContext(t.Context(),
				cmp.Or(test.method, "POST"), cmp.Or(test.path, "/authenticate"), strings.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Accept", "application/json, */*")
			for key, values := range test.header {
				request.Header[key] = values
			}
			if test.drop != "" {
				request.Header.Del(test.drop)
			}
			recorder := httptest.NewRecorder()
			newTestWebhook(t, log, secrets...).ServeHTTP(recorder, request)
			if want := cmp.Or(test.want, 200); recorder.Code != want {
				t.Errorf("status: want %d, got %d", want, recorder.Code)
			}
			if diff := gocmp.Diff(test.answer, recorder.Body.String()); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			if got := recorder.Header().Get("Content-Type"); test.want == 0 && got != "application/json" {
				t.Errorf("content type: got %q", got)
			}
			for _, secret := range []string{"password12", "pass:with", "$2a$", long} {
				if strings.Contains(logged.String(), secret) {
					t.Errorf("%q is in the log:\n%s", secret, logged)
				}
			}
		})
	}
}

func TestWebhookAsksBusyClientsToRetry(t *testing.T) {
	t.Parallel()
	h := newTestWebhook(t, logr.Discard(), userSecret(t, "pinny", "password123", nil))
	h.logins = nil // as if full
	request := httptest.NewRequestWithContext(t.Context(), "POST", "/authenticate",
		strings.NewReader(reviewBody(beta, "TokenReview", "pinny:password123")))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "*/*")
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusServiceUnavailable || recorder.Header().Get("Retry-After") == "" ||
		recorder.Body.Len() > 0 {
		t.Errorf("want an empty 503 with Retry-After, got %d, headers %v, body %q",
			recorder.Code, recorder.Header(), recorder.Body)
	}
}

// TestVerifyComparesForUnknownUsers checks that an unknown username costs a comparison, too: at bcrypt's default cost,
// which is that of `htpasswd -C 10` in the how-to.
func TestVerifyComparesForUnknownUsers(t *testing.T) {
	t.Parallel()
	h := must.Get(newWebhook(fake.NewClientBuilder().Build(), "", 1, logr.Discard()))(t)
	if cost, err := bcrypt.Cost(h.unknown); err != nil || cost != bcrypt.DefaultCost {
		t.Errorf("the hash for unknown users has cost %d, %v", cost, err)
	}
	if found, err := h.verify(t.Context(), "nobody", "x"); found != nil || err != nil {
		t.Errorf("want no user and no error, got %v, %v", found, err)
	}
}

func TestVerifyBoundsTheWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		logins       int           // already pending
		cancel, want time.Duration // when the client disconnects, and how long the login waits
	}{
		"leaves when the client does":  {cancel: time.Second, want: time.Second},
		"leaves when its time is over": {cancel: time.Hour, want: patience},
		"refuses one login too many":   {logins: maxLogins, cancel: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newTestWebhook(t, logr.Discard(), userSecret(t, "pinny", "password123", nil))
				for range cap(h.seats) {
					h.seats <- struct{}{}
				}
				for range test.logins {
					h.logins <- struct{}{}
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.cancel)
				defer cancel()
				began := time.Now()
				if _, err := h.verify(ctx, "pinny", "password123"); !errors.Is(err, errBusy) {
					t.Errorf("want errBusy, got %v", err)
				}
				if got := time.Since(began); got != test.want {
					t.Errorf("want to wait %v, waited %v", test.want, got)
				}
				if got := len(h.logins); got != test.logins {
					t.Errorf("%d logins are still counted", got)
				}
			})
		})
	}
}
