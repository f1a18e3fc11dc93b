package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
)

// wideReviews counts the reviews so far: those that ask about one name or selector, those that ask about all names in a
// namespace, and those about all names everywhere.
func (a *apiServer) wideReviews() (exact, inNamespace, everywhere int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, spec := range a.reviews {
		switch about := spec.ResourceAttributes; {
		case about.Name != "" || about.FieldSelector != nil || about.LabelSelector != nil:
			exact++
		case about.Namespace != "":
			inNamespace++
		default:
			everywhere++
		}
	}
	return exact, inNamespace, everywhere
}

// settle waits until no review is under way.
func (p *proxy) settle(t *testing.T) {
	t.Helper()
	eventually(t, func() bool { return p.taken(admission.AccessReview) == 0 })
}

// wantReviews fails the test unless so many reviews were asked for.
func (p *proxy) wantReviews(t *testing.T, exact, inNamespace, everywhere int) {
	t.Helper()
	p.settle(t)
	a, b, c := p.api.wideReviews()
	if a != exact || b != inNamespace || c != everywhere {
		t.Errorf("want %d exact reviews, %d about a namespace and %d about all namespaces, got %d, %d, %d",
			exact, inNamespace, everywhere, a, b, c)
	}
}

func configMap(namespace string, i int) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%d", namespace, i)
}

// getAll gets objects one after the other, and fails the test unless each is answered with code.
func (p *proxy) getAll(t *testing.T, client *http.Client, namespace string, from, to, code int) {
	t.Helper()
	for i := from; i < to; i++ {
		if got := p.get(t, client, configMap(namespace, i), nil); got.Code != code {
			t.Fatalf("%s: want %d, got %d: %s", configMap(namespace, i), code, got.Code, got.Body)
		}
		p.settle(t)
	}
}

// TestOneReviewForAllNames gets many objects by name.
func TestOneReviewForAllNames(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	client := p.as(t, "jane")
	p.getAll(t, client, "d", 0, 1, 200)
	p.wantReviews(t, 1, 0, 0) // one object alone costs one review, as ever
	p.getAll(t, client, "d", 1, 300, 200)
	p.wantReviews(t, 3, 1, 0)
	for i := range 50 { // a few more namespaces, and then any
		p.getAll(t, client, fmt.Sprintf("n%d", i), 0, 3, 200)
	}
	p.wantReviews(t, 3+3+3, 1, 1)
	p.getAll(t, p.as(t, "joe"), "d", 0, 1, 200) // joe is another user
	p.wantReviews(t, 10, 1, 1)
	if got := p.get(t, client, "/api/v1/namespaces/d/secrets/0", nil); got.Code != 200 {
		t.Errorf("want 200, got %d", got.Code)
	}
	p.wantReviews(t, 11, 1, 1) // and a Secret no ConfigMap
	// When the answers are too old, the wider question is asked at once.
	clock.Step(10*time.Second + 1)
	p.getAll(t, client, "x", 0, 100, 200)
	p.wantReviews(t, 11, 1, 2)
}

// TestManyNamesAtOnce has the reviews of names take long. Once all names are known to be allowed, no request waits.
func TestManyNamesAtOnce(t *testing.T) {
	t.Parallel()
	p := startProxy(t, still(newStillClock()))
	client := p.as(t, "jane")
	p.getAll(t, client, "d", 0, 3, 200)
	release := make(chan struct{})
	p.api.set(func() {
		p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			if spec.ResourceAttributes.Name != "" {
				<-release
			}
			return true, ""
		}
	})
	defer close(release)
	p.getAll(t, client, "d", 3, 4, 200)
	var all []<-chan *answer
	for i := range 60 {
		all = append(all, p.begin(t.Context(), client, "GET", configMap("d", 4+i), nil, nil))
	}
	if got := codes(all); got[200] != 60 {
		t.Errorf("want all answered, got %v", got)
	}
	p.wantReviews(t, 3, 1, 0)
}

