package impersonator

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

	"github.com/pinniped-toolkit/pinniped/internal/impersonator/budget"
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

// TestHandshakesAreBounded presents as many large certificates as a client may, and then more than a handshake may have.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	metrics := NewMetrics()
	p := startProxy(t, func(_ *proxy, o *Options) { o.Metrics = metrics })
	jane := clientCertificate(t, p.signerCA, "jane")
	large := p.client(t, withIntermediates(t, jane, maxPresented-1, 2500))
	for range 2 { // the second time with a session ticket, which has the certificates in it
		if got := p.get(t, large, "/a", nil); got.Code != http.StatusOK {
			t.Errorf("want %d large certificates taken, got %d", maxPresented, got.Code)
		}
		large.CloseIdleConnections()
	}
	before := p.work.certificates.begun.Load()
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
	if got := p.unshaken.total.Load(); got != 1 {
		t.Errorf("want it in the log, got %d", got)
	}
	if got := p.work.certificates.begun.Load(); got != before {
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
	if got := p.tokens.counts.misses.Load(); got != 1 {
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
				if test.attack {
					b.Misused(budget.Client{}, 1<<20)
				}
				server, _ := net.Pipe()
				conn := newClientConnections(b).admit(server)
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

// TestStrangersAreReadSlowly reads 100 KiB of a connection of which not much is known. How long that takes does not depend
// on the machine.
func TestStrangersAreReadSlowly(t *testing.T) {
	t.Parallel()
	const sent = 100 << 10
	slow := ((sent-strangerBurst)/strangerPiece + 1) * strangerPause // the last read finds the end
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
				if test.attack {
					b.Misused(budget.Client{}, 1<<20)
				}
				server, client := net.Pipe()
				conn := newClientConnections(b).admit(server)
				conn.certified.Store(true)
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
