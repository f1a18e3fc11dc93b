package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
)

const aConfigMap = "/api/v1/namespaces/d/configmaps/one"

// allowing returns an authorizer that allows "verb resource[/subresource]" and paths.
func allowing(allowed ...string) func(authorizationv1.SubjectAccessReviewSpec) (bool, string) {
	return func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		return slices.Contains(allowed, asked(spec)), ""
	}
}

// noImpersonation allows everything but impersonation.
func noImpersonation(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
	return spec.ResourceAttributes == nil || !strings.HasPrefix(spec.ResourceAttributes.Verb, "impersonate"), ""
}

func asked(spec authorizationv1.SubjectAccessReviewSpec) string {
	if r := spec.ResourceAttributes; r != nil {
		text := r.Verb + " " + r.Resource
		if r.Subresource != "" {
			text += "/" + r.Subresource
		}
		return text
	}
	return spec.NonResourceAttributes.Verb + " " + spec.NonResourceAttributes.Path
}

func TestDenials(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			if spec.ResourceAttributes != nil && spec.ResourceAttributes.Resource == "secrets" {
				return false, "no secrets on Sundays"
			}
			return false, ""
		}
	})
	const by = "decision made by impersonation-proxy.concierge.pinniped.dev"
	client := p.as(t, "jane")
	for _, test := range []struct {
		name, method, path, want string
	}{
		{
			"of a resource", "GET", "/api/v1/namespaces/kube-system/pods/x",
			`pods "x" is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "kube-system": ` + by,
		},
		{
			"of a path", "GET", "/healthz/log",
			`forbidden: User "jane" cannot get path "/healthz/log": ` + by,
		},
		{
			"with a reason", "DELETE", "/api/v1/namespaces/d/secrets",
			`secrets is forbidden: User "jane" cannot deletecollection resource "secrets" in API group "" in the namespace "d": no secrets on Sundays, ` + by,
		},
		{
			"of an unknown verb", "OPTIONS", "/api/v1/nodes/n",
			`nodes "n" is forbidden: User "jane" cannot  resource "nodes" in API group "" at the cluster scope: invalid verb, ` + by,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := p.do(t, client, test.method, test.path, nil, "")
			var status metav1.Status
			if err := json.Unmarshal([]byte(got.Body), &status); err != nil {
				t.Fatal(err)
			}
			if got.Code != 403 || status.Code != 403 || status.Reason != metav1.StatusReasonForbidden ||
				status.Kind != "Status" {
				t.Errorf("want a Status with 403, got %d: %s", got.Code, got.Body)
			}
			if diff := cmp.Diff(test.want, status.Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	for _, sent := range p.api.requests() {
		t.Errorf("want nothing sent on, got %s %s", sent.Method, sent.URI)
	}
}

// TestDenialBeforeEveryOtherRefusal checks that a denied user who cannot be impersonated gets the same response as
// other denied users.
func TestDenialBeforeEveryOtherRefusal(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = allowing() })
	p.token.set("")
	if got := p.get(t, p.as(t, "jane"), aConfigMap, nil); got.Code != 403 || len(p.api.requests()) != 0 {
		t.Errorf("want 403 and nothing sent on, got %d: %s", got.Code, got.Body)
	}
}

