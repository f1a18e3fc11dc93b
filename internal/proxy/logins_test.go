package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

const (
	credentialResponse = `{"status":{"credential":{"clientCertificateData":"a"}}}`
	noCredential       = `{"status":{"message":"authentication failed"}}`
	// loginsFromHere is how many logins of one address are at the API server at a time.
	loginsFromHere = 6
)

// serveLogins responds to logins: those with "wrong" in them wait until release is closed, and get no credential.
func (p *proxy) serveLogins(release <-chan struct{}) (waiting *atomic.Int64) {
	waiting = new(atomic.Int64)
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		response := credentialResponse
		if strings.Contains(string(body), "wrong") {
			waiting.Add(1)
			<-release
			waiting.Add(-1)
			response = noCredential
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, response)
	})
	return waiting
}

// logIn sends a login over a connection of its own.
func (p *proxy) logIn(ctx context.Context, t *testing.T, body string) <-chan response {
	t.Helper()
	return p.begin(ctx, p.client(t, nil), "POST", loginPath, strings.NewReader(body))
}

// TestGoodLoginsDoNotWait has unauthenticated clients' logins take all their seats. A user who logged in before still
// gets a seat at once.
func TestGoodLoginsDoNotWait(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	waiting := p.serveLogins(release)
	if got := (<-p.logIn(t.Context(), t, "right")); got.Body != credentialResponse {
		t.Fatalf("want a login, got %v", got)
	}
	var all []<-chan response
	const asked = 16
	for i := range asked {
		all = append(all, p.logIn(t.Context(), t, fmt.Sprint("wrong ", i)))
	}
	eventually(t, func() bool {
		return waiting.Load() == loginsFromHere && p.waiting(flowcontrol.Login) == asked-loginsFromHere
	})
	if got := (<-p.logIn(t.Context(), t, "right")); got.Body != credentialResponse {
		t.Errorf("want who logged in before to log in, got %v", got)
	}
	newcomer := p.logIn(t.Context(), t, "right as well")
	eventually(t, func() bool { return p.waiting(flowcontrol.Login) == asked-loginsFromHere+1 })
	close(release)
	checkCodes(t, append(all, newcomer), http.StatusCreated, len(all)+1)
}

// TestASharedTokenIsRefusedToNoClient has more clients log in with one known good token than may be queued for it, as
// the jobs of a fleet do.
func TestASharedTokenIsRefusedToNoClient(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var slow atomic.Bool
	release := make(chan struct{})
	p.api.serves(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if slow.Load() {
			<-release
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, credentialResponse)
	})
	if got := <-p.logIn(t.Context(), t, "shared"); got.Code != http.StatusCreated {
		t.Fatalf("want a login, got %v", got)
	}
	slow.Store(true)
	var all []<-chan response
	for range 32 {
		all = append(all, p.logIn(t.Context(), t, "shared"))
	}
	eventually(t, func() bool { return p.taken(flowcontrol.Login)+p.waiting(flowcontrol.Login) == len(all) })
	close(release)
	checkCodes(t, all, http.StatusCreated, len(all))
}

// TestFailedLoginsArePenalized guesses a password as a user. The response is 201, as from the API server, but the user gets
// a penalty. A successful login causes none.
func TestFailedLoginsArePenalized(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	close(release)
	p.serveLogins(release)
	for body, user := range map[string]string{"right": "honest", "wrong": "guesser"} {
		p.do(t, p.as(t, user), "POST", loginPath, nil, body).require(t, http.StatusCreated, "want 201")
	}
	eventually(t, func() bool { return p.FlowControl.Delay("guesser") != 0 }) // not zero within the burst
	if got := p.FlowControl.Delay("honest"); got != 0 {
		t.Errorf("want who logs in to owe nothing, got %s", got)
	}
}

// TestAbandonedLoginsKeepTheirSeat has a client disconnect again and again as soon as its login has a seat. The login
// continues, so this causes no more logins than if the client had waited.
func TestAbandonedLoginsKeepTheirSeat(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	waiting := p.serveLogins(release)
	for i := range int64(3 * loginsFromHere) {
		ctx, cancel := context.WithCancel(t.Context())
		left := p.logIn(ctx, t, fmt.Sprint("wrong ", i))
		eventually(t, func() bool {
			return waiting.Load() == min(i+1, loginsFromHere) && (i < loginsFromHere || p.waiting(flowcontrol.Login) == 1)
		})
		cancel()
		<-left
		eventually(t, func() bool { return p.waiting(flowcontrol.Login) == 0 })
	}
	if got := waiting.Load(); got != loginsFromHere {
		t.Errorf("want %d logins at the API server, got %d", loginsFromHere, got)
	}
	close(release)
	eventually(t, func() bool { return p.taken(flowcontrol.Login) == 0 })
}

// TestAbandonedLoginsEnd checks that abandoned logins do not continue forever.
func TestAbandonedLoginsEnd(t *testing.T) {
	t.Parallel()
	parent, leave := context.WithCancel(t.Context())
	ctx, cancel := outlive(parent, time.Millisecond)
	defer cancel()
	if leave(); ctx.Err() != nil {
		t.Fatal("want it to outlive the client")
	}
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
		t.Error("want it ended")
	}
}
