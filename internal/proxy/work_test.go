package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// begun returns how many permits of a resource were granted, and turnedAway how many were refused.
func (p *proxy) begun(kind flowcontrol.Resource) int64 { return p.FlowControl.Usage()[kind].Granted }

func (p *proxy) turnedAway(kind flowcontrol.Resource) int64 {
	return p.FlowControl.Usage()[kind].Refused
}

// blocked makes some reviews wait, counts them, and passes all others.
type blocked struct {
	atOnce

	release chan struct{}
	left    atomic.Int64 // without a response
}

func (p *proxy) block(about func(string) bool) *blocked {
	b := &blocked{release: make(chan struct{})}
	p.api.duringReviews(func(ctx context.Context, who string) {
		if !about(who) {
			return
		}
		defer b.count()()
		select {
		case <-b.release:
		case <-ctx.Done():
			b.left.Add(1)
		}
	})
	return b
}

func is(name string) func(string) bool { return func(one string) bool { return one == name } }

// begin sends a request in the background. Its response goes to a channel; zero means none.
func (p *proxy) begin(ctx context.Context, client *http.Client, method, path string, body io.Reader) <-chan response {
	got := make(chan response, 1)
	go func() {
		response, _ := p.send(ctx, client, method, path, nil, body)
		got <- response
	}()
	return got
}

// checkCodes expects this number of responses, all with this code.
func checkCodes(t *testing.T, all []<-chan response, code, want int) {
	t.Helper()
	got := map[int]int{}
	for _, one := range all {
		got[(<-one).Code]++
	}
	if got[code] != want {
		t.Errorf("want %d responses with %d, got %v", want, code, got)
	}
}

// TestReviewsAreBounded has one user ask many new questions whose reviews take long. Few are at the API server at a
// time, the reads that wait for them are not forwarded, and another user's question is not delayed.
func TestReviewsAreBounded(t *testing.T) {
	t.Parallel()
	const fit, asked = 16, 60
	p := startProxy(t)
	b := p.block(is("greedy"))
	greedy := p.as(t, "greedy")
	var all []<-chan response
	for i := range asked {
		all = append(all, p.begin(t.Context(), greedy, "GET", fmt.Sprintf("/api/v1/namespaces/%d/pods", i), nil))
	}
	eventually(t, func() bool { return b.now.Load() == fit && p.waiting(flowcontrol.AccessReview) == asked-fit })
	for i := range 10 {
		if got := p.get(t, p.as(t, fmt.Sprintf("user-%d", i)), "/api/v1/nodes", nil); got.Code != 200 {
			t.Errorf("want another user's question served meanwhile, got %d", got.Code)
		}
	}
	if got := len(p.api.requests()); got > fit+10 {
		t.Errorf("want reads to wait when their review does, got %d sent on", got)
	}
	close(b.release)
	checkCodes(t, all, 200, asked)
	if got := b.most.Load(); got > fit {
		t.Errorf("want at most half of the reviews for one user, got %d at once", got)
	}
	eventually(t, func() bool { return p.taken(flowcontrol.AccessReview) == 0 })
}

// TestUsersAreQueuedFairly has two users ask more questions than may be at the API server. A third user's question is next.
func TestUsersAreQueuedFairly(t *testing.T) {
	t.Parallel()
	const fit, asked = 16, 40
	p := startProxy(t)
	step := make(chan struct{})
	var greedy, modest atomic.Int64
	p.api.duringReviews(func(ctx context.Context, who string) {
		if who == "modest" {
			modest.Add(1)
			return
		}
		greedy.Add(1)
		select {
		case <-step:
		case <-ctx.Done():
		}
	})
	var all []<-chan response
	for _, name := range []string{"ann", "bob"} {
		client := p.as(t, name)
		for i := range asked {
			all = append(all, p.begin(t.Context(), client, "GET", fmt.Sprintf("/a-%d", i), nil))
		}
	}
	eventually(t, func() bool { return greedy.Load() == 2*fit && p.waiting(flowcontrol.AccessReview) == 2*(asked-fit) })
	one := p.begin(t.Context(), p.as(t, "modest"), "GET", "/b", nil)
	eventually(t, func() bool { return p.waiting(flowcontrol.AccessReview) == 2*(asked-fit)+1 })
	step <- struct{}{}
	if got := <-one; got.Code != 200 || modest.Load() != 1 {
		t.Errorf("want the review done after one other, got %d", got.Code)
	}
	close(step)
	checkCodes(t, all, 200, 2*asked)
}