// TestDeniedRequestsAreNotSent denies reads and writes.
func TestDeniedRequestsAreNotSent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, method, path, body string
		header                   http.Header
	}{
		{"get", "GET", aConfigMap, "", nil},
		{"list", "GET", "/api/v1/configmaps", "", nil},
		{"watch", "GET", "/api/v1/configmaps?watch=1", "", nil},
		{"create", "POST", "/api/v1/namespaces/d/configmaps", "{}", nil},
		{"delete", "DELETE", aConfigMap, "", nil},
		{"patch", "PATCH", aConfigMap, "{}", nil},
		{"logs", "GET", "/api/v1/namespaces/d/pods/x/log", "", nil},
		{"status", "GET", "/api/v1/namespaces/d/pods/x/status", "", nil},
		{"exec", "GET", "/api/v1/namespaces/d/pods/x/exec?command=true", "", nil},
		{"port-forward", "GET", "/api/v1/namespaces/d/pods/x/portforward", "", nil},
		{"proxy of a pod", "GET", "/api/v1/namespaces/d/pods/x/proxy/", "", nil},
		{"proxy of a service", "GET", "/api/v1/namespaces/d/services/x/proxy/a", "", nil},
		{"proxy of a node", "GET", "/api/v1/nodes/x/proxy/run", "", nil},
		{"proxy in the old way", "GET", "/api/v1/proxy/nodes/x", "", nil},
		{"a path", "GET", "/metrics", "", nil},
		{"get with a body", "GET", aConfigMap, "{}", nil},
		{"a token that may have to travel itself", "GET", aConfigMap, "", http.Header{"Authorization": {"Bearer t"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() {
				p.api.allow = allowing()
				p.api.tokens["t"] = authenticationv1.UserInfo{Username: "jane", UID: "u"}
			})
			client := p.as(t, "jane")
			if test.header != nil {
				client = p.client(t, nil)
			}
			got := p.do(t, client, test.method, test.path, test.header, test.body)
			if got.Code != 403 || len(p.api.requests()) != 0 {
				t.Errorf("want 403 and nothing sent on, got %d and %d requests: %s", got.Code, len(p.api.requests()), got.Body)
			}
		})
	}
}

// TestNestedImpersonationComesFirst checks that no request, not even a read, is forwarded for a client that may not
// impersonate.
func TestNestedImpersonationComesFirst(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = allowing("get configmaps") })
	got := p.get(t, p.as(t, "jane"), aConfigMap, http.Header{"Impersonate-User": {"joe"}})
	if got.Code != 403 || !strings.Contains(got.Body, "impersonate") || len(p.api.requests()) != 0 {
		t.Errorf("want 403 and nothing sent on, got %d and %d requests: %s", got.Code, len(p.api.requests()), got.Body)
	}
}

func TestStatusInTheClientsEncoding(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = allowing() })
	client := p.as(t, "jane")
	for accept, want := range map[string]string{
		"":                 "application/json",
		"application/json": "application/json",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": "application/json",
		"application/yaml":                    "application/yaml",
		"application/vnd.kubernetes.protobuf": "application/vnd.kubernetes.protobuf",
		"text/html":                           "application/json",
	} {
		header := http.Header{}
		if accept != "" {
			header.Set("Accept", accept)
		}
		got := p.get(t, client, "/api/v1/nodes", header)
		if got.Code != 403 || got.Header.Get("Content-Type") != want {
			t.Errorf("Accept %q: want 403 as %s, got %d as %s", accept, want, got.Code, got.Header.Get("Content-Type"))
		}
	}
}

func TestAlwaysAllowed(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.allow = allowing() })
	for _, path := range []string{"/healthz", "/readyz", "/livez"} {
		if got := p.get(t, p.as(t, "jane"), path, nil); got.Code != 200 {
			t.Errorf("%s: want 200, got %d", path, got.Code)
		}
	}
	if got := p.get(t, p.as(t, "root", "system:masters"), "/api/v1/nodes", nil); got.Code != 200 {
		t.Errorf("want system:masters allowed, got %d", got.Code)
	}
	if len(p.api.reviews) != 0 {
		t.Errorf("want no reviews, got %d", len(p.api.reviews))
	}
}

func TestRunningInPodsNeedsCreate(t *testing.T) {
	t.Parallel()
	for _, subresource := range []string{"exec", "attach", "portforward"} {
		t.Run(subresource, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() { p.api.allow = allowing("get pods/" + subresource) })
			request := "GET /api/v1/namespaces/d/pods/x/" + subresource + " HTTP/1.1\nHost: proxy\nConnection: " +
				"Upgrade\nUpgrade: websocket\n\n"
			jane := clientCertificate(t, p.signerCA, "jane")
			res, err := http.ReadResponse(readerOf(p.raw(t, jane, request)), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != 403 || len(p.api.requests()) != 0 {
				t.Fatalf("want 403 and nothing sent on, got %d", res.StatusCode)
			}
			p.api.set(func() { p.api.allow = allowing("get pods/"+subresource, "create pods/"+subresource) })
			eventually(t, func() bool {
				res, err := http.ReadResponse(readerOf(p.raw(t, jane, request)), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = res.Body.Close() }()
				return res.StatusCode == 200
			})
		})
	}
}

