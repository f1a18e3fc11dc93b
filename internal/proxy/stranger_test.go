package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
)

// withIntermediates adds certificates of a size, as large as with RSA keys of 4096 bits and long names, to a client's.
func withIntermediates(t *testing.T, leaf *tls.Certificate, n, size int) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	chain := &tls.Certificate{Certificate: leaf.Certificate[:1:1], PrivateKey: leaf.PrivateKey}
	for i := range n {
		template := &x509.Certificate{
			SerialNumber:    big.NewInt(int64(i)),
			Subject:         pkix.Name{CommonName: fmt.Sprint("ca-", i)},
			NotBefore:       time.Now(),
			NotAfter:        time.Now().Add(time.Hour),
			ExtraExtensions: []pkix.Extension{{Id: []int{1, 2, 3, 4}, Value: make([]byte, size)}},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		chain.Certificate = append(chain.Certificate, der)
	}
	return chain
}

// TestCertificatesOfManyGroups presents a certificate as large as the Concierge APIs issue them (maxCertificate there), the
// second time with a session ticket, which has it in it.
func TestCertificatesOfManyGroups(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	const most = 28 << 10
	names := func(count int) (groups []string) {
		for i := range count {
			groups = append(groups, fmt.Sprintf("%060d", i))
		}
		return groups
	}
	count := 300
	for len(clientCertificate(t, p.signerCA, "jane", names(count+1)...).Certificate[0]) <= most {
		count++
	}
	client := p.client(t, clientCertificate(t, p.signerCA, "jane", names(count)...))
	for range 2 {
		if got := p.get(t, client, "/a", nil); got.Code != http.StatusOK {
			t.Errorf("%d groups: got %d", count, got.Code)
		}
		client.CloseIdleConnections()
	}
}

// TestHandshakesAreBounded presents as many large certificates as a client may, and then more than a handshake may have.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	metrics := NewMetrics()
	p := startProxy(t, func(_ *proxy, o *Options) { o.Metrics = metrics })
	jane := clientCertificate(t, p.signerCA, "jane")
	large := p.client(t, withIntermediates(t, jane, clienttrust.MaxPresented-1, 2500))
	for range 2 { // the second time with a session ticket, which has the certificates in it
		if got := p.get(t, large, "/a", nil); got.Code != http.StatusOK {
			t.Errorf("want %d large certificates taken, got %d", clienttrust.MaxPresented, got.Code)
		}
		large.CloseIdleConnections()
	}
	before := p.work.Certificates.Begun.Load()
	conn, err := (&tls.Dialer{Config: p.clientTLS(withIntermediates(t, jane, 100, 300))}).DialContext(
		t.Context(), "tcp", p.address)
	if err == nil { // with TLS 1.3 the client knows only when it reads
		defer conn.Close() //nolint:errcheck // it has ended
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = conn.Read(make([]byte, 1))
	}
	if timeout, ok := errors.AsType[net.Error](err); err == nil || ok && timeout.Timeout() {
		t.Fatalf("want the connection ended, got %v", err)
	}
	eventually(t, func() bool { return p.budget.Held(budget.Connections) == 0 })
	checkMeasured(t, metrics, map[string]float64{"tls_handshake_failures_total{cause=too_large}": 1})
	if got := p.unshaken.Total(); got != 1 {
		t.Errorf("want it in the log, got %d", got)
	}
	if got := p.work.Certificates.Begun.Load(); got != before {
		t.Errorf("want nothing verified, got %d", got-before)
	}
}

// underAttack has the share of refusals be full for the next minute.
func (p *proxy) underAttack(t *testing.T) {
	t.Helper()
	most := p.budget.Limits()[budget.Resets][budget.Unauthenticated]
	if !p.budget.Misused(budget.Client{Address: "192.0.2.1"}, 2*most) {
		t.Fatal("want the share full")
	}
}