// TestReviewsEndWithTheirClients has clients disconnect while their reviews are pending or queued.
func TestReviewsEndWithTheirClients(t *testing.T) {
	t.Parallel()
	const fit, more = 16, 19
	p := startProxy(t)
	b := p.block(is("jane"))
	jane := p.as(t, "jane")
	running, leave := context.WithCancel(t.Context())
	for i := range fit {
		p.begin(running, jane, "GET", fmt.Sprintf("/a-%d", i), nil)
	}
	eventually(t, func() bool { return b.now.Load() == fit })
	waiting, leaveWaiting := context.WithCancel(t.Context())
	for i := range more {
		p.begin(waiting, jane, "GET", fmt.Sprintf("/b-%d", i), nil)
	}
	eventually(t, func() bool { return p.waiting(flowcontrol.AccessReview) == more })
	leaveWaiting() // before the others, whose seats they would get
	eventually(t, func() bool { return p.waiting(flowcontrol.AccessReview) == 0 })
	leave()
	eventually(t, func() bool {
		return b.now.Load() == 0 && p.waiting(flowcontrol.AccessReview)+p.taken(flowcontrol.AccessReview) == 0
	})
	if left := b.left.Load(); left != fit {
		t.Errorf("want the reviews under way to end, and those that waited never to begin, got %d ended", left)
	}
	if asked := p.api.reviewsAsked(); asked != fit {
		t.Errorf("want %d reviews asked for, got %d", fit, asked)
	}

	first, leaveFirst := context.WithCancel(t.Context())
	p.begin(first, jane, "GET", "/same", nil)
	eventually(t, func() bool { return b.now.Load() == 1 })
	second := p.begin(t.Context(), jane, "GET", "/same", nil)
	p.waitServing(t, 2)
	leaveFirst()
	eventually(t, func() bool { return b.left.Load() == fit+1 })
	close(b.release)
	if got := <-second; got.Code != 200 {
		t.Errorf("want the client that stays served, got %d: %s", got.Code, got.Body)
	}
}

// TestTokensOfUnauthenticatedClients floods the proxy with bearer tokens whose reviews take long. A connection waits
// for a limited number of them; neither known users nor another connection's valid token are delayed.
func TestTokensOfUnauthenticatedClients(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.api.set(func() { p.api.tokens["good"] = authenticationv1.UserInfo{Username: "jane", Groups: []string{"g"}} })
	b := p.block(func(about string) bool { return strings.HasPrefix(about, "bad") })
	other := p.rawHTTP2(t, nil)
	for i := range uint32(60) {
		bad := [2]string{"authorization", fmt.Sprintf("Bearer bad-%d", i)}
		other.request(t, 2*i+1, false, append(pseudo("GET", "/a"), bad)...)
	}
	eventually(t, func() bool { return b.now.Load() > 0 && p.turnedAway(flowcontrol.TokenReview) > 0 })
	p.get(t, p.as(t, "joe"), "/b", nil).check(t, 200, "want a user with a certificate not to notice")
	if got := p.get(t, p.client(t, nil), "/b", http.Header{"Authorization": {"Bearer good"}}); got.Code != 200 {
		t.Errorf("want a good token on another connection accepted meanwhile, got %d", got.Code)
	}
	close(b.release)
	got := other.statuses(t)
	if len(got) != 2 || got[401] == 0 || got[429] == 0 {
		t.Errorf("want 401 and 429, got %v", got)
	}
	if most := b.most.Load(); most > 8 {
		t.Errorf("want at most 8 reviews of one connection at a time, got %d", most)
	}
}

// TestATokenThatBecomesGood first refuses a token. A second later it is valid.
func TestATokenThatBecomesGood(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	client, header := p.client(t, nil), http.Header{"Authorization": {"Bearer new"}}
	p.get(t, client, "/a", header).require(t, 401, "want 401")
	p.api.set(func() { p.api.tokens["new"] = authenticationv1.UserInfo{Username: "jane"} })
	clock.Step(time.Second + 1)
	p.get(t, client, "/a", header).check(t, 200, "want it accepted")
}

const loginPath = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests"

