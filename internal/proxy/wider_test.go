package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// wideReviews counts the reviews so far: those about one name or selector, and those about all names.
func (a *apiServer) wideReviews() (exact, wide int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, spec := range a.reviews {
		about := spec.ResourceAttributes
		if about.Name != "" || about.FieldSelector != nil || about.LabelSelector != nil {
			exact++
		} else {
			wide++
		}
	}
	return exact, wide
}

// wantReviews fails the test unless this many reviews were sent.
func (p *proxy) wantReviews(t *testing.T, exact, wide int) {
	t.Helper()
	if a, b := p.api.wideReviews(); a != exact || b != wide {
		t.Errorf("want %d exact reviews and %d about all names, got %d, %d", exact, wide, a, b)
	}
}

func configMap(namespace string, i int) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%d", namespace, i)
}

// getAll gets objects one after the other, and fails the test unless each response has code.
func (p *proxy) getAll(t *testing.T, client *http.Client, namespace string, from, to, code int) {
	t.Helper()
	for i := from; i < to; i++ {
		p.get(t, client, configMap(namespace, i), nil).require(t, code, "%s: want %d", configMap(namespace, i), code)
	}
}

// TestOneReviewForAllNames gets many objects by name.
func TestOneReviewForAllNames(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	client := p.as(t, "jane")
	p.getAll(t, client, "d", 0, 300, 200)
	p.wantReviews(t, 0, 1)
	p.getAll(t, client, "e", 0, 3, 200)
	p.wantReviews(t, 0, 2) // another namespace
	p.getAll(t, p.as(t, "joe"), "d", 0, 1, 200)
	p.wantReviews(t, 0, 3) // joe is another user
	p.get(t, client, "/api/v1/namespaces/d/secrets/0", nil).check(t, 200, "want 200")
	p.wantReviews(t, 0, 4) // a Secret is not a ConfigMap
	clock.Step(10*time.Second + 1)
	p.getAll(t, client, "d", 0, 100, 200)
	p.wantReviews(t, 0, 5) // a cached decision has expired
}

// TestOneReviewForAllPaths discovers the APIs, as kubectl does without a cache.
func TestOneReviewForAllPaths(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		allowed []string // paths in rules
		paths   []string
		want    int
		asked   []string
	}{
		{
			"a yes to all is a yes to each",
			[]string{"/apis", "/apis/*"},
			[]string{"/apis", "/apis/apps/v1", "/apis/batch/v1", "/apis/apps"},
			200,
			[]string{"/apis", "/apis/*"},
		},
		{
			"a yes to one is no yes to others",
			[]string{"/apis/apps/v1"},
			[]string{"/apis/batch/v1", "/apis/apps"},
			403,
			[]string{"/apis/*", "/apis/batch/v1", "/apis/apps"},
		},
		{
			"after a no to all, each is asked about",
			[]string{"/apis/apps/v1"},
			[]string{"/apis/apps/v1", "/apis/apps/v1"},
			200,
			[]string{"/apis/*", "/apis/apps/v1"},
		},
		{"a path of one part is asked about", []string{"/version/"}, []string{"/version/"}, 200, []string{"/version/"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, still(newStillClock()))
			var asked []string
			p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
				asked = append(asked, spec.NonResourceAttributes.Path)
				return slices.Contains(test.allowed, spec.NonResourceAttributes.Path), ""
			})
			client := p.as(t, "jane")
			for _, path := range test.paths {
				p.get(t, client, path, nil).check(t, test.want, "%s: want %d", path, test.want)
			}
			p.api.set(func() {
				if !slices.Equal(asked, test.asked) {
					t.Errorf("want reviews about %q, got %q", test.asked, asked)
				}
			})
		})
	}
}

// TestRevokedWiderPermissionsEnd uses a wide decision continuously: that must not extend its lifetime.
func TestRevokedWiderPermissionsEnd(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	client := p.as(t, "jane")
	p.getAll(t, client, "d", 0, 5, 200)
	p.api.allows(allowing())
	for range 9 {
		clock.Step(time.Second)
		p.getAll(t, client, "d", 0, 2, 200)
	}
	clock.Step(time.Second + 1)
	p.getAll(t, client, "d", 0, 5, 403)
}

// TestPermissionsForSingleNames has a user with permissions for single names.
func TestPermissionsForSingleNames(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, func(_ *proxy, o *Options) { o.Clock, o.AllowTTL, o.DenyTTL = clock, time.Hour, time.Minute })
	p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		name := spec.ResourceAttributes.Name
		return name != "" && name < "5", ""
	})
	client := p.as(t, "jane")
	for range 2 {
		p.getAll(t, client, "d", 0, 5, 200)
		p.getAll(t, client, "d", 5, 10, 403)
	}
	p.wantReviews(t, 10, 1)
	clock.Step(2 * time.Minute) // a name with a cached decision is not asked about in general
	p.getAll(t, client, "d", 0, 5, 200)
	p.wantReviews(t, 10, 1)
	p.get(t, client, "/api/v1/namespaces/d/configmaps", nil).check(t, 403, "want the list denied")
	p.do(t, client, "DELETE", configMap("d", 7), nil, "").check(t, 403, "want another verb denied")
}

