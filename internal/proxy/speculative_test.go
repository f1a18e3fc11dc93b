package proxy

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
)

const aConfigMap = "/api/v1/namespaces/d/configmaps/one"

// reviewsUntil makes the reviews of reads wait until the channel is closed, and then allow them or not.
func (p *proxy) reviewsUntil(verdict <-chan struct{}, allowed bool) {
	p.api.set(func() {
		p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			if strings.HasPrefix(asked(spec), "impersonate") {
				return true, ""
			}
			<-verdict
			return allowed, ""
		}
	})
}

// TestSpeculativeReads has the API server answer a read while its review is still under way.
func TestSpeculativeReads(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, path string
		header     http.Header
	}{
		{"get", aConfigMap, nil},
		{"list", "/api/v1/configmaps", nil},
		{"get in an API group", "/apis/apps/v1/namespaces/d/deployments/one", nil},
		{"get while impersonating", aConfigMap, http.Header{"Impersonate-User": {"joe"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			verdict, served := make(chan struct{}), make(chan struct{})
			p.reviewsUntil(verdict, true)
			p.api.set(func() {
				serve, once := p.api.serve, sync.Once{}
				p.api.serve = func(w http.ResponseWriter, req *http.Request) {
					serve(w, req)
					once.Do(func() { close(served) })
				}
			})
			answered := make(chan answer, 1)
			client := p.as(t, "jane")
			go func() {
				defer close(answered)
				answered <- p.get(t, client, test.path, test.header)
			}()
			waitFor(t, served, "the request at the API server, before its review was answered")
			select {
			case got := <-answered:
				t.Errorf("want the answer held back, got %d: %s", got.Code, got.Body)
			case <-time.After(50 * time.Millisecond): // an answer that is not held back is here by now
			}
			close(verdict)
			if got := <-answered; got.Code != 200 || got.Body != `{"from":"the API server"}` {
				t.Errorf("want the API server's answer, got %d: %s", got.Code, got.Body)
			}
			want := "jane"
			if test.header != nil {
				want = "joe"
			}
			if got := p.api.requests(); len(got) != 1 || got[0].Header.Get("Impersonate-User") != want {
				t.Errorf("want one request as %s, got %v", want, got)
			}
			if got := p.get(t, client, test.path, test.header); got.Code != 200 || len(p.api.requests()) != 2 {
				t.Errorf("want the known decision used again, got %d", got.Code)
			}
		})
	}
}

// TestDeniedReadShowsNothing denies reads that the API server has answered, is answering, or does not answer.
func TestDeniedReadShowsNothing(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(w http.ResponseWriter, req *http.Request, verdict chan<- struct{}){
		"answered": func(w http.ResponseWriter, _ *http.Request, verdict chan<- struct{}) {
			w.Header().Set("X-From", "the API server")
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "secret")
			close(verdict)
		},
		"streaming": func(w http.ResponseWriter, req *http.Request, verdict chan<- struct{}) {
			w.Header().Set("X-From", "the API server")
			_, _ = io.WriteString(w, "secret")
			_ = http.NewResponseController(w).Flush()
			close(verdict)
			<-req.Context().Done()
		},
		"with hints before the answer": func(w http.ResponseWriter, req *http.Request, verdict chan<- struct{}) {
			w.Header().Set("Link", "</secret>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			close(verdict)
			<-req.Context().Done()
		},
		"silent": func(_ http.ResponseWriter, req *http.Request, verdict chan<- struct{}) {
			close(verdict)
			<-req.Context().Done()
		},
		"unauthorized": func(w http.ResponseWriter, _ *http.Request, verdict chan<- struct{}) {
			w.WriteHeader(http.StatusUnauthorized)
			close(verdict)
		},
		"broken": func(_ http.ResponseWriter, _ *http.Request, verdict chan<- struct{}) {
			close(verdict)
			panic(http.ErrAbortHandler)
		},
	} {
		for _, query := range []string{"", "?watch=1"} {
			t.Run(name+query, func(t *testing.T) {
				t.Parallel()
				p := startProxy(t, func(_ *proxy, o *Options) { o.DenyTTL = time.Hour })
				verdict, ended := make(chan struct{}), make(chan struct{})
				p.reviewsUntil(verdict, false)
				p.api.set(func() {
					var sent atomic.Int32
					p.api.serve = func(w http.ResponseWriter, req *http.Request) {
						if sent.Add(1) > 1 {
							panic(http.ErrAbortHandler)
						}
						defer close(ended)
						serve(w, req, verdict)
					}
				})
				client := p.as(t, "jane")
				var hints atomic.Int32
				got := p.getTraced(t, client, aConfigMap+query, &httptrace.ClientTrace{
					Got1xxResponse: func(int, textproto.MIMEHeader) error { hints.Add(1); return nil },
				})
				waitFor(t, ended, "the end of the request at the API server")
				// The denial is known now, so this one is not sent.
				want := p.get(t, client, aConfigMap+query, nil)
				for _, one := range []*answer{&got, &want} {
					one.Header.Del("Date")
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("answer to a denied read (-known +beside):\n%s", diff)
				}
				if got.Code != 403 || !strings.Contains(got.Body, identity.DecisionMadeBy) {
					t.Errorf("want a 403 of our own, got %d: %s", got.Code, got.Body)
				}
				if n := hints.Load(); n != 0 {
					t.Errorf("want no informational answers, got %d", n)
				}
				// A read whose connection breaks before an answer is repeated once, if the connection was used before.
				if n := len(p.api.requests()); n != 1 && (name != "broken" || n != 2) {
					t.Errorf("want one request sent, got %d", n)
				}
				p.token.mu.Lock()
				defer p.token.mu.Unlock()
				if len(p.token.rejected) != 0 {
					t.Error("a denied read's answer counted against the credential")
				}
			})
		}
	}
}

