package proxy

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
)

const (
	agentToken    = "the-agents-own-token"
	upstreamToken = "the-upstream-token"
)

// apiServer is a fake API server. It serves the agent's reviews as a test defines, and records the requests that the
// proxy forwards.
type apiServer struct {
	*httptest.Server

	mu        sync.Mutex
	recorded  []*recorded
	tokens    map[string]authenticationv1.UserInfo
	allow     func(authorizationv1.SubjectAccessReviewSpec) (bool, string)
	serve     http.HandlerFunc
	anonymous func(path string) int
	configMap map[string]string                       // nil when there is none
	during    func(ctx context.Context, about string) // called during each review about a user or a token, if not nil
	reviews   []authorizationv1.SubjectAccessReviewSpec
	reviewed  []string // tokens
	failing   int      // status of all reviews, if not zero; a 429 has a Retry-After
	asked     int      // reviews, including failed ones

	arrived atomic.Int64 // forwarded requests, whose body may not have arrived yet
}

// recorded is a request as it arrived.
type recorded struct {
	Method, URI, Host, Proto string
	Header, Trailer          http.Header
	Body                     string
	Broken                   bool // the body broke off
}

// newAPIServer starts an API server that speaks protocol: "HTTP/2.0" or "HTTP/1.1".
func newAPIServer(tb testing.TB, protocol string) *apiServer {
	tb.Helper()
	a := &apiServer{
		tokens:    map[string]authenticationv1.UserInfo{},
		allow:     func(authorizationv1.SubjectAccessReviewSpec) (bool, string) { return true, "" },
		anonymous: func(string) int { return http.StatusForbidden },
		configMap: map[string]string{},
		serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"from":"the API server"}`)
		},
	}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(a.handle))
	a.EnableHTTP2 = protocol == "HTTP/2.0"
	a.Listener = shortQueues{a.Listener}
	a.StartTLS()
	tb.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// shortQueues limits the kernel's receive queue of connections from the API server, so that a test sees what the proxy
// reads.
type shortQueues struct{ net.Listener }

func (l shortQueues) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(32 << 10)
	}
	return conn, err
}

func (a *apiServer) config(token string) *rest.Config {
	return &rest.Config{
		Host:        a.URL,
		BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}),
		},
	}
}

func (a *apiServer) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// serves, allows and duringReviews change what the API server does from now on.
func (a *apiServer) serves(serve http.HandlerFunc) { a.set(func() { a.serve = serve }) }

func (a *apiServer) allows(allow func(authorizationv1.SubjectAccessReviewSpec) (bool, string)) {
	a.set(func() { a.allow = allow })
}

func (a *apiServer) duringReviews(during func(ctx context.Context, about string)) {
	a.set(func() { a.during = during })
}

// requests returns the requests that the proxy has forwarded so far.
func (a *apiServer) requests() []*recorded {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.recorded)
}

func (a *apiServer) checkNothingSent(t *testing.T) {
	t.Helper()
	if sent := a.requests(); len(sent) != 0 {
		t.Errorf("want nothing sent on, got %d requests: %s %s", len(sent), sent[0].Method, sent[0].URI)
	}
}

// reviewsAsked returns the number of reviews so far, including failed ones.
func (a *apiServer) reviewsAsked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

func (a *apiServer) handle(w http.ResponseWriter, req *http.Request) {
	switch req.Header.Get("Authorization") {
	case "":
		a.mu.Lock()
		code := a.anonymous(req.URL.Path)
		a.mu.Unlock()
		w.WriteHeader(code)
	case "Bearer " + agentToken:
		a.serveAgent(w, req)
	default:
		a.arrived.Add(1)
		one := &recorded{
			Method: req.Method, URI: req.RequestURI, Host: req.Host, Proto: req.Proto, Header: req.Header.Clone(),
		}
		if !strings.Contains(strings.ToLower(req.Header.Get("Connection")), "upgrade") && req.ContentLength != 0 {
			body, err := io.ReadAll(req.Body)
			one.Body, one.Broken = string(body), err != nil
			req.Body = io.NopCloser(strings.NewReader(one.Body))
			one.Trailer = req.Trailer.Clone()
		}
		a.mu.Lock()
		a.recorded = append(a.recorded, one)
		serve := a.serve
		a.mu.Unlock()
		serve(w, req)
	}
}

func (a *apiServer) serveAgent(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	decode := func(into interface {
		metav1.Object
		Unmarshal([]byte) error
	},
	) {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			panic(err)
		}
		text, _ := json.Marshal(object)
		if err := json.Unmarshal(text, into); err != nil {
			panic(err)
		}
	}
	isReview := strings.HasSuffix(req.URL.Path, "reviews")
	a.mu.Lock()
	failing, published := a.failing, a.configMap != nil
	if isReview {
		a.asked++
	}
	a.mu.Unlock()
	if failing == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	switch {
	case isReview && failing != 0:
		writeJSON(w, failing, metav1.Status{Status: metav1.StatusFailure, Code: int32(failing), Message: "broken"})
	case strings.HasSuffix(req.URL.Path, "/tokenreviews"):
		var review authenticationv1.TokenReview
		decode(&review)
		a.mu.Lock()
		a.reviewed = append(a.reviewed, review.Spec.Token)
		who, ok := a.tokens[review.Spec.Token]
		during := a.during
		a.mu.Unlock()
		if during != nil {
			during(req.Context(), review.Spec.Token)
		}
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: who}
		if !ok {
			review.Status.Error = "unknown token " + review.Spec.Token
		}
		review.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
		writeJSON(w, http.StatusCreated, review)
	case strings.HasSuffix(req.URL.Path, "/subjectaccessreviews"):
		var review authorizationv1.SubjectAccessReview
		decode(&review)
		a.mu.Lock()
		a.reviews = append(a.reviews, review.Spec)
		allow, during := a.allow, a.during
		a.mu.Unlock()
		if during != nil {
			during(req.Context(), review.Spec.User)
		}
		review.Status.Allowed, review.Status.Reason = allow(review.Spec)
		review.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}
		writeJSON(w, http.StatusCreated, review)
	case published && strings.HasSuffix(req.URL.Path, "/configmaps/"+clienttrust.ConfigMap):
		writeJSON(w, http.StatusOK, a.theConfigMap())
	default:
		writeJSON(w, http.StatusNotFound,
			metav1.Status{Status: metav1.StatusFailure, Code: 404, Reason: metav1.StatusReasonNotFound})
	}
}

func (a *apiServer) theConfigMap() corev1.ConfigMap {
	a.mu.Lock()
	defer a.mu.Unlock()
	return corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: clienttrust.ConfigMap, ResourceVersion: "2"},
		Data:       maps.Clone(a.configMap),
	}
}

func writeJSON(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}