// TestLoginsAreBounded floods the proxy with logins that take long. Few are at the API server at a time, one connection
// waits for a limited number, and a login on another connection gets a seat.
func TestLoginsAreBounded(t *testing.T) {
	t.Parallel()
	const fit = 1 // of one connection
	p := startProxy(t)
	release := make(chan struct{})
	var busy atOnce
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if strings.Contains(string(body), "wrong") {
			defer busy.count()()
			<-release
		}
		w.WriteHeader(http.StatusCreated)
	})
	guesser := p.as(t, "guesser")
	other := p.rawHTTP2(t, nil)
	for i := range uint32(40) {
		other.request(t, 2*i+1, true, pseudo("POST", loginPath)...)
		must.Do(t, other.WriteData(2*i+1, true, []byte("wrong")))
	}
	eventually(t, func() bool { return busy.now.Load() == fit && p.turnedAway(flowcontrol.Login) > 0 })
	for name, client := range map[string]*http.Client{"another connection": p.client(t, nil), "a user": guesser} {
		p.do(t, client, "POST", loginPath, nil, "right").check(t, 201, "%s: want a login meanwhile", name)
	}
	p.get(t, guesser, "/a", nil).check(t, 201, "want other requests not to notice")
	close(release)
	if got := other.statuses(t); len(got) != 2 || got[201] == 0 || got[429] == 0 {
		t.Errorf("want some served and some refused with 429, got %v", got)
	}
	if most := busy.most.Load(); most > fit {
		t.Errorf("want at most %d logins at the API server, got %d", fit, most)
	}
	eventually(t, func() bool { return p.taken(flowcontrol.Login)+p.waiting(flowcontrol.Login) == 0 })
}

// TestSlowLoginsHoldNoSeat sends login bodies that do not end, and too long ones.
func TestSlowLoginsHoldNoSeat(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	client := p.client(t, nil)
	body, more := io.Pipe()
	slow := p.begin(t.Context(), client, "POST", loginPath, body)
	must.Get(more.Write([]byte("half")))(t)
	p.do(t, p.client(t, nil), "POST", loginPath, nil, "whole").check(t, 200, "want another login meanwhile")
	if p.begun(flowcontrol.Login) != 1 {
		t.Error("want a login to is queued when its body is there, not before")
	}
	_ = more.Close()
	if got := <-slow; got.Code != 200 {
		t.Errorf("want it served in the end, got %d", got.Code)
	}
	if last := p.api.requests()[1]; last.Body != "half" {
		t.Errorf("want the body to arrive as it was sent, got %q", last.Body)
	}
	p.do(t, client, "POST", loginPath, nil, strings.Repeat("a", maxLogin+1)).check(t, 413, "want 413 for what is no login")
}

// TestLoginsNeedLittleMemory has little memory left for unauthenticated clients: the responses to logins take none of
// it.
func TestLoginsNeedLittleMemory(t *testing.T) {
	t.Parallel()
	p := startProxy(t, memory(1<<20)) // of which unauthenticated clients have 64 KiB
	p.api.serves(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush() // of unknown length, like the API server's response
		_, _ = io.WriteString(w, "credential")
	})
	if got := p.do(t, p.client(t, nil), "POST", loginPath, nil, "right"); got.Code != 200 || got.Body != "credential" {
		t.Errorf("want the login served, got %d: %s", got.Code, got.Body)
	}
	eventually(t, func() bool { return p.held(flowcontrol.Request) == 0 })
}

// badChain returns a certificate of an unknown CA with a number of intermediates that could have issued it.
func badChain(t *testing.T, intermediates int, subject func(i int) string, notBefore time.Time) *tls.Certificate {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             notBefore,
		NotAfter:              time.Now().Add(time.Hour),
		BasicConstraintsValid: true,
	}
	issue := func(name string, ca bool) []byte {
		one := *template
		one.Subject, one.IsCA = pkix.Name{CommonName: name}, ca
		parent := *template
		parent.Subject = pkix.Name{CommonName: "unknown"}
		return must.Get(x509.CreateCertificate(rand.Reader, &one, &parent, &key.PublicKey, key))(t)
	}
	chain := [][]byte{issue("other", false)}
	for i := range intermediates {
		chain = append(chain, issue(subject(i), true))
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key}
}

func different(i int) string { return fmt.Sprint("ca-", i) }
func alike(int) string       { return "unknown" }