// TestDenialBeforeEveryOtherRefusal gives a user who cannot be impersonated first of all what is said to every denied
// one.
func TestDenialBeforeEveryOtherRefusal(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = allowing() })
	p.token.set("")
	if got := p.get(t, p.as(t, "jane"), aConfigMap, nil); got.Code != 403 || len(p.api.requests()) != 0 {
		t.Errorf("want 403 and nothing sent on, got %d: %s", got.Code, got.Body)
	}
}

// TestSpeculativeWatch streams once it is allowed.
func TestSpeculativeWatch(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	verdict, more := make(chan struct{}), make(chan struct{})
	p.reviewsUntil(verdict, true)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "first\n")
			_ = http.NewResponseController(w).Flush()
			close(verdict)
			<-more
			_, _ = io.WriteString(w, "second\n")
		}
	})
	req, err := http.NewRequestWithContext(
		t.Context(),
		http.MethodGet,
		"https://"+p.address+"/api/v1/configmaps?watch=1",
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.as(t, "jane").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	first := make([]byte, len("first\n"))
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "first\n" {
		t.Fatalf("want the first event while the watch goes on, got %q, %v", first, err)
	}
	close(more)
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "second\n" {
		t.Errorf("want the second event and the end, got %q, %v", rest, err)
	}
}

// TestOnlyPlainReadsAreSpeculative denies what could act: nothing of it may be sent.
func TestOnlyPlainReadsAreSpeculative(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, method, path, body string
	}{
		{"create", "POST", "/api/v1/namespaces/d/configmaps", "{}"},
		{"delete", "DELETE", aConfigMap, ""},
		{"patch", "PATCH", aConfigMap, "{}"},
		{"logs", "GET", "/api/v1/namespaces/d/pods/x/log", ""},
		{"status", "GET", "/api/v1/namespaces/d/pods/x/status", ""},
		{"exec", "GET", "/api/v1/namespaces/d/pods/x/exec?command=true", ""},
		{"port-forward", "GET", "/api/v1/namespaces/d/pods/x/portforward", ""},
		{"proxy of a pod", "GET", "/api/v1/namespaces/d/pods/x/proxy/", ""},
		{"proxy of a service", "GET", "/api/v1/namespaces/d/services/x/proxy/a", ""},
		{"proxy of a node", "GET", "/api/v1/nodes/x/proxy/run", ""},
		{"proxy in the old way", "GET", "/api/v1/proxy/nodes/x", ""},
		{"a path", "GET", "/metrics", ""},
		{"get with a body", "GET", aConfigMap, "{}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() { p.api.allow = allowing() })
			got := p.do(t, p.as(t, "jane"), test.method, test.path, nil, test.body)
			if got.Code != 403 || len(p.api.requests()) != 0 {
				t.Errorf("want 403 and nothing sent on, got %d and %d requests: %s", got.Code, len(p.api.requests()), got.Body)
			}
		})
	}
}

// TestNestedImpersonationComesFirst sends nothing for a client that may not impersonate, also when it only reads.
func TestNestedImpersonationComesFirst(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = allowing("get configmaps") })
	got := p.get(t, p.as(t, "jane"), aConfigMap, http.Header{"Impersonate-User": {"joe"}})
	if got.Code != 403 || !strings.Contains(got.Body, "impersonate") || len(p.api.requests()) != 0 {
		t.Errorf("want 403 and nothing sent on, got %d and %d requests: %s", got.Code, len(p.api.requests()), got.Body)
	}
}

// TestReadWhoseReviewFails shows nothing either.
func TestReadWhoseReviewFails(t *testing.T) {
	t.Parallel()
	for failing, want := range map[int]int{500: 500, 403: 500, 503: 503, 429: 503} {
		t.Run(http.StatusText(failing), func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() { p.api.failing = failing })
			got := p.get(t, p.as(t, "jane"), aConfigMap, nil)
			if got.Code != want || strings.Contains(got.Body, "from") || (want == 503) != (got.Header.Get("Retry-After") != "") {
				t.Errorf("want %d, got %d: %s", want, got.Code, got.Body)
			}
		})
	}
}

func (p *proxy) getTraced(t *testing.T, client *http.Client, path string, trace *httptrace.ClientTrace) answer {
	t.Helper()
	traced := *client
	traced.Transport = roundTripper(func(req *http.Request) (*http.Response, error) {
		return client.Transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	})
	return p.get(t, &traced, path, nil)
}

func waitFor(t *testing.T, happened <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(20 * time.Second):
		t.Fatalf("waited in vain for %s", what)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
