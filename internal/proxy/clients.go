package proxy

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/fairqueue"
)

// idleBeforeEviction is how long a user's connection must have been idle before it may make room for a newcomer.
const idleBeforeEviction = time.Second

// sendQueue is how many bytes may wait in the kernel for one client, beside what is on its way. The kernel would hold
// megabytes, counts them as the agent's memory (cgroup v2), and no budget would know. More than that is not needed for
// speed, as what has been sent and is not acknowledged yet does not count.
const sendQueue = 64 << 10

// clientConnections knows all connections of clients, and to whom they count.
//
// When there are too many, one of them is closed to make room for the newcomer. The first to go are connections
// without a user. So an attacker without credentials replaces the attacker's own connections, and an honest client
// has as long as it takes to replace all of them until it needs to have authenticated.
type clientConnections struct {
	budget   *budget.Budget
	headers  *headers
	crowds   crowds
	arrivals arrivals
	heads    headSpeeds
	turns    *fairqueue.Queue // of TLS handshakes
	room     *fairqueue.Queue // of connections of users who ask for too much
	evicted  atomic.Int64     // to make room for others
	misused  atomic.Int64     // closed because most of their requests came to nothing

	mu   sync.Mutex
	open map[*clientConn]struct{}
	// strangers is how many of them each address has that have no user, and ofUser how many each user has.
	strangers, ofUser map[string]int

	held list.List // of *clientConn that wait for a place, in the order in which they came
	// replaced is when a connection was last closed for one that had no better right.
	replaced time.Time
}

// newClientConnections makes a list of no connections, of which as many handshakes as slots are computed at a time.
func newClientConnections(b *budget.Budget, slots int) *clientConnections {
	all := &clientConnections{
		budget: b, turns: newTurns(slots), room: newRoom(),
		open: map[*clientConn]struct{}{}, strangers: map[string]int{}, ofUser: map[string]int{},
	}
	all.arrivals.look = runnableGoroutines
	all.headers = &headers{all: all, queues: map[headerOwner]*headerQueue{}}
	return all
}

// clientConn is the connection of one client, below TLS.
type clientConn struct {
	net.Conn
	all      *clientConnections
	address  string
	accepted time.Time
	holding  *budget.Holding // nil while it waits for a place
	place    place
	yielded  atomic.Bool // its place is for the one for which it is closed
	closing  sync.Once
	turn     atomic.Pointer[fairqueue.Ticket] // of its handshake
	greeted  atomic.Int64                     // when its handshake had its turn, in Unix nanoseconds

	user        atomic.Pointer[string] // who authenticated first on it; nil as long as there is none
	identifying sync.Mutex             // held while that is decided
	gate        turnstile              // of requests as long as there is no user
	serving     atomic.Int64           // requests that are being served
	// handling is how many of them have a handler that has not returned. The answers of the others are being written.
	handling atomic.Int64
	hurried  atomic.Bool  // once shut: only such answers are left
	used     atomic.Int64 // when the last of them ended, in Unix nanoseconds
	served   atomic.Int64 // requests that were answered, and not refused
	refused  atomic.Int64 // requests that were refused
	resets   atomic.Int64 // streams that the client reset before their answer began
	shut     atomic.Bool  // because of the last two: no further request is served
	farewell atomic.Bool  // the client was told, or is being told
	end      atomic.Pointer[time.Timer]
	// readSince is how many bytes were read since it was shut. The one goroutine that reads uses it.
	readSince int
	certified atomic.Bool // the certificates of the client have been read, if it has any
	received  received
	unused    unused // what was sent on it and came to nothing yet
	// readAgain is until when it is not read because of large heads, as long as there is no user, in Unix nanoseconds.
	readAgain atomic.Int64
	gone      chan struct{} // closed with the connection
}

// Read implements net.Conn. On a connection that is shut it waits for the end, after a little more.
func (c *clientConn) Read(p []byte) (int, error) {
	c.endTurn() // no client is waited for during a turn
	if c.shut.Load() && c.readSince > readWhenShut {
		<-c.gone
		return 0, net.ErrClosed
	}
	c.recognize()
	c.waitForRoom()
	c.waitForHeads()
	c.all.arrivals.pause(c)
	c.gate.pause(c.gone)
	p, err := c.moderate(p)
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.arrived(n)
	if err := c.countUnused(n); err != nil {
		return 0, err
	}
	return n, err
}