func TestReviewsSayEverything(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.allow = func(asked authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			return asked.ResourceAttributes.Name != "", ""
		}
	})
	jane := clientCertificate(t, p.signerCA, "jane", "dev")
	const fields, labels = "metadata.name=x,a!=b", "a in (b,c),d,!e"
	got := p.get(t, p.client(t, jane), "/apis/apps/v1/namespaces/d/deployments?fieldSelector="+url.QueryEscape(fields)+
		"&labelSelector="+url.QueryEscape(labels), nil)
	if got.Code != 200 {
		t.Fatalf("want 200, got %d", got.Code)
	}
	got = p.get(t, p.client(t, jane), "/apis/apps/v1/namespaces/d/deployments/x/scale", nil)
	if got.Code != 200 {
		t.Fatalf("want 200, got %d", got.Code)
	}
	who := authorizationv1.SubjectAccessReviewSpec{
		User:   "jane",
		Groups: []string{"dev", "system:authenticated"},
		Extra:  p.api.reviews[0].Extra,
	}
	one, two := who, who
	one.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: "d", Verb: "list", Group: "apps", Version: "v1", Resource: "deployments", Name: "x",
		FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: fields},
		LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: labels},
	}
	two.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: "d", Verb: "get", Group: "apps", Version: "v1", Resource: "deployments", Subresource: "scale", Name: "x",
	}
	ofAll := func(one authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewSpec {
		about := *one.ResourceAttributes
		about.Name, about.FieldSelector, about.LabelSelector = "", nil, nil
		one.ResourceAttributes = &about
		return one
	}
	want := []authorizationv1.SubjectAccessReviewSpec{ofAll(one), one, ofAll(two), two}
	if diff := cmp.Diff(want, p.api.reviews); diff != "" {
		t.Errorf("reviews (-want +got):\n%s", diff)
	}
}

// TestLongSelectors sends selectors that take long to parse. The proxy does not parse them, and asks about everything
// instead.
func TestLongSelectors(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.client(t, clientCertificate(t, p.signerCA, "jane"))
	const pods = "/api/v1/pods"
	selector := func(length int) string { return "?labelSelector=" + strings.Repeat("a,", length/2-1) + "aa" }
	passedOn := []string{
		pods + selector(maxSelector),
		pods + "/x" + selector(2*maxSelector),                               // without effect
		"/api/v1/namespaces/d/services/x/proxy/y" + selector(2*maxSelector), // of another program
	}
	for _, path := range passedOn {
		if got := p.get(t, jane, path, nil); got.Code != http.StatusOK {
			t.Errorf("%.60s: want 200, got %d", path, got.Code)
		}
	}
	for _, client := range []*http.Client{jane, p.client(t, nil)} {
		got := p.get(t, client, pods+selector(maxSelector+2), nil)
		const want = "a selector has 16386 bytes; the limit is 16384: request fewer values at a time, or omit it"
		if got.Code != http.StatusBadRequest || !strings.Contains(got.Body, want) {
			t.Errorf("want 400 with %q, got %d: %.200s", want, got.Code, got.Body)
		}
	}
	var asked []string
	for _, one := range p.api.requests() {
		asked = append(asked, one.URI)
	}
	if diff := cmp.Diff(passedOn, asked); diff != "" {
		t.Errorf("at the API server (-want +got):\n%.500s", diff)
	}
	if about := p.api.reviews[0].ResourceAttributes; about.Verb != "list" || about.LabelSelector != nil {
		t.Errorf("want a review about all pods, got %.300v", about)
	}
}

