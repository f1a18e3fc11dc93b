package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/work"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// BenchmarkChain measures what the proxy itself adds to a request, without TLS and network on either side: the whole
// chain with warm caches, and an API server that answers at once.
func BenchmarkChain(b *testing.B) {
	const body = `{"kind":"ConfigMap"}`
	for name, header := range map[string]http.Header{
		"certificate": {},
		"token":       {"Authorization": {"Bearer good"}},
	} {
		b.Run(name, func(b *testing.B) {
			h, tlsState := newChainForBench(b, body)
			if name == "token" {
				tlsState = nil
			}
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest(http.MethodGet, "https://proxy/api/v1/namespaces/default/configmaps/one", nil)
				req.TLS = tlsState
				req.Header.Set("User-Agent", "kubectl/v1.37.2")
				req.Header.Set("Accept", "application/json")
				for k, v := range header {
					req.Header[k] = v
				}
				w := httptest.NewRecorder()
				done := make(chan struct{})
				go func() { // as net/http does
					defer close(done)
					h.ServeHTTP(w, req)
				}()
				<-done
				if w.Code != http.StatusOK {
					b.Fatalf("want 200, got %d: %s", w.Code, w.Body)
				}
			}
		})
	}
}

// answering is an API server that gives the same answer to all requests.
type answering string

func (answering) Address() *url.URL     { return &url.URL{Scheme: "https", Host: "api"} }
func (answering) Counts() *relay.Counts { return &relay.Counts{} }

func (a answering) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/2.0", ProtoMajor: 2, Request: req,
		Header:        http.Header{"Content-Type": {"application/json"}, "Audit-Id": {"1"}},
		Body:          io.NopCloser(strings.NewReader(string(a))),
		ContentLength: int64(len(a)),
	}, nil
}

var benchUser = authenticationv1.UserInfo{Username: "jane", Groups: []string{"dev", "ops"}}

func newChainForBench(b *testing.B, body string) (http.Handler, *tls.ConnectionState) {
	b.Helper()
	now := time.Now()
	ca, err := certs.NewCA("signer", now, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	pair, err := ca.IssueClient(certs.ClientIdentity{Username: "jane", Groups: []string{"dev", "ops"}}, now, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	block, _ := pem.Decode(pair.CertPEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		b.Fatal(err)
	}
	store := clienttrust.NewStore(ca.CertPEM, corev1client.New(nil), clock.RealClock{}, klog.Background())
	var limits work.Limits
	limits.Complete()
	turns := work.NewAll(limits, 2, budget.New(budget.Defaults(), nil))
	tokens := identity.NewTokenReviewer(func(_ context.Context, _, result runtime.Object) error {
		result.(*authenticationv1.TokenReview).Status = authenticationv1.TokenReviewStatus{
			Authenticated: true,
			User:          benchUser,
		}
		return nil
	}, turns.Tokens, clock.RealClock{})
	s := request.NewSerializer()
	f := relay.NewHandler(relay.Options{
		Upstream:            answering(body),
		Token:               &staticToken{token: upstreamToken},
		Version:             relay.NewAPIVersion(nil),
		TokenAlone:          identity.TokenAlone(tokens),
		HoldUntilAuthorized: identity.HoldUntilAuthorized,
		Work:                turns,
		Failed:              logs.NewSampler(""),
		Serializer:          s,
	})
	c := &chain{
		serializer: s,
		drain:      newDrain(),
		metrics:    NewMetrics(),
		trust:      store,
		authenticator: identity.NewAuthenticator(
			store,
			tokens,
			&identity.Anonymous{},
			turns.Certificates,
			logs.NewSampler(""),
		),
		authorizer: identity.NewAccessReviewer(func(_ context.Context, _, result runtime.Object) error {
			result.(*authorizationv1.SubjectAccessReview).Status.Allowed = true
			return nil
		}, turns.Access, clock.RealClock{}, 10*time.Second, time.Second),
		logins:    turns.Logins,
		forwarded: turns.Forwarded,
		long:      relay.NewLongAnswers(turns.Long, clock.RealClock{}),
		forward:   f,
		clock:     clock.RealClock{},
		allowTTL:  10 * time.Second,
		readers:   &slowReaders{timeout: writeTimeout},
	}
	return c.handler(), &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
}