// TestRevokedWiderPermissionsEnd uses a wider answer all the time: that does not make it last.
func TestRevokedWiderPermissionsEnd(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	client := p.as(t, "jane")
	for _, namespace := range []string{"d", "e", "f", "g"} {
		p.getAll(t, client, namespace, 0, 5, 200)
	}
	p.wantReviews(t, 3+3+3, 3, 1)
	p.api.set(func() { p.api.allow = allowing() })
	for range 9 {
		clock.Step(time.Second)
		p.getAll(t, client, "d", 0, 2, 200)
		p.getAll(t, client, "h", 0, 2, 200)
	}
	clock.Step(time.Second + 1)
	p.getAll(t, client, "d", 0, 5, 403)
	p.getAll(t, client, "i", 0, 5, 403)
}

// TestRightsToSingleNames is about a user whose rights name the objects.
func TestRightsToSingleNames(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, func(_ *proxy, o *Options) { o.Clock, o.AllowTTL, o.DenyTTL = clock, time.Hour, time.Hour })
	p.api.set(func() {
		p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			name := spec.ResourceAttributes.Name
			return name != "" && name < "5", ""
		}
	})
	client := p.as(t, "jane")
	p.getAll(t, client, "d", 0, 5, 200)
	p.wantReviews(t, 5, 1, 0)
	p.getAll(t, client, "d", 5, 10, 403)
	p.getAll(t, client, "d", 0, 5, 200)
	p.getAll(t, client, "d", 5, 10, 403)
	p.wantReviews(t, 10, 1, 0) // the wider question was asked once
	if got := p.get(t, client, "/api/v1/namespaces/d/configmaps", nil); got.Code != 403 {
		t.Errorf("want the list denied, got %d", got.Code)
	}
	if got := p.do(t, client, "DELETE", configMap("d", 7), nil, ""); got.Code != 403 {
		t.Errorf("want another verb denied, got %d", got.Code)
	}
	p.api.set(func() { p.api.reviews = nil })
	clock.Step(30*time.Second + 1)
	p.getAll(t, client, "d", 10, 40, 200) // names that begin with 1, 2 or 3
	p.wantReviews(t, 30, 1, 0)            // and once more, after some time
}

// TestAskedOnceAboutEverything has a user with no rights at all ask about many things.
func TestAskedOnceAboutEverything(t *testing.T) {
	t.Parallel()
	p := startProxy(t, still(newStillClock()))
	p.api.set(func() { p.api.allow = allowing() })
	client := p.as(t, "jane")
	for i := range 5 {
		p.getAll(t, client, fmt.Sprintf("n%d", i), 0, 20, 403)
	}
	p.wantReviews(t, 100, 0, 0) // what is denied in part is not allowed as a whole
}

// TestReviewOfAllNamesFails has only the exact questions answered.
func TestReviewOfAllNamesFails(t *testing.T) {
	t.Parallel()
	p := startProxy(t, still(newStillClock()))
	p.api.set(func() {
		p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			if spec.ResourceAttributes.Name == "" {
				panic(http.ErrAbortHandler)
			}
			return true, ""
		}
	})
	p.getAll(t, p.as(t, "jane"), "d", 0, 30, 200)
	p.wantReviews(t, 30, 1, 0)
}