func TestReviewCache(t *testing.T) {
	t.Parallel()
	clock := &steppedClock{}
	p := startProxy(
		t,
		func(_ *proxy, o *Options) { o.Clock, o.AllowTTL, o.DenyTTL = clock, 10*time.Minute, 5*time.Minute },
	)
	release := make(chan struct{})
	p.api.set(func() {
		p.api.allow = func(authorizationv1.SubjectAccessReviewSpec) (bool, string) { <-release; return true, "" }
	})
	client := p.as(t, "jane")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := p.get(t, client, "/api/v1/nodes", nil); got.Code != 200 {
				t.Errorf("want 200, got %d", got.Code)
			}
		})
	}
	count := func() int { p.api.mu.Lock(); defer p.api.mu.Unlock(); return len(p.api.reviews) }
	eventually(t, func() bool {
		serving, _ := p.drain.counts()
		return count() > 0 && serving == 20
	})
	close(release)
	all.Wait()
	if got := count(); got != 1 {
		t.Errorf("want one review for equal questions, got %d", got)
	}
	p.api.set(func() { p.api.allow = allowing() })
	if got := p.get(t, client, "/api/v1/pods", nil); got.Code != 403 {
		t.Errorf("want another question asked, got %d", got.Code)
	}
	for _, step := range []struct {
		passes  time.Duration
		allowed []string
		want    int
	}{
		{0, nil, 200},                    // an allowed decision is cached
		{9 * time.Minute, nil, 200},      // for its TTL
		{2 * time.Minute, nil, 403},      // and not longer
		{0, []string{"list nodes"}, 403}, // a denial is cached, too
		{4 * time.Minute, []string{"list nodes"}, 403},
		{2 * time.Minute, []string{"list nodes"}, 200}, // for its shorter TTL
	} {
		clock.Step(step.passes)
		p.api.set(func() { p.api.allow = allowing(step.allowed...) })
		if got := p.get(t, client, "/api/v1/nodes", nil); got.Code != step.want {
			t.Errorf("%s later, with %q allowed: want %d, got %d", step.passes, step.allowed, step.want, got.Code)
		}
	}
}

func TestRevokedPermissionsEnd(t *testing.T) {
	t.Parallel()
	nested := http.Header{"Impersonate-User": {"jane"}}
	for name, test := range map[string]struct {
		allowed []string
		header  http.Header
	}{
		"a request":     {allowed: []string{"list nodes"}},
		"impersonation": {allowed: []string{"impersonate users", "list nodes"}, header: nested},
		"constrained impersonation": {
			allowed: []string{"impersonate:user-info users", "impersonate-on:user-info:list nodes", "list nodes"},
			header:  nested,
		},
	} {
		for _, revoked := range test.allowed {
			t.Run(name+" without "+revoked, func(t *testing.T) {
				t.Parallel()
				clock := &steppedClock{}
				p := startProxy(t, func(_ *proxy, o *Options) { o.Clock = clock })
				p.api.set(func() { p.api.allow = allowing(test.allowed...) })
				client := p.as(t, "admin")
				code := func() int { return p.get(t, client, "/api/v1/nodes", test.header).Code }
				// Repeat, because caches may expire at different times.
				for range 5 {
					if got := code(); got != 200 {
						t.Fatalf("want 200, got %d", got)
					}
					clock.Step(3 * time.Second)
				}
				if got := code(); got != 200 {
					t.Fatalf("want 200, got %d", got)
				}
				left := slices.DeleteFunc(slices.Clone(test.allowed), func(one string) bool { return one == revoked })
				p.api.set(func() { p.api.allow = allowing(left...) })
				clock.Step(10 * time.Second)
				if got := code(); got != 403 {
					t.Errorf("want the permission gone after the allow lifetime, got %d", got)
				}
			})
		}
	}
}

// TestRevokedImpersonationIsNotCachedTwice expires the cache of the filter, but not that of reviews.
func TestRevokedImpersonationIsNotCachedTwice(t *testing.T) {
	t.Parallel()
	clock := &steppedClock{}
	p := startProxy(t, func(_ *proxy, o *Options) { o.Clock = clock })
	p.api.set(func() {
		p.api.allow = allowing("impersonate:user-info users", "impersonate-on:user-info:list nodes", "list nodes")
	})
	nested := http.Header{"Impersonate-User": {"jane"}}
	code := func(client *http.Client) int { return p.get(t, client, "/api/v1/nodes", nested).Code }
	admin := p.as(t, "admin")
	if got := code(p.as(t, "other")); got != 200 {
		t.Fatalf("want 200, got %d", got)
	}
	clock.Step(9 * time.Second)
	if got := code(admin); got != 200 {
		t.Fatalf("want 200, got %d", got)
	}
	p.api.set(func() { p.api.allow = allowing("list nodes") })
	clock.Step(9500 * time.Millisecond)
	_ = code(admin) // may still be allowed, but not cached for longer
	clock.Step(time.Second)
	if got := code(admin); got != 403 {
		t.Errorf("want the permission gone after the allow lifetime, got %d", got)
	}
}

