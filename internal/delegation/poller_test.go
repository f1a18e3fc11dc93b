package delegation

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

const (
	delegated   = `{"items":[{"metadata":{"namespace":"shared","name":"d"},"spec":{"delegations":[{"secretName":"wildcard","targetNamespaces":["agents"]}]}}]}`
	undelegated = `{"items":[]}`
)

// server fakes an API server that returns these status codes; 0 means no response.
type server struct {
	list, review, ready int
	delegations         string
	allowed             map[string]bool
	asked               []string
	then                func(path string) // after a response
}

func (s *server) RoundTrip(request *http.Request) (*http.Response, error) {
	status, body := http.StatusNotFound, `{}`
	switch request.URL.Path {
	case "/apis/projectcontour.io/v1/namespaces/shared/tlscertificatedelegations":
		status, body = s.list, s.delegations
	case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		sent, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		for _, part := range []string{`"resource":"secrets"`, `"name":"wildcard"`, `"namespace":"shared"`} {
			if !strings.Contains(string(sent), part) {
				return nil, errors.New("the review lacks " + part)
			}
		}
		status, body = s.review, `{"status":{"allowed":false}}`
		for verb, allowed := range s.allowed {
			if allowed && strings.Contains(string(sent), `"verb":"`+verb+`"`) {
				body = `{"status":{"allowed":true}}`
			}
		}
	case "/readyz":
		status = s.ready
	}
	s.asked = append(s.asked, request.URL.Path)
	if s.then != nil {
		s.then(request.URL.Path)
	}
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": []string{"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: request,
	}, nil
}

func client(t *testing.T, transport http.RoundTripper) rest.Interface {
	t.Helper()
	client := must.Get(rest.RESTClientForConfigAndClient(&rest.Config{QPS: -1, ContentConfig: rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{
			Version: "v1",
		},
		NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(),
	}}, &http.Client{Transport: transport}))(t)
	return client
}

// asked is a polled that the test queries step by step, with the recorded calls.
type asked struct {
	*polled
	server  *server
	clock   *clocktesting.FakeClock
	changes int
	revokes int
}

func good() *server {
	return &server{
		list:        200,
		review:      201,
		ready:       200,
		delegations: delegated,
		allowed:     map[string]bool{"list": true, "watch": true},
	}
}

// TestAnAPIServerWithoutRBAC: an API server that is starting refuses everything, including /readyz, for longer than a
// withdrawal may take.
func TestAnAPIServerWithoutRBAC(t *testing.T) {
	t.Parallel()
	a := newAsked(t, good())
	a.server.ready = 0 // no response at first
	a.until(t, Permitted, time.Second)
	a.server.ready = 200
	a.clock.Step(a.ask(t.Context()))
	a.server.list, a.server.ready = 403, 403
	a.until(t, NotVisible, 20*time.Second)
	*a.server = *good()
	a.until(t, NotVisible, time.Minute)
	if outcome, _ := a.state(); outcome != Permitted || a.changes != 0 || a.revokes != 0 {
		t.Errorf("the outcome is %s, with %d changes and %d revocations", outcome, a.changes, a.revokes)
	}
}

// TestWithoutPermissionForReadiness shows that a withdrawal is believed in time without /readyz, too.
func TestWithoutPermissionForReadiness(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*server)
		want   Outcome
	}{
		{"a refusal", func(s *server) { s.list = 403 }, NotVisible},
		{"a refusal of RBAC", func(s *server) { s.allowed = nil }, NotReadable},
	} {
		for _, status := range []int{401, 403, 404} {
			s := good()
			s.ready = status
			a := newAsked(t, s)
			a.until(t, Permitted, time.Second)
			test.change(a.server)
			if took := a.until(t, test.want, time.Minute); took > 2*time.Second {
				t.Errorf("%s with %d: it took %s", test.name, status, took)
			}
		}
	}
}

// TestARefusalFromBeforeReadiness: an API server becomes ready between its refusal and the request for /readyz.
func TestARefusalFromBeforeReadiness(t *testing.T) {
	t.Parallel()
	a := newAsked(t, good())
	a.until(t, Permitted, time.Second)
	a.server.list = 403
	a.server.then = func(path string) {
		if path == "/readyz" {
			a.server.list = 200
		}
	}
	a.until(t, NotVisible, time.Minute)
	if outcome, _ := a.state(); outcome != Permitted || a.changes != 0 || a.revokes != 0 {
		t.Errorf("the outcome is %s, with %d changes and %d revocations", outcome, a.changes, a.revokes)
	}
}