// TestSelectorsAreAPart sends lists with selectors.
func TestSelectorsAreAPart(t *testing.T) {
	t.Parallel()
	const list = "/api/v1/namespaces/d/configmaps"
	restricted := func(i int) string { return fmt.Sprintf("%s?labelSelector=app%%3D%d", list, i) }
	t.Run("a yes to all is a yes to a part", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		client := p.as(t, "jane")
		for _, path := range []string{list, restricted(1), list + "?fieldSelector=metadata.name%3Dx", restricted(2)} {
			p.get(t, client, path, nil).check(t, 200, "%s: want 200", path)
		}
		p.wantReviews(t, 0, 1)
	})
	t.Run("a yes to parts is no yes to all", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			s := spec.ResourceAttributes.LabelSelector
			return s != nil && s.RawSelector <= "app=5", ""
		})
		client := p.as(t, "jane")
		for i := 1; i < 10; i++ {
			want := 403
			if i <= 5 {
				want = 200
			}
			p.get(t, client, restricted(i), nil).check(t, want, "%s: want %d", restricted(i), want)
		}
		p.get(t, client, list, nil).check(t, 403, "want the whole list denied")
		p.get(t, client, list+"/1", nil).check(t, 403, "want a get denied")
	})
}

// TestAuthorizerThatDeniesNames has an authorizer allow all names in general, but deny one. The API server itself
// refuses the request for that name, which arrives as that user and with no other permissions.
func TestAuthorizerThatDeniesNames(t *testing.T) {
	t.Parallel()
	p := startProxy(t, still(newStillClock()))
	serve := p.api.serve
	p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		return spec.ResourceAttributes.Name != "denied", ""
	})
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/denied") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"said by":"the API server"}`))
			return
		}
		serve(w, req)
	})
	client := p.as(t, "jane", "dev")
	methods := []string{"GET", "DELETE", "PUT"}
	for i := range 5 {
		for _, method := range methods {
			p.do(t, client, method, configMap("d", i), nil, "").require(t, 200, "want 200")
		}
	}
	for _, method := range methods {
		before := len(p.api.requests())
		got := p.do(t, client, method, "/api/v1/namespaces/d/configmaps/denied", nil, "")
		if got.Code != 403 || got.Body != `{"said by":"the API server"}` {
			t.Errorf("%s: want the API server's refusal, got %d: %s", method, got.Code, got.Body)
		}
		sent := p.api.requests()[before:]
		if len(sent) != 1 {
			t.Fatalf("%s: want one request, got %v", method, sent)
		}
		checkIdentity(t, sent[0], carried("jane", "dev", "system:authenticated"))
	}
}

// TestNotWidened asks questions that the API server does not decide again, or not in the same way: each is asked
// exactly.
func TestNotWidened(t *testing.T) {
	t.Parallel()
	t.Run("impersonation", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, still(newStillClock()))
		p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			return spec.ResourceAttributes.Name != "root" && !strings.Contains(spec.ResourceAttributes.Verb, ":"), ""
		})
		client := p.as(t, "admin")
		act := func(as string) response {
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
		for _, spec := range p.api.reviews {
			if about := spec.ResourceAttributes; strings.HasPrefix(about.Verb, "impersonate") && about.Name == "" {
				t.Errorf("want no wider question about impersonation, got %+v", about)
			}
		}
	})
	for _, subresource := range []string{"exec", "attach", "portforward"} {
		t.Run(subresource, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, still(newStillClock()))
			p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
				return spec.ResourceAttributes.Verb == "get" || spec.ResourceAttributes.Name != "db", ""
			})
			client := p.as(t, "jane")
			for pod, want := range map[string]int{"a": 200, "b": 200, "db": 403} {
				p.get(t, client, "/api/v1/namespaces/d/pods/"+pod+"/"+subresource, nil).check(t, want, "%s: want %d", pod, want)
			}
			if sent := len(p.api.requests()); sent != 2 {
				t.Errorf("want two requests sent on, got %d", sent)
			}
		})
	}
	t.Run("anonymous users", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t)
		p.api.anonymous = func(string) int { return http.StatusOK }
		p.start(t, still(newStillClock()))
		p.getAll(t, p.client(t, nil), "d", 0, 5, 200)
		p.wantReviews(t, 5, 0)
	})
}
