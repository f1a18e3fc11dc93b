package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
)

// tokenIssuer answers TokenRequests.
type tokenIssuer struct {
	*httptest.Server
	clock *clocktesting.FakeClock

	mu     sync.Mutex
	asked  []authenticationv1.TokenRequestSpec
	path   string
	life   time.Duration
	broken bool
}

func newTokenIssuer(t *testing.T) *tokenIssuer {
	t.Helper()
	i := &tokenIssuer{clock: clocktesting.NewFakeClock(time.Now()), life: 24 * time.Hour}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			panic(err)
		}
		request := *object.(*authenticationv1.TokenRequest)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked, i.path = append(i.asked, request.Spec), req.Method+" "+req.URL.Path
		if i.broken {
			w.WriteHeader(500)
			return
		}
		request.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}
		request.Status = authenticationv1.TokenRequestStatus{
			Token: fmt.Sprintf("token-%d", len(i.asked)), ExpirationTimestamp: metav1.NewTime(i.clock.Now().Add(i.life)),
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(request)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *tokenIssuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func (i *tokenIssuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.asked)
}

// run starts a token source.
func (i *tokenIssuer) run(t *testing.T) *ServiceAccountToken {
	t.Helper()
	source, err := NewServiceAccountToken(&rest.Config{Host: i.URL, QPS: -1}, "ns", "app-impersonation-proxy", i.clock)
	if err != nil {
		t.Fatal(err)
	}
	if token, err := source.Token(); err == nil {
		t.Errorf("want no token before Run, got %q", token)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() { defer close(done); source.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return source
}

func has(source *ServiceAccountToken, want string) func() bool {
	return func() bool { token, err := source.Token(); return err == nil && token == want }
}

func TestTokenIsRenewedInTime(t *testing.T) {
	t.Parallel()
	i := newTokenIssuer(t)
	source := i.run(t)
	waitUntil(t, has(source, "token-1"))
	if want := "POST /api/v1/namespaces/ns/serviceaccounts/app-impersonation-proxy/token"; i.path != want {
		t.Errorf("want %s, got %s", want, i.path)
	}
	if got := i.asked[0].ExpirationSeconds; got == nil || *got != 24*60*60 {
		t.Errorf("want a day, got %v", got)
	}
	waitUntil(t, i.clock.HasWaiters)
	i.clock.Step(19 * time.Hour)
	if got := i.count(); got != 1 {
		t.Fatalf("want no renewal before four fifths of its life, got %d requests", got)
	}
	i.set(func() { i.life = time.Hour }) // an API server that grants less
	i.clock.Step(15 * time.Minute)
	waitUntil(t, has(source, "token-2"))
	waitUntil(t, i.clock.HasWaiters)
	i.clock.Step(49 * time.Minute)
	waitUntil(t, has(source, "token-3"))
}

func TestTokenFailures(t *testing.T) {
	t.Parallel()
	i := newTokenIssuer(t)
	i.broken = true
	source := i.run(t)
	for want := 1; want <= 3; want++ { // at once and then again after a while
		waitUntil(t, func() bool { return i.count() >= want && i.clock.HasWaiters() })
		i.clock.Step(15 * time.Second)
	}
	if _, err := source.Token(); err == nil {
		t.Error("want no token")
	}
	i.set(func() { i.broken = false })
	waitUntil(t, func() bool { i.clock.Step(15 * time.Second); _, err := source.Token(); return err == nil })
	i.set(func() { i.broken = true })
	waitUntil(t, i.clock.HasWaiters)
	i.clock.Step(23 * time.Hour)
	if _, err := source.Token(); err != nil {
		t.Errorf("want the token used until it expires, got %v", err)
	}
	i.clock.Step(time.Hour)
	if _, err := source.Token(); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("want no token after it expired, got %v", err)
	}
}

func TestRejectedTokenIsReplaced(t *testing.T) {
	t.Parallel()
	i := newTokenIssuer(t)
	source := i.run(t)
	waitUntil(t, has(source, "token-1"))
	waitUntil(t, i.clock.HasWaiters)
	source.Reject("token-0")
	source.Reject("token-1") // only just requested
	i.clock.Step(rejectPause)
	if got := i.count(); got != 1 {
		t.Fatalf("want one request, got %d", got)
	}
	source.Reject("token-1")
	waitUntil(t, has(source, "token-2"))
}

// waitUntil waits until check is true.
func waitUntil(t *testing.T, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !check(); {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