// TestSelectorsAreAPart asks about restricted lists.
func TestSelectorsAreAPart(t *testing.T) {
	t.Parallel()
	const list = "/api/v1/namespaces/d/configmaps"
	restricted := func(i int) string { return fmt.Sprintf("%s?labelSelector=app%%3D%d", list, i) }
	t.Run("a yes to all is a yes to a part", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		client := p.as(t, "jane")
		for _, path := range []string{list, restricted(1), list + "?fieldSelector=metadata.name%3Dx", restricted(2)} {
			if got := p.get(t, client, path, nil); got.Code != 200 {
				t.Errorf("%s: want 200, got %d", path, got.Code)
			}
		}
		p.wantReviews(t, 0, 1, 0)
	})
	t.Run("a yes to parts is no yes to all", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		p.api.set(func() {
			p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
				s := spec.ResourceAttributes.LabelSelector
				return s != nil && slices.Contains([]string{"1", "2", "3", "4", "5"}, s.Requirements[0].Values[0]), ""
			}
		})
		client := p.as(t, "jane")
		for i := 1; i < 10; i++ {
			want := 403
			if i <= 5 {
				want = 200
			}
			if got := p.get(t, client, restricted(i), nil); got.Code != want {
				t.Errorf("%s: want %d, got %d", restricted(i), want, got.Code)
			}
			p.settle(t)
		}
		p.wantReviews(t, 9, 1, 0)
		if got := p.get(t, client, list, nil); got.Code != 403 {
			t.Errorf("want the whole list denied, got %d", got.Code)
		}
		if got := p.get(t, client, list+"/1", nil); got.Code != 403 {
			t.Errorf("want a get denied, got %d", got.Code)
		}
	})
}

// deniesName allows everything but one name.
func deniesName(name string) func(authorizationv1.SubjectAccessReviewSpec) (bool, string) {
	return func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		return spec.ResourceAttributes.Name != name, ""
	}
}

// TestAuthorizerThatDeniesNames has an authorizer say that all is allowed, and deny one name all the same. The request
// about that name is refused by the API server itself, to which it comes as that user's and with nothing else.
func TestAuthorizerThatDeniesNames(t *testing.T) {
	t.Parallel()
	denied := func(p *proxy) {
		p.api.set(func() {
			p.api.allow = deniesName("denied")
			serve := p.api.serve
			p.api.serve = func(w http.ResponseWriter, req *http.Request) {
				if strings.HasSuffix(req.URL.Path, "/denied") {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusForbidden)
					_, _ = w.Write([]byte(`{"said by":"the API server"}`))
					return
				}
				serve(w, req)
			}
		})
	}
	const path = "/api/v1/namespaces/d/configmaps/denied"
	t.Run("the API server refuses it", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		denied(p)
		client := p.as(t, "jane", "dev")
		for i := range 5 {
			for _, method := range []string{"GET", "DELETE", "PUT"} {
				if got := p.do(t, client, method, configMap("d", i), nil, ""); got.Code != 200 {
					t.Fatalf("want 200, got %d", got.Code)
				}
				p.settle(t)
			}
		}
		for _, method := range []string{"GET", "DELETE", "PUT"} {
			before := len(p.api.requests())
			got := p.do(t, client, method, path, nil, "")
			if got.Code != 403 || got.Body != `{"said by":"the API server"}` {
				t.Errorf("%s: want the API server's refusal, got %d: %s", method, got.Code, got.Body)
			}
			sent := p.api.requests()[before:]
			if len(sent) != 1 || sent[0].Header.Get("Impersonate-User") != "jane" ||
				!slices.Equal(sent[0].Header["Impersonate-Group"], []string{"dev", "system:authenticated"}) {
				t.Errorf("%s: want one request as jane, got %v", method, sent)
			}
		}
	})
	t.Run("a denial that is known counts more", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		denied(p)
		client := p.as(t, "jane")
		p.getAll(t, client, "d", 0, 1, 200)
		if got := p.get(t, client, path, nil); got.Code != 403 || !strings.Contains(got.Body, identity.DecisionMadeBy) {
			t.Errorf("want our own 403, got %d: %s", got.Code, got.Body)
		}
		p.settle(t)
		// An answer to the wider question that comes now answers no other.
		if got := p.get(t, client, "/api/v1/namespaces/d/configmaps", nil); got.Code != 200 {
			t.Errorf("want 200, got %d", got.Code)
		}
		p.api.set(func() { p.api.reviews = nil })
		p.getAll(t, client, "d", 1, 20, 200)
		p.wantReviews(t, 19, 0, 0)
		if got := p.get(t, client, path, nil); got.Code != 403 || !strings.Contains(got.Body, identity.DecisionMadeBy) {
			t.Errorf("want our own 403, got %d: %s", got.Code, got.Body)
		}
	})
}