// Write implements net.Conn.
func (c *clientConn) Write(p []byte) (int, error) {
	c.endTurn() // p is what it was for
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *clientConn) Close() error {
	c.closing.Do(func() {
		close(c.gone)
		if end := c.end.Load(); end != nil {
			end.Stop()
		}
		c.unused.end()
		c.gate.end() // before it is forgotten, so that others find what it has given back
		c.all.forget(c)
		c.holding.Release()
		c.endTurn()
		if !c.yielded.Load() {
			c.all.callIn()
		}
	})
	return c.Conn.Close()
}

// abort closes the connection without saying anything, and drops what it has not sent.
func (c *clientConn) abort() {
	dropUnsent(c.Conn)
	_ = c.Close()
}

// dropUnsent makes closing the connection drop what has not been sent, so that the kernel holds nothing for it.
func dropUnsent(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// client returns the client whose share the connection counts against, together with the requests on it that are not
// authenticated yet.
func (c *clientConn) client() budget.Client {
	client := budget.Client{Address: c.address}
	if user := c.user.Load(); user != nil {
		client.User = *user
	}
	return client
}

// identify counts the connection against the share of its first authenticated user. Later calls do nothing: behind
// an authenticating proxy, other users may follow on the same connection.
func (c *clientConn) identify(user string) error {
	if c.user.Load() != nil {
		return nil
	}
	c.identifying.Lock()
	defer c.identifying.Unlock()
	if c.user.Load() != nil {
		return nil
	}
	if err := c.holding.Identify(user); err != nil {
		return err
	}
	c.all.setUser(c, user)
	c.gate.unlock()
	c.all.callIn()
	return nil
}

// listen returns a listener that only accepts connections for which there is room. It begins at once.
func (all *clientConnections) listen(listener net.Listener) net.Listener {
	l := &clientListener{Listener: listener, all: all, arrived: make(chan newcomer), closed: make(chan struct{})}
	go l.admit()
	return l
}

type clientListener struct {
	net.Listener
	all     *clientConnections
	arrived chan newcomer
	closing sync.Once
	closed  chan struct{}
}

// newcomer is a connection that has a place, or why no further ones come.
type newcomer struct {
	conn *clientConn
	err  error
}

// Accept implements net.Listener. It returns connections that have a place. A connection for which there is no room is
// closed before the TLS handshake: an answer in HTTP would cost the handshake.
func (l *clientListener) Accept() (net.Conn, error) {
	select {
	case one := <-l.arrived:
		if one.err != nil {
			return nil, one.err
		}
		return one.conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections that wait for a place are closed, too.
func (l *clientListener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// admit takes connections until the listener is closed. Those that wait for a place do so here, where they take much less
// memory than with an http.Server.
func (l *clientListener) admit() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if !l.hand(newcomer{err: err}) {
				return
			}
			continue
		}
		switch one := l.all.admit(conn); {
		case one == nil:
		case one.place.found == nil:
			if !l.hand(newcomer{conn: one}) {
				one.abort()
				return
			}
		default:
			go func() {
				if one.waitForPlace(l.closed) != nil || !l.hand(newcomer{conn: one}) {
					one.abort()
				}
			}()
		}
	}
}

// hand returns false when the listener was closed before it was accepted.
func (l *clientListener) hand(one newcomer) bool {
	select {
	case l.arrived <- one:
		return true
	case <-l.closed:
		return false
	}
}

// admit returns the connection, or closes it and returns nil.
func (all *clientConnections) admit(conn net.Conn) *clientConn {
	one := &clientConn{
		Conn: conn, all: all, address: hostOf(conn.RemoteAddr().String()), accepted: time.Now(), gone: make(chan struct{}),
	}
	one.used.Store(one.accepted.UnixNano())
	one.gate.most = one.mayPass
	all.crowds.watch(one)
	one.unused.headers = all.headers
	boundSendQueue(conn)
	if found, wait := all.findPlace(one); !found && (wait == 0 || !all.hold(one)) {
		dropUnsent(conn)
		_ = conn.Close()
		return nil
	}
	return one
}

func (all *clientConnections) forget(c *clientConn) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if _, open := all.open[c]; open {
		all.count(c, -1)
		delete(all.open, c)
	}
	all.unhold(c)
}

