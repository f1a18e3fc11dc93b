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
)

const (
	credentialAnswer = `{"status":{"credential":{"clientCertificateData":"a"}}}`
	noCredential     = `{"status":{"message":"authentication failed"}}`
)

// serveLogins answers logins: those with "wrong" in them wait until release ends, and get no credential.
func (p *proxy) serveLogins(release <-chan struct{}) (waiting *atomic.Int64) {
	waiting = new(atomic.Int64)
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			answer := credentialAnswer
			if strings.Contains(string(body), "wrong") {
				waiting.Add(1)
				<-release
				waiting.Add(-1)
				answer = noCredential
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, answer)
		}
	})
	return waiting
}

// TestGoodLoginsDoNotWait has strangers' logins take all turns that they may have. Who logged in before has a turn all
// the same, at once.
func TestGoodLoginsDoNotWait(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	waiting := p.serveLogins(release)
	logIn := func(body string) <-chan *answer {
		return p.begin(t.Context(), p.client(t, nil), "POST", loginPath, nil, strings.NewReader(body))
	}
	if got := (<-logIn("right")); got == nil || got.Body != credentialAnswer {
		t.Fatalf("want a login, got %v", got)
	}
	var all []<-chan *answer
	for i := range 2 * p.Work.Logins {
		all = append(all, logIn(fmt.Sprint("wrong ", i)))
	}
	strangers := int64(p.Work.Logins - p.Work.Logins/4)
	eventually(t, func() bool {
		return waiting.Load() == strangers && p.work.Logins.Fair.Waiting() == len(all)-int(strangers)
	})
	if got := (<-logIn("right")); got == nil || got.Body != credentialAnswer {
		t.Errorf("want who logged in before to log in, got %v", got)
	}
	newcomer := logIn("right as well")
	eventually(t, func() bool { return p.work.Logins.Fair.Waiting() == len(all)-int(strangers)+1 })
	close(release)
	if got := codes(append(all, newcomer)); got[http.StatusCreated] != len(all)+1 {
		t.Errorf("want all answered, got %v", got)
	}
}

// TestASharedTokenIsRefusedToNoClient has more clients log in with one token than may wait for a login that was good
// before, as the jobs of a fleet do.
func TestASharedTokenIsRefusedToNoClient(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	var slow atomic.Bool
	release := make(chan struct{})
	p.api.set(func() {
		p.api.serve = func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			if slow.Load() {
				<-release
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, credentialAnswer)
		}
	})
	logIn := func() <-chan *answer {
		return p.begin(t.Context(), p.client(t, nil), "POST", loginPath, nil, strings.NewReader("shared"))
	}
	if got := <-logIn(); got == nil || got.Code != http.StatusCreated {
		t.Fatalf("want a login, got %v", got)
	}
	slow.Store(true)
	var all []<-chan *answer
	for range 2 * p.Work.PerConnection {
		all = append(all, logIn())
	}
	eventually(t, func() bool {
		logins := p.work.Logins
		return logins.Fair.Running()+logins.Fair.Waiting()+int(logins.Refused.Load()) == len(all)
	})
	close(release)
	if got := codes(all); got[http.StatusCreated] != len(all) {
		t.Errorf("want all logged in, got %v", got)
	}
}

// TestFailedLoginsCostTheConnection guesses passwords on one connection. Each is answered 201 as the API server does, but
// counts as refused, and the connection ends.
func TestFailedLoginsCostTheConnection(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	close(release)
	for body, want := range map[string]int64{"wrong": 1, "right": 0} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			p.serveLogins(release)
			p.underAttack(t)
			before := p.open.misused.Load()
			c := p.rawHTTP2(t, nil)
			c.request(t, 1, true, false, append(pseudo("POST", loginPath), [2]string{"content-type", "application/json"})...)
			if err := c.WriteData(1, true, []byte(body)); err != nil {
				t.Fatal(err)
			}
			if got := c.answers(t); got[http.StatusCreated] != 1 || len(got) != 1 {
				t.Errorf("want one answer, got %v", got)
			}
			if got := p.open.misused.Load() - before; got != want {
				t.Errorf("want %d connections closed for what was refused, got %d", want, got)
			}
		})
	}
}

// TestAbandonedLoginsKeepTheirTurn has a client leave again and again as soon as its login has a turn. The login goes on,
// so that no more logins are caused than if the client had waited.
func TestAbandonedLoginsKeepTheirTurn(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	release := make(chan struct{})
	waiting := p.serveLogins(release)
	strangers := int64(p.Work.Logins - p.Work.Logins/4)
	for i := range 3 * strangers {
		ctx, cancel := context.WithCancel(t.Context())
		left := p.begin(ctx, p.client(t, nil), "POST", loginPath, nil, strings.NewReader(fmt.Sprint("wrong ", i)))
		eventually(t, func() bool {
			return waiting.Load() == min(i+1, strangers) && (i < strangers || p.work.Logins.Fair.Waiting() == 1)
		})
		cancel()
		<-left
		eventually(t, func() bool { return p.work.Logins.Fair.Waiting() == 0 })
	}
	if got := waiting.Load(); got != strangers {
		t.Errorf("want %d logins at the API server, got %d", strangers, got)
	}
	close(release)
	eventually(t, func() bool { return p.work.Logins.Fair.Running() == 0 })
}

// TestAbandonedLoginsEnd shows that they do not go on for ever.
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
