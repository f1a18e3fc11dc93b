package authenticator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	authenticationv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/authentication/v1alpha1"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/issuer"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// asked is an authenticator that returns verdicts from a table and records the tokens.
type asked struct {
	mu     sync.Mutex
	tokens []string
	users  map[string]*user.DefaultInfo
	err    error
	wait   chan struct{}
}

func (a *asked) AuthenticateToken(_ context.Context, token string) (user.Info, bool, error) {
	a.mu.Lock()
	a.tokens = append(a.tokens, token)
	info, err, wait := a.users[token], a.err, a.wait
	a.mu.Unlock()
	if wait != nil {
		<-wait
	}
	if info == nil || err != nil {
		return nil, false, err
	}
	return info, true, nil
}

func (a *asked) taken() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	tokens := a.tokens
	a.tokens = nil
	return tokens
}

// away is the error of an authenticator that does not respond.
type away struct{ error }

func (away) Unavailable() bool { return true }

// gate is a Bearer whose dependencies a test controls.
type gate struct {
	*Bearer
	clock    *clocktesting.FakeClock
	shelf    *Cache
	cluster  *asked
	webhook  *asked
	second   *asked
	idp      *issuer.Issuer
	provider *Provider
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{
		clock: clocktesting.NewFakeClock(time.Now()),
		shelf: NewCache("g"),
		idp:   issuer.New(t),
		cluster: &asked{
			users: map[string]*user.DefaultInfo{"cluster-token": {Name: "system:serviceaccount:a:b", UID: "7"}},
		},
		webhook: &asked{users: map[string]*user.DefaultInfo{
			"webhook-token": {Name: "ann", Groups: []string{"dev"}},
			"masters":       {Name: "ann", Groups: []string{"system:masters"}},
			"forged":        {Name: "ann", Extra: map[string][]string{VouchedByKey: {"JWTAuthenticator/other"}}},
		}},
		second: &asked{
			users: map[string]*user.DefaultInfo{"second-token": {Name: "bob"}, "webhook-token": {Name: "mallory"}},
		},
	}
	g.provider = newProvider(t, g.idp, clock.RealClock{})
	g.Bearer = NewBearer(g.shelf, g.clock)
	g.shelf.Put(KindWebhook, "hook", g.webhook)
	g.shelf.Put(KindWebhook, "second", g.second)
	g.shelf.Put(KindWebhook, "not-named", &asked{users: map[string]*user.DefaultInfo{"x": {Name: "x"}}})
	g.shelf.Put(KindJWT, "ci", newJWT(t, g.provider, authenticationv1alpha1.JWTAuthenticatorSpec{}))
	g.shelf.Expect(KindJWT, "unnamed", "https://unnamed")
	g.use(accepts(KindJWT, "ci"), accepts(KindWebhook, "hook"), accepts(KindWebhook, "second"))
	return g
}

// use sets the authenticators whose tokens are accepted.
func (g *gate) use(entries ...configv1alpha1.BearerTokenAuthenticator) {
	g.Use(configv1alpha1.BearerTokensSpec{Authenticators: entries})
}

func accepts(kind, name string) configv1alpha1.BearerTokenAuthenticator {
	return configv1alpha1.BearerTokenAuthenticator{Kind: configv1alpha1.AuthenticatorKind(kind), Name: name}
}

// ask presents a token and returns the user, or an error.
func (g *gate) ask(t *testing.T, token string) (user.Info, error) {
	t.Helper()
	cluster := authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		info, ok, err := g.cluster.AuthenticateToken(ctx, token)
		return &authenticator.Response{User: info}, ok, err
	})
	response, ok, err := g.With(cluster).AuthenticateToken(t.Context(), token)
	if ok != (err == nil && response != nil && response.User != nil) && ok {
		t.Errorf("ok %v, error %v", ok, err)
	}
	if !ok {
		return nil, err
	}
	return response.User, nil
}

