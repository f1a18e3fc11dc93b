package proxy

import (
	"encoding/json"
	"io"
	"maps"
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
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
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
	p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		if spec.ResourceAttributes != nil && spec.ResourceAttributes.Resource == "secrets" {
			return false, "no secrets on Sundays"
		}
		return false, ""
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
		{"of a path", "GET", "/healthz/log", `forbidden: User "jane" cannot get path "/healthz/log": ` + by},
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
			must.Do(t, json.Unmarshal([]byte(got.Body), &status))
			if got.Code != 403 || status.Code != 403 || status.Reason != metav1.StatusReasonForbidden ||
				status.Kind != "Status" {
				t.Errorf("want a Status with 403, got %d: %s", got.Code, got.Body)
			}
			same.Values(t, "message", test.want, status.Message)
		})
	}
	p.api.checkNothingSent(t)
}

// TestDeniedRequestsAreNotSent denies reads and writes, also of users who could not be impersonated, and impersonation to
// a user who may do what is asked.
func TestDeniedRequestsAreNotSent(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.allows(allowing("get nodes"))
	p.api.set(func() { p.api.tokens["t"] = authenticationv1.UserInfo{Username: "jane", UID: "u"} })
	jane, nobody := p.as(t, "jane"), p.client(t, nil)
	for _, test := range []struct {
		name, method, path, body string
		header                   http.Header
		client                   *http.Client
	}{
		{"get", "GET", aConfigMap, "", nil, jane},
		{"list", "GET", "/api/v1/configmaps", "", nil, jane},
		{"watch", "GET", "/api/v1/configmaps?watch=1", "", nil, jane},
		{"create", "POST", "/api/v1/namespaces/d/configmaps", "{}", nil, jane},
		{"delete", "DELETE", aConfigMap, "", nil, jane},
		{"patch", "PATCH", aConfigMap, "{}", nil, jane},
		{"logs", "GET", "/api/v1/namespaces/d/pods/x/log", "", nil, jane},
		{"status", "GET", "/api/v1/namespaces/d/pods/x/status", "", nil, jane},
		{"exec", "GET", "/api/v1/namespaces/d/pods/x/exec?command=true", "", nil, jane},
		{"port-forward", "GET", "/api/v1/namespaces/d/pods/x/portforward", "", nil, jane},
		{"proxy of a pod", "GET", "/api/v1/namespaces/d/pods/x/proxy/", "", nil, jane},
		{"proxy of a service", "GET", "/api/v1/namespaces/d/services/x/proxy/a", "", nil, jane},
		{"proxy of a node", "GET", "/api/v1/nodes/x/proxy/run", "", nil, jane},
		{"proxy in the old way", "GET", "/api/v1/proxy/nodes/x", "", nil, jane},
		{"a path", "GET", "/metrics", "", nil, jane},
		{"get with a body", "GET", aConfigMap, "{}", nil, jane},
		{"a token that may have to travel itself", "GET", aConfigMap, "", http.Header{"Authorization": {"Bearer t"}}, nobody},
		{"impersonation", "GET", "/api/v1/nodes/n", "", http.Header{"Impersonate-User": {"joe"}}, jane},
	} {
		for _, token := range []string{upstreamToken, ""} {
			p.token.set(token)
			got := p.do(t, test.client, test.method, test.path, test.header, test.body)
			if got.Code != 403 || len(p.api.requests()) != 0 ||
				test.name == "impersonation" && !strings.Contains(got.Body, "impersonate") {
				t.Errorf("%s: want 403 and nothing sent on, got %d and %d requests: %s",
					test.name, got.Code, len(p.api.requests()), got.Body)
			}
		}
	}
}

func TestAlwaysAllowed(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.allows(allowing())
	for _, path := range []string{"/healthz", "/readyz", "/livez"} {
		p.get(t, p.as(t, "jane"), path, nil).check(t, 200, "%s: want 200", path)
	}
	p.get(t, p.as(t, "root", "system:masters"), "/api/v1/nodes", nil).check(t, 200, "want system:masters allowed")
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
			p.api.allows(allowing("get pods/" + subresource))
			request := get("/api/v1/namespaces/d/pods/x/"+subresource, "Connection: Upgrade", "Upgrade: websocket")
			jane := p.jane(t)
			if got := p.exchange(t, jane, request); got.Code != 403 || len(p.api.requests()) != 0 {
				t.Fatalf("want 403 and nothing sent on, got %d", got.Code)
			}
			p.api.allows(allowing("get pods/"+subresource, "create pods/"+subresource))
			eventually(t, func() bool { return p.exchange(t, jane, request).Code == 200 })
		})
	}
}