// TestStrangersUnderAttack floods with bad tokens while the share of refusals is full. One of them is asked about, its
// answer is the last on the connection, and nothing is made of the others.
func TestStrangersUnderAttack(t *testing.T) {
	t.Parallel()
	const many = 100
	p := startProxy(t)
	p.underAttack(t)
	c := p.rawHTTP2(t, nil)
	go func() { _ = c.flood(t, 0, many, false, badToken) }()
	if got := c.answers(t); len(got) != 1 || got[http.StatusUnauthorized] != 1 {
		t.Errorf("want one 401 and the end, got %v", got)
	}
	if got := p.tokens.Counts.Misses.Load(); got != 1 {
		t.Errorf("want one token asked about, got %d", got)
	}
	over := p.raw(t, nil, "GET /a HTTP/1.1\nHost: x\nAuthorization: Bearer bad\n\n")
	res, err := http.ReadResponse(readerOf(over), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized || !res.Close {
		t.Errorf("want a 401 that ends the connection over HTTP/1 too, got %d, %v", res.StatusCode, res.Close)
	}
}

// TestNewcomersUnderAttack has a user ask much at once on a new connection while the share of refusals is full. The first
// request shows who it is, and all are served.
func TestNewcomersUnderAttack(t *testing.T) {
	t.Parallel()
	const many = 100
	p := startProxy(t)
	p.underAttack(t)
	p.api.set(func() { p.api.tokens["good"] = authenticationv1.UserInfo{Username: "jane"} })
	c := p.rawHTTP2(t, nil)
	if err := c.flood(t, 0, many, false, func(int) [][2]string {
		return append(pseudo("GET", "/a"), [2]string{"authorization", "Bearer good"})
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return p.api.arrived.Load() == many })
	if got := p.connection(t).refused.Load(); got != 0 {
		t.Errorf("want nothing refused, got %d", got)
	}
}

// TestRefusalsWaitUnderAttack has strangers and users be refused.
func TestRefusalsWaitUnderAttack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		attack, user, left, closed bool
		want                       time.Duration
	}{
		"a stranger":                             {},
		"a stranger under attack":                {attack: true, want: refusalPause},
		"a user under attack":                    {attack: true, user: true},
		"a stranger who has left":                {attack: true, left: true},
		"a stranger whose connection has closed": {attack: true, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), time.Now)
				server, _ := net.Pipe()
				conn := newClientConnections(b, 1).admit(server)
				if test.attack { // from the same address
					b.Misused(conn.client(), 1<<20)
				}
				if test.user {
					if err := conn.identify("jane"); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.left {
					cancel()
				}
				if test.closed {
					_ = conn.Close()
				}
				began := time.Now()
				conn.hesitate(ctx)
				if took := time.Since(began); took != test.want {
					t.Errorf("want to wait %v, got %v", test.want, took)
				}
				_ = conn.Close()
			})
		})
	}
}

// TestStrangersAreReadSlowly reads some 100 KiB of a connection of which not much is known. How long that takes does not
// depend on the machine.
func TestStrangersAreReadSlowly(t *testing.T) {
	t.Parallel()
	const pieces = 200
	const sent = strangerBurst + pieces*strangerPiece
	const slow = (pieces + 1) * strangerPause // the last read finds the end
	for name, test := range map[string]struct {
		attack, user bool
		want         time.Duration
	}{
		"a stranger":              {want: 0},
		"a stranger under attack": {attack: true, want: slow},
		"a user under attack":     {attack: true, user: true, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), time.Now)
				server, client := net.Pipe()
				conn := newClientConnections(b, 1).admit(server)
				conn.certified.Store(true)
				if test.attack { // from the same address
					b.Misused(conn.client(), 1<<20)
				}
				if test.user {
					if err := conn.identify("jane"); err != nil {
						t.Fatal(err)
					}
				}
				go func() {
					_, _ = client.Write(make([]byte, sent))
					_ = client.Close()
				}()
				began := time.Now()
				n, _ := io.Copy(io.Discard, conn)
				if took := time.Since(began); n != sent || took != test.want {
					t.Errorf("want %d bytes in %v, got %d in %v", sent, test.want, n, took)
				}
				_ = conn.Close()
			})
		})
	}
}

// TestNothingIsReadBesideARequest reads from a connection without a user on which there is one request already.
func TestNothingIsReadBesideARequest(t *testing.T) {
	t.Parallel()
	const never = time.Hour // then the connection is closed
	for name, test := range map[string]struct {
		quiet         bool                              // not under attack
		after         func(c *clientConn, leave func()) // what has happened to the request
		http1, others bool                              // beside the refusal
		refused, left bool
		want          time.Duration
	}{
		"it is looked at":                     {want: readPause},
		"it is looked at, and nobody attacks": {quiet: true},
		"it waits for its body":               {after: func(c *clientConn, _ func()) { c.gate.awaitBody() }},
		"it has got a piece of its body": {
			after: func(c *clientConn, _ func()) { c.gate.awaitBody()() }, want: readPause,
		},
		"it was answered":                          {after: func(_ *clientConn, leave func()) { leave() }},
		"others were served before":                {after: func(c *clientConn, _ func()) { c.served.Add(1) }},
		"its user is known":                        {after: func(c *clientConn, _ func()) { _ = c.identify("jane") }},
		"its refusal is the last answer":           {refused: true, want: never},
		"its refusal was the last answer":          {refused: true, left: true, want: never},
		"its refusal is the last answer in HTTP/1": {refused: true, http1: true, want: readPause},
		"its refusal is the last answer but one":   {refused: true, others: true, want: readPause},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), time.Now)
				if !test.quiet {
					b.Misused(budget.Client{}, 1<<20)
				}
				server, client := net.Pipe()
				conn := newClientConnections(b, 1).admit(server)
				conn.certified.Store(true)
				leave := conn.gate.enter(t.Context(), conn.gone, nil)
				conn.serving.Add(1)
				conn.unused.http1.Store(test.http1)
				if test.others {
					conn.serving.Add(1)
				}
				if test.after != nil {
					test.after(conn, leave)
				}
				if test.refused {
					conn.hesitate(t.Context())
				}
				if test.left {
					leave()
				}
				time.AfterFunc(never, func() { _ = conn.Close() })
				go func() { _, _ = client.Write([]byte("more")) }()
				began := time.Now()
				_, _ = conn.Read(make([]byte, 1<<10))
				if took := time.Since(began); took != test.want {
					t.Errorf("want it read after %v, got %v", test.want, took)
				}
				_ = client.Close()
				_ = conn.Close()
			})
		})
	}
}