func TestBearerOrder(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	sign := func(claims map[string]any) string { return g.idp.Token(t, g.idp.Claims(audience, claims)) }
	other := issuer.New(t)
	const no = ""
	hook, ci := VouchedByKey+"=WebhookAuthenticator/hook", VouchedByKey+"=JWTAuthenticator/ci"
	for _, test := range []struct {
		name, token, user, by string
		cluster, webhooks     bool // get the token
	}{
		{"the cluster's own", "cluster-token", "system:serviceaccount:a:b", "", true, false},
		{"a webhook's", "webhook-token", "ann", hook, true, true},
		{"the second webhook's", "second-token", "bob", VouchedByKey + "=WebhookAuthenticator/second", true, true},
		{"nobody's", "nonsense", no, "", true, true},
		{"one of a webhook that is not named", "x", no, "", true, true},
		{"an issuer's, which no other authenticator gets", sign(nil), "ann", ci, false, false},
		{"an issuer's that is expired, which no other authenticator gets", sign(map[string]any{"exp": 1}), no, "", false, false},
		{
			"one for the issuer's other audience, which is for the cluster to know", sign(map[string]any{"aud": "elsewhere"}),
			no, "", true, false,
		},
		{
			"one for another service, of the issuer with a slash", other.Token(t, g.idp.Claims("sts.amazonaws.com",
				map[string]any{"iss": g.idp.URL + "/"})), no, "", true, false,
		},
		{"a good one with something appended", sign(nil) + ".a", no, "", true, false},
		{"a good one that is quoted", `"` + sign(nil) + `"`, no, "", false, false},
		{"a good one without its signature", sign(nil)[:strings.LastIndex(sign(nil), ".")], no, "", true, false},
		{"a good one as JSON", `{"payload":"` + strings.Split(sign(nil), ".")[1] + `"}`, no, "", true, false},
		{"of an issuer that is not named", other.Token(t, g.idp.Claims("x", map[string]any{"iss": "https://unnamed/"})), no, "", true, false},
		{"one with the issuer's name on it", other.Token(t, g.idp.Claims(audience, nil)), no, "", false, false},
		{"one of another issuer", other.Token(t, other.Claims(audience, nil)), no, "", true, false},
		{
			"a service account's, which no webhook sees",
			other.Token(t, other.Claims("vault", map[string]any{"sub": "system:serviceaccount:a:b"})), no, "", true, false,
		},
		{
			"one of the masters, by an issuer", sign(map[string]any{"groups": []string{"system:masters"}}), no, "", false, false,
		},
		{"an administrator's, by an issuer", sign(map[string]any{"username": "system:admin"}), no, "", false, false},
		{"look-alikes of the masters", sign(map[string]any{"groups": []string{"ѕystem:masters"}}), no, "", false, false},
		{"one of the masters, by a webhook", "masters", no, "", true, true},
		{"one that names another authenticator", "forged", no, "", true, true},
		{"blank", " ", no, "", true, false},
	} {
		g.cluster.taken()
		g.webhook.taken()
		info, err := g.ask(t, test.token)
		got, by := no, ""
		if err == nil && info != nil {
			got = info.GetName()
			for key, values := range info.GetExtra() {
				by += key + "=" + strings.Join(values, ",")
			}
		}
		if got != test.user || by != test.by {
			t.Errorf("%s: got user %q by %q, %v", test.name, got, by, err)
		}
		if asked := len(g.cluster.taken()) > 0; asked != test.cluster {
			t.Errorf("%s: the cluster was asked: %v", test.name, asked)
		}
		if asked := len(g.webhook.taken()) > 0; asked != test.webhooks {
			t.Errorf("%s: webhooks were asked: %v", test.name, asked)
		}
		if err != nil && test.token != "x" && len(test.token) > 3 && strings.Contains(err.Error(), test.token) {
			t.Errorf("%s: the error has the token: %v", test.name, err)
		}
	}
}

func TestBearerShowsTokensOfUnknownIssuersToWebhooksThatMaySeeThem(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	other := issuer.New(t)
	foreign := other.Token(t, other.Claims(audience, nil))
	own := g.idp.Token(t, g.idp.Claims("elsewhere", nil))
	account := other.Token(t, other.Claims("vault", map[string]any{"sub": "system:serviceaccount:a:b"}))
	second := accepts(KindWebhook, "second")
	second.UnknownIssuers = true
	g.use(accepts(KindJWT, "ci"), accepts(KindWebhook, "hook"), second)
	g.second.users[foreign] = &user.DefaultInfo{Name: "bob"}
	if info, err := g.ask(t, foreign); err != nil || info == nil || info.GetName() != "bob" {
		t.Errorf("got %v, %v", info, err)
	}
	g.second.taken()
	for _, token := range []string{own, own + ".a", account} {
		if info, err := g.ask(t, token); info != nil {
			t.Errorf("got %v, %v", info, err)
		}
	}
	if len(g.webhook.taken()) != 0 || len(g.second.taken()) != 0 {
		t.Error("a webhook saw what it may not see")
	}
	// A webhook's verdict ends with its permission.
	g.use(accepts(KindJWT, "ci"), accepts(KindWebhook, "hook"), accepts(KindWebhook, "second"))
	if info, err := g.ask(t, foreign); info != nil {
		t.Errorf("got %v, %v", info, err)
	}
}