// TestNotWidened asks about what the API server does not decide again, or not in the same way: each is asked exactly.
func TestNotWidened(t *testing.T) {
	t.Parallel()
	t.Run("impersonation", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		p.api.set(func() {
			p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
				return spec.ResourceAttributes.Name != "root" && !strings.Contains(spec.ResourceAttributes.Verb, ":"), ""
			}
		})
		client := p.as(t, "admin")
		act := func(as string) answer {
			return p.get(t, client, "/api/v1/nodes/n", http.Header{"Impersonate-User": {as}})
		}
		for i := range 10 {
			if got := act(fmt.Sprintf("user-%d", i)); got.Code != 200 {
				t.Fatalf("want 200, got %d: %s", got.Code, got.Body)
			}
		}
		before := len(p.api.requests())
		if got := act("root"); got.Code != 403 || len(p.api.requests()) != before {
			t.Errorf("want 403 and nothing sent on, got %d: %s", got.Code, got.Body)
		}
		p.settle(t)
		for _, spec := range p.api.reviews {
			if about := spec.ResourceAttributes; strings.HasPrefix(about.Verb, "impersonate") && about.Name == "" {
				t.Errorf("want no wider question about impersonation, got %+v", about)
			}
		}
	})
	for name, path := range map[string]string{
		"connections into pods": "/api/v1/namespaces/d/pods/%d/portforward",
		"proxy of a service":    "/api/v1/namespaces/d/services/%d/proxy/",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, still(newStillClock()))
			for i := range 5 {
				if got := p.get(t, p.as(t, "jane"), fmt.Sprintf(path, i), nil); got.Code != 200 {
					t.Fatalf("want 200, got %d: %s", got.Code, got.Body)
				}
			}
			p.settle(t)
			if _, a, b := p.api.wideReviews(); a+b != 0 {
				t.Errorf("want no wider question, got %d", a+b)
			}
		})
	}
	t.Run("anonymous users", func(t *testing.T) {
		t.Parallel()
		api := newAPIServer(t, "HTTP/2.0")
		api.anonymous = func(string) int { return http.StatusOK }
		p := newProxyTo(t, api)
		p.start(t, still(newStillClock()))
		p.getAll(t, p.client(t, nil), "d", 0, 5, 200)
		p.wantReviews(t, 5, 0, 0)
	})
}

// TestWiderQuestionsTakeNoTurns counts the turns of a client that reads many names one after the other.
func TestWiderQuestionsTakeNoTurns(t *testing.T) {
	t.Parallel()
	const fit = 16
	p := startProxy(t, still(newStillClock()))
	b := p.block(is("slow"))
	var slow []<-chan *answer
	for i := range fit {
		slow = append(slow, p.begin(t.Context(), p.as(t, "slow"), "GET", configMap("d", i), nil, nil))
	}
	eventually(t, func() bool { return b.now.Load() == fit })
	var most atomic.Int64
	p.api.set(func() {
		during := p.api.during
		p.api.during = func(ctx context.Context, who string) {
			most.Store(max(most.Load(), int64(p.taken(admission.AccessReview))))
			during(ctx, who)
		}
	})
	client := p.as(t, "jane")
	for i := range 30 {
		if got := p.get(t, client, configMap("d", i), nil); got.Code != 200 {
			t.Fatalf("want 200, got %d", got.Code)
		}
	}
	close(b.release)
	if got := codes(slow); got[200] != fit {
		t.Errorf("want all answered, got %v", got)
	}
	p.wantReviews(t, fit+3, 1, 0)
	if most := most.Load(); most != fit+1 {
		t.Errorf("want one turn taken beside those, got %d in all", most)
	}
	eventually(t, func() bool { return p.taken(admission.AccessReview) == 0 })
}