func newAsked(t *testing.T, s *server) *asked {
	t.Helper()
	a := &asked{server: s, clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	a.polled = &polled{secret: wildcard, known: make(chan struct{}), options: PollerOptions{
		Client: client(t, s), Namespace: "agents", Clock: a.clock,
		Changed: func(types.NamespacedName) { a.changes++ },
		Revoke:  func(types.NamespacedName) { a.revokes++ },
	}}
	return a
}

// until queries as run does until the outcome is as wanted or the limit is reached, and returns the time that took.
func (a *asked) until(t *testing.T, want Outcome, limit time.Duration) time.Duration {
	t.Helper()
	start := a.clock.Now()
	for {
		pause := a.ask(t.Context())
		outcome, _ := a.state()
		if took := a.clock.Since(start); outcome == want || took >= limit {
			return took
		}
		a.clock.Step(pause)
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	const long = time.Minute // effectively never
	for _, test := range []struct {
		name   string
		change func(*server)
		want   Outcome
		within time.Duration
	}{
		{"keeps a permission that is still there", func(*server) {}, Permitted, 0},
		{"believes that there is no delegation any more", func(s *server) { s.delegations = undelegated }, NotDelegated, 0},
		{
			"believes that even while the API server is not ready",
			func(s *server) { s.delegations, s.ready = undelegated, 500 }, NotDelegated, 0,
		},
		{"believes that the kind is gone", func(s *server) { s.list = 404 }, NoDelegations, 0},
		{"believes that RBAC has changed", func(s *server) { s.allowed = nil }, NotReadable, 0},
		{"wants to list", func(s *server) { s.allowed["list"] = false }, NotReadable, 0},
		{"wants to watch", func(s *server) { s.allowed["watch"] = false }, NotReadable, 0},
		{"believes that it may not list any more", func(s *server) { s.list = 403 }, NotVisible, 0},
		{"believes that it may not ask what it may do", func(s *server) { s.review = 403 }, NotVisible, 0},
		{
			"believes a long refusal when the agent may not ask for readiness any more",
			func(s *server) { s.list, s.ready = 403, 403 }, NotVisible, 31 * time.Second,
		},

		{"keeps it while no request has a response", func(s *server) { s.list, s.review, s.ready = 0, 0, 0 }, Permitted, long},
		{"keeps it while responses are errors", func(s *server) { s.list, s.review, s.ready = 500, 503, 500 }, Permitted, long},
		{
			"keeps it while the API server forbids everything and is not ready", func(s *server) { s.list, s.ready = 403, 500 },
			Permitted, long,
		},
		{
			"keeps it while the API server knows no kinds and is not ready", func(s *server) { s.list, s.ready = 404, 500 },
			Permitted, long,
		},
		{"keeps it while RBAC is not loaded", func(s *server) { s.allowed, s.ready = nil, 503 }, Permitted, long},
		{
			"keeps it while the agent may not ask and the API server is not ready", func(s *server) { s.review, s.ready = 403, 500 },
			Permitted, long,
		},
		{"keeps it while there is no review", func(s *server) { s.review = 500 }, Permitted, long},
		{"keeps it when its credential is refused", func(s *server) { s.list = 401 }, Permitted, long},
		{"keeps it when the response makes no sense", func(s *server) { s.delegations = "<html>" }, Permitted, long},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := newAsked(t, good())
			if took := a.until(t, Permitted, time.Second); took != 0 || a.changes != 0 {
				t.Fatalf("it took %s at first, with %d changes", took, a.changes)
			}
			<-a.known
			test.change(a.server)
			if test.within == long {
				a.until(t, "", long)
				if outcome, _ := a.state(); outcome != Permitted || a.changes != 0 || a.revokes != 0 {
					t.Errorf("the outcome is %s, with %d changes and %d revocations", outcome, a.changes, a.revokes)
				}
				return
			}
			took := a.until(t, test.want, long)
			if outcome, _ := a.state(); outcome != test.want || took > test.within {
				t.Errorf("after %s the outcome is %s, want %s within %s", took, outcome, test.want, test.within)
			}
			if want := map[bool]int{true: 0, false: 1}[test.want == Permitted]; a.changes != want || a.revokes != 0 {
				t.Errorf("%d changes and %d revocations, want %d and 0", a.changes, a.revokes, want)
			}
		})
	}
}

// TestFirstResponse shows the outcome for an API server that has just started, and what it is not asked.
func TestFirstResponse(t *testing.T) {
	t.Parallel()
	starting := newAsked(t, &server{list: 403, ready: 500})
	starting.until(t, "something", 30*time.Second)
	if outcome, _ := starting.state(); outcome != "" {
		t.Errorf("it believes %s", outcome)
	}
	*starting.server = *good()
	if starting.until(t, Permitted, time.Second) != 0 || starting.revokes != 0 {
		t.Error("it does not see the permission then")
	}

	undecided := good()
	undecided.delegations = undelegated
	none := newAsked(t, undecided)
	none.until(t, NotDelegated, time.Second)
	for _, path := range none.server.asked {
		if !strings.Contains(path, Plural) {
			t.Errorf("without a delegation it asked for %s", path)
		}
	}
}

// TestRevoke shows that a certificate is out of service within five seconds after its permission was withdrawn, unless
// the permission returns in time.
func TestRevoke(t *testing.T) {
	t.Parallel()
	closed := good()
	closed.ready = 403 // the slowest case
	a := newAsked(t, closed)
	a.until(t, Permitted, time.Second)
	a.clock.Step(period - time.Nanosecond)
	a.server.allowed = nil
	gone := a.clock.Now()
	for a.revokes == 0 {
		a.clock.Step(a.ask(t.Context()))
		if a.clock.Since(gone) > 4*time.Second {
			t.Fatal("nothing was revoked within four seconds")
		}
	}
	before := a.revokes
	a.ask(t.Context())
	if a.revokes != before+1 {
		t.Error("it revokes only once, which may have been too early")
	}
	a.server.allowed = good().allowed
	a.until(t, Permitted, time.Second)
	before = a.revokes
	a.clock.Step(time.Hour)
	a.ask(t.Context())
	if a.revokes != before {
		t.Error("it revokes what is permitted again")
	}

	a.server.delegations = undelegated
	a.until(t, NotDelegated, time.Second)
	a.clock.Step(grace / 2)
	a.server.delegations = delegated
	a.until(t, Permitted, time.Second)
	a.clock.Step(grace)
	a.ask(t.Context())
	if a.revokes != before {
		t.Error("it revoked in spite of a permission that was back in time")
	}
}

func TestGetEnds(t *testing.T) {
	t.Parallel()
	poller := NewPoller(
		t.Context(),
		PollerOptions{Client: client(t, &server{}), Namespace: "agents", Clock: clocktesting.NewFakeClock(time.Now())},
	)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := poller.Get(ctx, wildcard); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
}