func TestBearerWaitsForAuthenticatorsThatAreMissing(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	own := g.idp.Token(t, g.idp.Claims(audience, nil))
	other := issuer.New(t)
	waits := func(token string) {
		t.Helper()
		if info, err := g.ask(t, token); info != nil || !isUnavailable(err) {
			t.Errorf("want no verdict, got %v, %v", info, err)
		}
	}
	works := func(token string) {
		t.Helper()
		if info, err := g.ask(t, token); info == nil || err != nil {
			t.Errorf("want a user, got %v", err)
		}
	}
	g.shelf.Remove(KindJWT, "ci")
	waits(own)
	works("webhook-token")
	works("cluster-token")
	if info, err := g.ask(t, "nonsense"); info != nil || isUnavailable(err) {
		t.Errorf("what is no token of an issuer waits for one: %v, %v", info, err)
	}
	taken := g.webhook.taken()
	for _, token := range taken {
		if token == own {
			t.Error("a webhook saw the token")
		}
	}
	g.shelf.Expect(KindJWT, "ci", g.idp.URL) // it was recreated, and is not checked yet
	waits(own)
	if info, err := g.ask(t, other.Token(t, other.Claims(audience, nil))); info != nil || isUnavailable(err) {
		t.Errorf("a token of another issuer waits: %v, %v", info, err)
	}
	g.shelf.Put(KindJWT, "ci", newJWT(t, g.provider, authenticationv1alpha1.JWTAuthenticatorSpec{}))
	works(own)
	g.shelf.Suspend(KindWebhook, "hook", "its certificate is bad")
	waits("of that webhook")
	if len(g.webhook.taken()) != 0 {
		t.Error("a webhook saw a token")
	}
	g.shelf.Remove(KindWebhook, "hook")
	waits("of that webhook")
}

// TestBearerTakesNamesOfOneKind has authenticators of both kinds with the same names, of which one each is configured.
func TestBearerTakesNamesOfOneKind(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	own := g.idp.Token(t, g.idp.Claims(audience, nil))
	tenant := &asked{users: map[string]*user.DefaultInfo{"webhook-token": {Name: "mallory"}, own: {Name: "mallory"}}}
	g.shelf.Put(KindWebhook, "ci", tenant)
	g.shelf.Put(KindJWT, "hook", newJWT(t, g.provider, authenticationv1alpha1.JWTAuthenticatorSpec{}))

	g.use(accepts(KindJWT, "ci"))
	for token, want := range map[string]bool{own: true, "webhook-token": false, "nonsense": false} {
		if info, err := g.ask(t, token); (info != nil) != want || isUnavailable(err) {
			t.Errorf("want user %v, got %v, %v", want, info, err)
		}
	}
	if got := tenant.taken(); len(got) != 0 {
		t.Errorf("the webhook of the same name got %q", got)
	}

	g.use(accepts(KindWebhook, "hook"))
	if info, err := g.ask(t, own); info != nil || isUnavailable(err) {
		t.Errorf("want no user by the JWTAuthenticator of the same name, got %v, %v", info, err)
	}
	if info, err := g.ask(t, "webhook-token"); err != nil || info == nil || info.GetName() != "ann" {
		t.Errorf("want the webhook's user, got %v, %v", info, err)
	}
}

func TestLikeJWT(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]bool{
		"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.x.y":     true,
		"eyJhbGciOiJSUzI1NiJ9":                       true,
		" eyJhbGciOiJSUzI1NiJ9.e30":                  true,
		"ewogICJhbGciOiAiUlMyNTYiCn0=.e30=.c2ln.a.b": true, // with white space, padding, more parts
		`{"payload":"e30","signature":"eA"}`:         true,
		"e30.e30.":                                   true, // {}
		"":                                           false,
		"ann:dev:password":                           false,
		"ghp_16C7e42F292c6912E7710c838347Ae17":       false,
		"eyJ0b2tlbg":                                 false, // {"token: not a name yet
		"x.eyJhbGciOiJSUzI1NiJ9":                     false,
	} {
		if got := formOf(token).likeJWT; got != want {
			t.Errorf("%q: got %v", token, got)
		}
	}
}

func TestBearerIsOffByDefault(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.use()
	for _, token := range []string{"webhook-token", g.idp.Token(t, g.idp.Claims(audience, nil))} {
		if info, err := g.ask(t, token); info != nil {
			t.Errorf("got %v, %v", info, err)
		}
	}
	if len(g.cluster.taken()) != 2 || len(g.webhook.taken()) != 0 {
		t.Error("want the cluster to be asked, and no other authenticator")
	}
}