// TestReadingGoesOn has a connection that is not read because of a request, and then something becomes of the request.
func TestReadingGoesOn(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(g *turnstile, leave func()){
		"it waits for its body": func(g *turnstile, _ func()) { g.awaitBody() },
		"it was answered":       func(_ *turnstile, leave func()) { leave() },
		"its user is known":     func(g *turnstile, _ func()) { g.unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &turnstile{most: func() int { return 1 }}
			leave := g.enter(t.Context(), nil, nil)
			resumed, _, _ := g.mustPause()
			if resumed == nil || isClosed(resumed) {
				t.Fatal("want it not read")
			}
			if again(g, leave); !isClosed(resumed) || g.pauses() {
				t.Error("want it read again")
			}
		})
	}
}

// TestHandshakesAreReadAlone reads the end of a handshake, and not much of what has come with it.
func TestHandshakesAreReadAlone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		attack, greeted bool
		want            int
	}{
		"the ClientHello":             {attack: true, want: 4096},
		"the end of a handshake":      {attack: true, greeted: true, want: handshakePiece},
		"the end when nobody attacks": {greeted: true, want: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := budget.New(budget.Defaults(), time.Now)
			if test.attack {
				b.Misused(budget.Client{}, 1<<20)
			}
			server, _ := net.Pipe()
			conn := newClientConnections(b, 1).admit(server)
			defer conn.Close() //nolint:errcheck // it goes nowhere
			if test.greeted {
				if _, err := forHandshake(
					&tls.Config{MinVersion: tls.VersionTLS13},
					&tls.ClientHelloInfo{Conn: conn},
					noUser,
				); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := conn.moderate(make([]byte, 4096)); err != nil || len(got) != test.want {
				t.Errorf("want %d bytes read, got %d, %v", test.want, len(got), err)
			}
		})
	}
}

// TestPiecesOfStrangers reads what follows the handshake, while another request would have to wait or not.
func TestPiecesOfStrangers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		attack, crowded bool
		before          int // bytes
		want            int
	}{
		"the first piece under attack":           {attack: true, crowded: true, want: strangerBurst},
		"the rest of the burst":                  {attack: true, before: strangerBurst - 10, want: 10},
		"what follows under attack":              {attack: true, before: strangerBurst, want: strangerPiece},
		"what follows on a crowded connection":   {attack: true, crowded: true, before: strangerBurst, want: crowdedPiece},
		"a crowded connection without an attack": {crowded: true, before: strangerBurst, want: unusedTolerated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := budget.New(budget.Defaults(), time.Now)
				if test.attack {
					b.Misused(budget.Client{}, 1<<20)
				}
				server, _ := net.Pipe()
				conn := newClientConnections(b, 1).admit(server)
				defer conn.Close() //nolint:errcheck // it goes nowhere
				conn.certified.Store(true)
				conn.received.since = test.before
				if test.crowded {
					defer conn.gate.enter(t.Context(), conn.gone, nil)()
				}
				if got, err := conn.moderate(make([]byte, 2*unusedTolerated)); err != nil || len(got) != test.want {
					t.Errorf("want %d bytes read, got %d, %v", test.want, len(got), err)
				}
			})
		})
	}
}

// TestBodiesComeUnderAttack sends the body of a request without a user when the request is waiting for it.
func TestBodiesComeUnderAttack(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.underAttack(t)
	c := p.rawHTTP2(t, nil)
	const path = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests"
	c.request(t, 1, true, false, append(pseudo("POST", path), [2]string{"content-length", "2"})...)
	conn := p.connection(t)
	waits := func(n int) func() bool {
		return func() bool {
			conn.gate.mu.Lock()
			defer conn.gate.mu.Unlock()
			return conn.gate.bodies == n
		}
	}
	eventually(t, waits(1))
	if conn.gate.pauses() {
		t.Error("want the connection read")
	}
	if err := c.WriteData(1, true, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if got := c.answer(t, 1); got != http.StatusOK {
		t.Errorf("want it answered, got %d", got)
	}
	eventually(t, waits(0))
}