// count counts the connection n times more. The caller holds all.mu.
func (all *clientConnections) count(c *clientConn, n int) {
	owned, owner := all.strangers, c.address
	if user := c.user.Load(); user != nil {
		owned, owner = all.ofUser, *user
	}
	if owned[owner] += n; owned[owner] == 0 {
		delete(owned, owner)
	}
}

// setUser is called when the user of the connection is known.
func (all *clientConnections) setUser(c *clientConn, user string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	_, open := all.open[c]
	if open {
		all.count(c, -1)
	}
	c.user.Store(&user)
	if open {
		all.count(c, 1)
	}
}

// victim returns the connection that has to make room for one from address, nil when all have a better right. With
// same, it must come from that address. better is true when the newcomer has a better right than that one; otherwise it
// should wait for as long as wait.
func (all *clientConnections) victim(address string, same bool) (victim *clientConn, better bool, wait time.Duration) {
	all.mu.Lock()
	defer all.mu.Unlock()
	few := all.fewOfAddress()
	idleSince := time.Now().Add(-idleBeforeEviction).UnixNano()
	var worst candidate
	for c := range all.open {
		one := candidate{clientConn: c, idle: c.serving.Load() == 0}
		user := c.user.Load()
		switch {
		case same && c.address != address:
			continue
		case user == nil:
			one.many, one.since = max(few, all.strangers[c.address]), c.accepted.UnixNano()
		case worst.clientConn != nil && !worst.user, !one.idle, c.used.Load() > idleSince:
			continue
		default:
			one.user, one.many, one.since = true, all.ofUser[*user], c.used.Load()
		}
		if worst.clientConn == nil || one.rather(worst) {
			worst = one
		}
	}
	if worst.clientConn == nil || worst.user {
		return worst.clientConn, true, 0
	}
	better = max(few, all.strangers[address]) < worst.many
	if all.isCrowded() {
		return worst.clientConn, better, crowdedPause
	}
	if wait = worst.newFor(); all.held.Len() < manyHeld {
		wait = max(wait, worst.toGreetFor())
	}
	return worst.clientConn, better, max(wait, 0)
}

// candidate is a connection that may have to make room for another one.
type candidate struct {
	*clientConn
	user  bool  // its user is known
	many  int   // connections that count for the same user or address
	idle  bool  // nothing is being served on it
	since int64 // when it was used last, and for one without a user when it was accepted, in Unix nanoseconds
}

// rather is true when c has to go before other: connections without a user first, among these those of the address with
// the most, idle ones and the oldest; then those of the user with the most. An address that has only a few is not told
// from others: an attacker may have as many addresses as connections, and many honest clients may share one.
func (c candidate) rather(other candidate) bool {
	switch {
	case c.user != other.user:
		return other.user
	case c.many != other.many:
		return c.many > other.many
	case !c.user && c.idle != other.idle:
		return c.idle
	}
	return c.since < other.since
}

// fewOfAddress is how many connections without a user one address may have without being told from others.
func (all *clientConnections) fewOfAddress() int {
	return int(all.budget.Limits()[budget.Connections][budget.Unauthenticated] / 16)
}

// hostOf returns the address to which a client counts, without its port. One machine has many addresses of IPv6: those
// of its network (/64) are one.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap().WithZone(""); ip.Is6() {
			return netip.PrefixFrom(ip, 64).Masked().String()
		}
		return ip.String()
	}
	return host
}

type connectionKey struct{}

// withConnection puts the connection into the context of its requests. It is the ConnContext of http.Server.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if one := ours(conn); one != nil {
		return context.WithValue(ctx, connectionKey{}, one)
	}
	return ctx
}

// ours returns the connection below TLS, nil when it is none of ours.
func ours(conn net.Conn) *clientConn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	one, _ := conn.(*clientConn)
	return one
}

// connectionFrom returns the connection of a request, nil for a request that came over none of ours.
func connectionFrom(ctx context.Context) *clientConn {
	c, _ := ctx.Value(connectionKey{}).(*clientConn)
	return c
}

// countClients is the ConnState hook of the server.
func (s *Server) countClients(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.clients.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.clients.Add(-1)
	case http.StateActive, http.StateIdle:
	}
}