func TestBearerCaches(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	name := func(token string) string {
		info, err := g.ask(t, token)
		if err != nil || info == nil {
			return ""
		}
		return info.GetName()
	}
	for range 2 {
		if got := name("webhook-token"); got != "ann" {
			t.Fatalf("got %q", got)
		}
	}
	if len(g.webhook.taken()) != 1 || len(g.cluster.taken()) != 1 {
		t.Error("want one question for two requests")
	}
	// A revoked token is refused within seconds.
	delete(g.webhook.users, "webhook-token")
	delete(g.second.users, "webhook-token")
	g.clock.Step(webhookTTL + time.Millisecond)
	if name("webhook-token") != "" {
		t.Error("a revoked token works")
	}
	g.webhook.taken()
	if name("webhook-token") != "" || len(g.webhook.taken()) != 0 {
		t.Error("want the refusal to be cached")
	}
	// A token accepted later is accepted soon.
	g.webhook.users["webhook-token"] = &user.DefaultInfo{Name: "ann"}
	g.clock.Step(refusalTTL + time.Millisecond)
	if name("webhook-token") != "ann" {
		t.Error("it is still refused")
	}
	// An authenticator's verdict ends when it is removed, or no longer configured.
	g.use(accepts(KindJWT, "ci"))
	if name("webhook-token") != "" {
		t.Error("accepted from an authenticator that is not named any more")
	}
	g.use(accepts(KindJWT, "ci"), accepts(KindWebhook, "hook"))
	g.clock.Step(refusalTTL + time.Millisecond)
	if name("webhook-token") != "ann" {
		t.Error("refused")
	}
	g.shelf.Put(KindWebhook, "hook", &asked{})
	if name("webhook-token") != "" {
		t.Error("accepted from an authenticator that is another one now")
	}
}

func TestBearerOfAnIssuerEndsInTime(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	token := g.idp.Token(t, g.idp.Claims(audience, map[string]any{"exp": time.Now().Add(3 * time.Second).Unix()}))
	must.Get(g.ask(t, token))(t)
	g.idp.SetAway(true)
	if _, err := g.ask(t, token); err != nil {
		t.Error(err)
	}
	g.shelf.Suspend(KindJWT, "ci", "no more")
	if info, err := g.ask(t, token); info != nil || !isUnavailable(err) {
		t.Errorf("want no verdict of an authenticator that is out of use, got %v, %v", info, err)
	}
	if len(g.webhook.taken()) != 0 {
		t.Error("a webhook saw the token of an issuer that is not ready")
	}
}

func TestBearerDistinguishesNoFromNoResponse(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.webhook.err, g.second.err = errors.New("connection refused"), nil
	if _, err := g.ask(t, "nonsense"); !isUnavailable(err) {
		t.Errorf("a webhook that is away: got %v", err)
	}
	if info, err := g.ask(t, "second-token"); err != nil || info.GetName() != "bob" {
		t.Errorf("a webhook that is not away: got %v", err)
	}
	g.webhook.err = nil
	if _, err := g.ask(t, "nonsense"); err == nil || isUnavailable(err) {
		t.Errorf("a webhook that is back: got %v", err)
	}
	g.webhook.taken()
	g.cluster.err = away{errors.New("the API server is away")}
	if _, err := g.ask(t, "other-nonsense"); !isUnavailable(err) || len(g.webhook.taken()) != 0 {
		t.Errorf("the API server is away: got %v", err)
	}
}

func TestBearerAsksOnceAndNotTooMuch(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.use(accepts(KindWebhook, "hook"))
	g.webhook.wait = make(chan struct{})
	var group sync.WaitGroup
	var full atomic.Int32
	for i := range 3 * maxAsked {
		group.Go(func() {
			if _, err := g.ask(t, fmt.Sprintf("nonsense-%d", i)); isUnavailable(err) {
				full.Add(1)
			}
		})
	}
	deadline := time.Now().Add(10 * time.Second)
	for full.Load() < 2*maxAsked && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	close(g.webhook.wait)
	group.Wait()
	if diff := cmp.Diff([]int{2 * maxAsked, maxAsked}, []int{int(full.Load()), len(g.webhook.taken())}); diff != "" {
		t.Errorf("turned away and asked (-want +got):\n%s", diff)
	}
	g.webhook.wait = make(chan struct{})
	for range 50 {
		group.Go(func() { _, _ = g.ask(t, "the same") })
	}
	time.AfterFunc(200*time.Millisecond, func() { close(g.webhook.wait) })
	group.Wait()
	if got := len(g.webhook.taken()); got != 1 {
		t.Errorf("want one question about one token, got %d", got)
	}
}