// TestCostlyChains presents certificates that are costly to verify. They are refused without verification; others are
// verified once.
func TestCostlyChains(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.api.configMap["requestheader-client-ca-file"] = string(newCA(t, "front proxy CA").CertPEM())
	p.api.configMap["requestheader-username-headers"] = `["X-Remote-User"]`
	p.start(t)
	for _, test := range []struct {
		name  string
		chain *tls.Certificate
		want  int64 // verifications of users' and front proxies' certificates
	}{
		{"verifies one certificate once, whatever for", badChain(t, 0, different, time.Now()), 2},
		{"verifies as many as a client may present once", badChain(t, clienttrust.MaxPresented-1, different, time.Now()), 2},
		{"refuses one more", badChain(t, clienttrust.MaxPresented, different, time.Now()), 0},
		{"refuses twenty", badChain(t, 20, different, time.Now()), 0},
		{"takes two of one name", badChain(t, 2, alike, time.Now()), 2},
		{"refuses three of one name", badChain(t, 3, alike, time.Now()), 0},
	} {
		before := p.begun(flowcontrol.Certificate)
		for range 10 {
			client := p.client(t, test.chain)
			for _, header := range []http.Header{nil, {"X-Remote-User": {"jane"}}} {
				p.get(t, client, "/a", header).check(t, 401, "%s: want 401", test.name)
			}
		}
		if got := p.begun(flowcontrol.Certificate) - before; got != test.want {
			t.Errorf("%s: want %d verifications in 20 requests, got %d", test.name, test.want, got)
		}
	}
	if got := p.taken(flowcontrol.Certificate); got != 0 {
		t.Errorf("want no verification left, got %d", got)
	}
}

// TestCertificatesBecomeGood presents certificates that are refused at first: the cached refusal must expire when the
// result could change.
func TestCertificatesBecomeGood(t *testing.T) {
	t.Parallel()
	clock := newStillClock()
	p := startProxy(t, still(clock))
	certificate := certificateFrom(t, p.signerCA, time.Now().Add(30*time.Second), "jane")
	early, begins := p.client(t, certificate), certificate.Leaf.NotBefore
	if begins.Before(time.Now()) {
		clock.Step(-time.Hour)
	}
	p.get(t, early, "/a", nil).require(t, 401, "want a certificate of tomorrow refused")
	clock.Step(begins.Sub(clock.Now()) + time.Millisecond)
	p.get(t, early, "/a", nil).check(t, 200, "want it accepted as soon as it is valid")

	other := newCA(t, "another signer CA")
	later := p.client(t, clientCertificate(t, other, "joe"))
	p.get(t, later, "/a", nil).require(t, 401, "want the certificate of an unknown CA refused")
	p.signer.Store(append(bytes.Clone(p.signerCA.CertPEM()), other.CertPEM()...))
	p.get(t, later, "/a", nil).check(t, 200, "want it accepted as soon as its CA is known")
}

// TestVerificationsAreQueued has many clients present uncached certificates at once.
func TestVerificationsAreQueued(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var all sync.WaitGroup
	for i := range 40 {
		certificate := clientCertificate(t, p.signerCA, fmt.Sprintf("user-%d", i))
		all.Go(func() { p.get(t, p.client(t, certificate), "/a", nil).check(t, 200, "want 200") })
	}
	all.Wait()
	if got := p.begun(flowcontrol.Certificate); got != 40 {
		t.Errorf("want each verified once, got %d verifications", got)
	}
}

// TestLoginsSayWhereTheyCome checks that a forwarded login says that it came through this proxy. Other requests do not,
// and clients cannot claim it.
func TestLoginsSayWhereTheyCome(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	header := http.CanonicalHeaderKey("Impersonate-Extra-Login.impersonation-Proxy.concierge.pinniped.dev")
	other := strings.Replace(loginPath, "pinniped.dev", "other.example.com", 1)
	for _, path := range []string{loginPath, other, "/apis/x/v1/things"} {
		p.do(t, p.as(t, "jane"), "POST", path, nil, "{}")
	}
	var said []string
	for _, request := range p.api.requests() {
		said = append(said, strings.Join(request.Header[header], ","))
	}
	if !slices.Equal(said, []string{"login.concierge.pinniped.dev", "", ""}) {
		t.Errorf("want it said of the login alone, got %q", said)
	}
	claim := http.Header{"Impersonate-User": {"jane"}, header: {"login.concierge.pinniped.dev"}}
	if got := p.do(t, p.as(t, "jane"), "POST", loginPath, claim, "{}"); got.Code < 400 {
		t.Errorf("want a client refused that claims it, got %d", got.Code)
	}
}
