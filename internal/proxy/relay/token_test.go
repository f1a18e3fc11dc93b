package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// tokenIssuer serves TokenRequests.
type tokenIssuer struct {
	mu     sync.Mutex
	asked  []authenticationv1.TokenRequestSpec
	path   string
	life   time.Duration
	broken bool
}

func (i *tokenIssuer) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	response := *object.(*authenticationv1.TokenRequest)
	i.asked, i.path = append(i.asked, response.Spec), req.Method+" "+req.URL.Path
	if i.broken {
		return nil, errTest
	}
	response.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}
	response.Status = authenticationv1.TokenRequestStatus{
		Token: fmt.Sprintf("token-%d", len(i.asked)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(i.life)),
	}
	said, err := json.Marshal(response)
	header := http.Header{"Content-Type": {"application/json"}}
	content := io.NopCloser(bytes.NewReader(said))
	return &http.Response{StatusCode: http.StatusCreated, Header: header, Body: content}, err
}

// withTokens runs a token source alongside test, which advances the fake clock with after.
func withTokens(
	t *testing.T, i *tokenIssuer, test func(t *testing.T, source *ServiceAccountToken, after func(time.Duration)),
) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := must.Get(NewServiceAccountToken(&rest.Config{Host: "https://api", Transport: i}, "ns", "account"))(t)
		if token, err := source.Token(); err == nil {
			t.Errorf("want no token before Run, got %q", token)
		}
		ctx, stop := context.WithCancel(request.Unlogged(t.Context()))
		defer stop()
		go source.Run(ctx)
		test(t, source, func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		})
	})
}

func (i *tokenIssuer) set(life time.Duration, broken bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.life, i.broken = life, broken
}

func (i *tokenIssuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.asked)
}

// checkToken expects this token, and this number of requests so far.
func (i *tokenIssuer) checkToken(t *testing.T, source *ServiceAccountToken, want string, asked int) {
	t.Helper()
	if token, err := source.Token(); err != nil || token != want || i.count() != asked {
		t.Errorf("want %s after %d requests, got %q and %v after %d", want, asked, token, err, i.count())
	}
}

func TestTokenIsRenewedInTime(t *testing.T) {
	i := &tokenIssuer{life: 24 * time.Hour}
	withTokens(t, i, func(t *testing.T, source *ServiceAccountToken, after func(time.Duration)) {
		t.Helper()
		after(0)
		i.checkToken(t, source, "token-1", 1)
		after(19 * time.Hour)
		i.checkToken(t, source, "token-1", 1) // not before four fifths of its lifetime
		i.set(time.Hour, false)               // an API server that grants less
		after(15 * time.Minute)
		i.checkToken(t, source, "token-2", 2)
		after(49 * time.Minute)
		i.checkToken(t, source, "token-3", 3)
	})
	if want := "POST /api/v1/namespaces/ns/serviceaccounts/account/token"; i.path != want {
		t.Errorf("want %s, got %s", want, i.path)
	}
	if got := i.asked[0].ExpirationSeconds; got == nil || *got != 24*60*60 {
		t.Errorf("want a day, got %v", got)
	}
}

func TestTokenFailures(t *testing.T) {
	i := &tokenIssuer{life: 24 * time.Hour, broken: true}
	withTokens(t, i, func(t *testing.T, source *ServiceAccountToken, after func(time.Duration)) {
		t.Helper()
		after(3 * tokenPause)
		if _, err := source.Token(); err == nil || i.count() != 4 {
			t.Errorf("want no token, and one asked for at once and then again, got %d requests", i.count())
		}
		i.set(24*time.Hour, false)
		after(tokenPause)
		i.checkToken(t, source, "token-5", 5)
		i.set(24*time.Hour, true)
		after(23 * time.Hour)
		i.checkToken(t, source, "token-5", i.count()) // it is used until it expires
		after(time.Hour)
		if _, err := source.Token(); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("want no token after it expired, got %v", err)
		}
	})
}

func TestRejectedTokenIsReplaced(t *testing.T) {
	i := &tokenIssuer{life: 24 * time.Hour}
	withTokens(t, i, func(t *testing.T, source *ServiceAccountToken, after func(time.Duration)) {
		t.Helper()
		after(tokenPause / 2)
		source.Reject("token-0")
		after(tokenPause)
		i.checkToken(t, source, "token-1", 1)
		for range 10 {
			source.Reject("token-1")
		}
		i.checkToken(t, source, "token-1", 1) // at most once every tokenPause
		after(tokenPause)
		i.checkToken(t, source, "token-2", 2)
	})
}