func TestReviewFails(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]int{500: 500, 403: 500, 503: 503, 429: 503} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() { p.api.failing = code })
			for name, header := range map[string]http.Header{"plain": nil, "nested": {"Impersonate-User": {"joe"}}} {
				want := want
				if name == "nested" && want == 500 {
					want = 403 // as the API server's own filter responds
				}
				got := p.do(t, p.as(t, "jane"), http.MethodDelete, "/api/v1/nodes/n", header, "")
				var status metav1.Status
				if err := json.Unmarshal([]byte(got.Body), &status); err != nil {
					t.Fatalf("%s: %v: %s", name, err, got.Body)
				}
				if got.Code != want || int(status.Code) != want || (want == 503) != (got.Header.Get("Retry-After") != "") {
					t.Errorf("%s: want a Status with %d, got %d: %s", name, want, got.Code, got.Body)
				}
			}
			if n := len(p.api.requests()); n != 0 {
				t.Errorf("want nothing sent on, got %d", n)
			}
		})
	}
}

func TestNestedImpersonation(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.allow = allowing(
			"impersonate users",
			"impersonate groups",
			"impersonate uids",
			"impersonate userextras/foo",
			"impersonate userextras/k_k",
			"impersonate serviceaccounts",
			"list nodes",
		)
	})
	client := p.as(t, "admin", "ops")
	const originalHeader = "Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev"
	for _, test := range []struct {
		name    string
		header  http.Header
		want    map[string][]string
		refused int
		message string
	}{
		{
			name:   "acts as another user",
			header: http.Header{"Impersonate-User": {"jane"}},
			want: map[string][]string{
				"Impersonate-User":  {"jane"},
				"Impersonate-Group": {"system:authenticated"},
			},
		},
		{
			name: "acts as another user with everything",
			header: http.Header{
				"Impersonate-User": {"jane"}, "Impersonate-Uid": {"u-1"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Extra-Foo": {"1", "2"},
			},
			want: map[string][]string{
				"Impersonate-User": {"jane"}, "Impersonate-Uid": {"u-1"}, "Impersonate-Group": {"a", "b", "system:authenticated"},
				"Impersonate-Extra-Foo": {"1", "2"},
			},
		},
		{
			name:   "keeps an extra key with an underscore",
			header: http.Header{"Impersonate-User": {"jane"}, "Impersonate-Extra-K_k": {"1"}},
			want: map[string][]string{
				"Impersonate-User": {"jane"}, "Impersonate-Group": {"system:authenticated"}, "Impersonate-Extra-K%5fk": {"1"},
			},
		},
		{
			name:   "acts as a service account with its groups",
			header: http.Header{"Impersonate-User": {"system:serviceaccount:ns:sa"}},
			want: map[string][]string{
				"Impersonate-User":  {"system:serviceaccount:ns:sa"},
				"Impersonate-Group": {"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
			},
		},
		{
			name: "acts as the anonymous user", header: http.Header{"Impersonate-User": {"system:anonymous"}},
			want: map[string][]string{"Impersonate-User": {"system:anonymous"}, "Impersonate-Group": {"system:unauthenticated"}},
		},
		{
			name: "refuses an extra that is not allowed", header: http.Header{
				"Impersonate-User": {"jane"}, "Impersonate-Extra-Bar": {"1"},
			},
			refused: 403, message: `cannot impersonate resource "userextras/bar" in API group "authentication.k8s.io" at the cluster scope: decision made by`,
		},
		{
			name: "refuses the reserved extra key", header: http.Header{"Impersonate-User": {"jane"}, originalHeader: {"{}"}},
			refused: 403, message: `cannot impersonate resource "userextras/original-user-info.impersonation-proxy.concierge.pinniped.dev"`,
		},
		{
			name: "refuses groups without a user", header: http.Header{"Impersonate-Group": {"a"}},
			refused: 400, message: `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)} without impersonating a user name`,
		},
		{
			name: "refuses what is left over", header: http.Header{"Impersonate-User": {"jane"}, "Impersonate-Whatever": {"1"}},
			refused: 400, message: "Impersonate-Whatever",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(p.api.requests())
			got := p.get(t, client, "/api/v1/nodes", test.header)
			arrived := p.api.requests()[before:]
			if test.refused != 0 {
				var status metav1.Status
				if err := json.Unmarshal([]byte(got.Body), &status); err != nil {
					t.Fatal(err)
				}
				if got.Code != test.refused || len(arrived) != 0 || !strings.Contains(status.Message, test.message) {
					t.Errorf("want %d with %q, got %d: %s", test.refused, test.message, got.Code, got.Body)
				}
				return
			}
			if got.Code != 200 || len(arrived) != 1 {
				t.Fatalf("want 200 and one request, got %d and %d: %s", got.Code, len(arrived), got.Body)
			}
			identity := identityOf(arrived[0])
			var original map[string]any
			if err := json.Unmarshal([]byte(strings.Join(identity[originalHeader], "")), &original); err != nil {
				t.Fatalf("reading the original user: %v", err)
			}
			if original["username"] != "admin" || !cmp.Equal(original["groups"], []any{"ops", "system:authenticated"}) ||
				original["extra"] == nil {
				t.Errorf("want the original user, got %v", original)
			}
			delete(identity, originalHeader)
			test.want["Authorization"] = []string{"Bearer " + upstreamToken}
			if diff := cmp.Diff(test.want, identity); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConstrainedImpersonation checks each mode of constrained impersonation.
func TestConstrainedImpersonation(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() {
		p.api.allow = func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
			if spec.User == "controller" && strings.HasPrefix(asked(spec), "impersonate") {
				what := asked(spec)
				return what == "impersonate-on:user-info:list nodes" || what == "impersonate:user-info users", ""
			}
			return spec.User == "jane", ""
		}
	})
	as := http.Header{"Impersonate-User": {"jane"}}
	if got := p.get(t, p.as(t, "controller"), "/api/v1/nodes", as); got.Code != 200 {
		t.Errorf("want the allowed verb allowed, got %d: %s", got.Code, got.Body)
	}
	if got := p.get(t, p.as(t, "controller"), "/api/v1/pods", as); got.Code != 403 {
		t.Errorf("want another resource refused, got %d", got.Code)
	}
	const want = `nodes is forbidden: User \"other\" cannot impersonate-on:user-info:list resource \"nodes\" in API group \"\" at the cluster scope: ` + identity.DecisionMadeBy
	if got := p.get(t, p.as(t, "other"), "/api/v1/nodes", as); got.Code != 403 || !strings.Contains(got.Body, want) {
		t.Errorf("want 403 with the first check in its text, got %d: %s", got.Code, got.Body)
	}
	// The messages that clients of the original impersonation proxy expect.
	for user, mode := range map[string]string{
		"system:serviceaccount:ns:sa": "serviceaccount", "jane": "user-info", "system:node:n": "arbitrary-node",
	} {
		got := p.do(
			t,
			p.as(t, "other"),
			http.MethodPost,
			"/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests",
			http.Header{"Impersonate-User": {user}},
			"{}",
		)
		want := `whoamirequests.identity.concierge.pinniped.dev is forbidden: User \"other\" cannot impersonate-on:` + mode +
			`:create resource \"whoamirequests\" in API group \"identity.concierge.pinniped.dev\" at the cluster scope: ` + identity.DecisionMadeBy
		if got.Code != 403 || !strings.Contains(got.Body, want) {
			t.Errorf("as %s: want 403 with %s, got %d: %s", user, want, got.Code, got.Body)
		}
	}
}

func TestNestedImpersonationOfReservedKey(t *testing.T) {
	t.Parallel()
	p := startProxy(t) // everything is allowed
	got := p.get(t, p.as(t, "admin"), "/api/v1/nodes", http.Header{
		"Impersonate-User": {"jane"}, "Impersonate-Extra-Any.impersonation-Proxy.concierge.pinniped.dev": {"x"},
	})
	if got.Code != 500 ||
		!strings.Contains(
			got.Body,
			`"Internal error occurred: unimplemented functionality - unable to act as current user"`,
		) ||
		len(p.api.requests()) != 0 {
		t.Errorf("want a refusal, got %d: %s", got.Code, got.Body)
	}
}