func TestReviewsSayEverything(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.allows(func(asked authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		return asked.ResourceAttributes.Name != "", ""
	})
	jane := p.as(t, "jane", "dev")
	const fields, labels = "metadata.name=x,a!=b", "a in (b,c),d,!e"
	for _, what := range []string{
		"?fieldSelector=" + url.QueryEscape(fields) + "&labelSelector=" + url.QueryEscape(labels), "/x/scale",
	} {
		p.get(t, jane, "/apis/apps/v1/namespaces/d/deployments"+what, nil).require(t, 200, "%s: want 200", what)
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
	same.Values(t, "reviews", want, p.api.reviews)
}

// TestLongSelectors sends selectors that take long to parse. The proxy does not parse them, and asks about everything
// instead.
func TestLongSelectors(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	jane := p.as(t, "jane")
	const pods = "/api/v1/pods"
	selector := func(length int) string { return "?labelSelector=" + strings.Repeat("a,", length/2-1) + "aa" }
	passedOn := []string{
		pods + selector(maxSelector),
		pods + "/x" + selector(2*maxSelector),                               // without effect
		"/api/v1/namespaces/d/services/x/proxy/y" + selector(2*maxSelector), // of another program
	}
	for _, path := range passedOn {
		p.get(t, jane, path, nil).check(t, http.StatusOK, "%.60s: want 200", path)
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
	clock := newStillClock()
	p := startProxy(t, still(clock), func(_ *proxy, o *Options) { o.AllowTTL, o.DenyTTL = 10*time.Minute, 5*time.Minute })
	release := make(chan struct{})
	p.api.allows(func(authorizationv1.SubjectAccessReviewSpec) (bool, string) { <-release; return true, "" })
	client := p.as(t, "jane")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { p.get(t, client, "/api/v1/nodes", nil).check(t, 200, "want 200") })
	}
	count := func() int { p.api.mu.Lock(); defer p.api.mu.Unlock(); return len(p.api.reviews) }
	eventually(t, func() bool { return count() > 0 && p.drain.serving.Load() == 20 })
	close(release)
	all.Wait()
	if got := count(); got != 1 {
		t.Errorf("want one review for equal questions, got %d", got)
	}
	p.api.allows(allowing())
	p.get(t, client, "/api/v1/pods", nil).check(t, 403, "want another question asked")
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
		p.api.allows(allowing(step.allowed...))
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
				clock := newStillClock()
				p := startProxy(t, still(clock))
				p.api.allows(allowing(test.allowed...))
				client := p.as(t, "admin")
				code := func() int { return p.get(t, client, "/api/v1/nodes", test.header).Code }
				// Repeat, because caches may expire at different times.
				for range 6 {
					clock.Step(3 * time.Second)
					if got := code(); got != 200 {
						t.Fatalf("want 200, got %d", got)
					}
				}
				left := slices.DeleteFunc(slices.Clone(test.allowed), func(one string) bool { return one == revoked })
				p.api.allows(allowing(left...))
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
	clock := newStillClock()
	p := startProxy(t, still(clock))
	p.api.allows(allowing("impersonate:user-info users", "impersonate-on:user-info:list nodes", "list nodes"))
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
	p.api.allows(allowing("list nodes"))
	clock.Step(9500 * time.Millisecond)
	_ = code(admin) // may still be allowed, but not cached for longer
	clock.Step(time.Second)
	if got := code(admin); got != 403 {
		t.Errorf("want the permission gone after the allow lifetime, got %d", got)
	}
}

// TestReviewFails checks what a client gets when the API server does not decide. A review is not repeated: with a 429,
// that would add to the load.
func TestReviewFails(t *testing.T) {
	t.Parallel()
	token := http.Header{"Authorization": {"Bearer secret-token"}}
	nested := http.Header{"Impersonate-User": {"joe"}}
	for _, test := range []struct {
		code, access, nested, token int
	}{
		{500, 500, 403, 401}, // nested: as the API server's own filter responds
		{403, 500, 403, 401},
		{503, 503, 503, 503},
		{429, 503, 503, 503},
	} {
		t.Run(http.StatusText(test.code), func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.api.set(func() { p.api.failing = test.code })
			jane, nobody := p.as(t, "jane"), p.client(t, nil)
			for _, one := range []struct {
				client *http.Client
				header http.Header
				want   int
			}{{jane, nil, test.access}, {jane, nested, test.nested}, {nobody, token, test.token}} {
				before := p.api.reviewsAsked()
				got := p.do(t, one.client, http.MethodDelete, "/api/v1/nodes/n", one.header, "")
				var status metav1.Status
				if err := json.Unmarshal([]byte(got.Body), &status); err != nil {
					t.Fatalf("%v: %v: %s", one.header, err, got.Body)
				}
				retry := ""
				if one.want == 503 {
					retry = "1"
				}
				if got.Code != one.want || int(status.Code) != one.want || got.Header.Get("Retry-After") != retry {
					t.Errorf("%v: want a Status with %d, got %d: %s", one.header, one.want, got.Code, got.Body)
				}
				if strings.Contains(got.Body, "secret-token") {
					t.Error("the token is in the response")
				}
				if n := p.api.reviewsAsked() - before; test.code == 429 && n != 1 {
					t.Errorf("%v: want one review, got %d", one.header, n)
				}
			}
			p.api.checkNothingSent(t)
		})
	}
}

// TestNestedImpersonation checks what arrives, and that the original user is in it with and without an audit log here.
func TestNestedImpersonation(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]*AuditLog{"without an audit log": nil, "with one": newAuditLog(t, io.Discard)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkNestedImpersonation(t, startProxy(t, func(_ *proxy, o *Options) { o.Audit = log }))
		})
	}
}

func checkNestedImpersonation(t *testing.T, p *proxy) {
	t.Helper()
	p.api.allows(allowing("impersonate users", "impersonate groups", "impersonate uids", "impersonate userextras/foo",
		"impersonate userextras/k_k", "impersonate serviceaccounts", "list nodes"))
	client := p.as(t, "admin", "ops")
	const originalHeader = "Impersonate-Extra-Original-User-Info.impersonation-Proxy.concierge.pinniped.dev"
	for _, test := range []struct {
		name    string
		header  http.Header
		want    map[string][]string // the identity, without extra
		extra   map[string][]string
		refused int
		message string
	}{
		{name: "acts as another user", header: http.Header{"Impersonate-User": {"jane"}}, want: carried("jane")},
		{
			name: "acts as another user with everything",
			header: http.Header{
				"Impersonate-User": {"jane"}, "Impersonate-Uid": {"u-1"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Extra-Foo": {"1", "2"},
			},
			want:  carried("jane", "a", "b", "system:authenticated"),
			extra: map[string][]string{"Impersonate-Uid": {"u-1"}, "Impersonate-Extra-Foo": {"1", "2"}},
		},
		{
			name:   "keeps an extra key with an underscore",
			header: http.Header{"Impersonate-User": {"jane"}, "Impersonate-Extra-K_k": {"1"}},
			want:   carried("jane"), extra: map[string][]string{"Impersonate-Extra-K%5fk": {"1"}},
		},
		{
			name:   "acts as a service account with its groups",
			header: http.Header{"Impersonate-User": {"system:serviceaccount:ns:sa"}},
			want: carried(
				"system:serviceaccount:ns:sa", "system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"),
		},
		{
			name: "acts as the anonymous user", header: http.Header{"Impersonate-User": {"system:anonymous"}},
			want: carried("system:anonymous", "system:unauthenticated"),
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
				must.Do(t, json.Unmarshal([]byte(got.Body), &status))
				if got.Code != test.refused || len(arrived) != 0 || !strings.Contains(status.Message, test.message) {
					t.Errorf("want %d with %q, got %d: %s", test.refused, test.message, got.Code, got.Body)
				}
				return
			}
			if got.Code != 200 || len(arrived) != 1 {
				t.Fatalf("want 200 and one request, got %d and %d: %s", got.Code, len(arrived), got.Body)
			}
			said := strings.Join(arrived[0].Header[originalHeader], "")
			var original map[string]any
			if err := json.Unmarshal([]byte(said), &original); err != nil {
				t.Fatalf("reading the original user: %v", err)
			}
			if original["username"] != "admin" || !cmp.Equal(original["groups"], []any{"ops", "system:authenticated"}) ||
				original["extra"] == nil {
				t.Errorf("want the original user, got %v", original)
			}
			delete(arrived[0].Header, originalHeader)
			maps.Copy(test.want, test.extra)
			checkIdentity(t, arrived[0], test.want)
		})
	}
}

// TestConstrainedImpersonation checks each mode of constrained impersonation.
func TestConstrainedImpersonation(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.allows(func(spec authorizationv1.SubjectAccessReviewSpec) (bool, string) {
		if spec.User == "controller" && strings.HasPrefix(asked(spec), "impersonate") {
			what := asked(spec)
			return what == "impersonate-on:user-info:list nodes" || what == "impersonate:user-info users", ""
		}
		return spec.User == "jane", ""
	})
	as := http.Header{"Impersonate-User": {"jane"}}
	p.get(t, p.as(t, "controller"), "/api/v1/nodes", as).check(t, 200, "want the allowed verb allowed")
	p.get(t, p.as(t, "controller"), "/api/v1/pods", as).check(t, 403, "want another resource refused")
	const want = `nodes is forbidden: User \"other\" cannot impersonate-on:user-info:list resource \"nodes\" in API group \"\" at the cluster scope: ` + identity.DecisionMadeBy
	if got := p.get(t, p.as(t, "other"), "/api/v1/nodes", as); got.Code != 403 || !strings.Contains(got.Body, want) {
		t.Errorf("want 403 with the first check in its text, got %d: %s", got.Code, got.Body)
	}
	// The messages that clients of the original impersonation proxy expect.
	for user, mode := range map[string]string{
		"system:serviceaccount:ns:sa": "serviceaccount", "jane": "user-info", "system:node:n": "arbitrary-node",
	} {
		got := p.do(t, p.as(t, "other"), "POST", "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests",
			http.Header{"Impersonate-User": {user}}, "{}")
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
	got := p.get(t, p.as(t, "admin"), "/api/v1/nodes",
		http.Header{"Impersonate-User": {"jane"}, "Impersonate-Extra-Any.impersonation-Proxy.concierge.pinniped.dev": {"x"}})
	if got.Code != 500 || got.Body != cannotActBody || len(p.api.requests()) != 0 {
		t.Errorf("want a refusal, got %d: %s", got.Code, got.Body)
	}
}
