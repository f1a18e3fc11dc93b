// Package listener has the listener, the connections below TLS, and the outermost filter. Both ports use it: that of
// the impersonation proxy and that of the Concierge APIs. It handles addresses, bytes and time; of users it only has
// the name (Conn.Identified).
//
// A connection is unauthenticated until a user authenticates on it. All unauthenticated clients share a part of the
// memory. When that is exhausted, one of their connections is evicted (Port.evictionCandidate). When all of them wait
// for the proxy, as when many honest clients connect at once, new clients wait: before their handshake, or in the
// kernel. So attackers only evict their own connections. Work for unauthenticated clients, in handshakes and for
// requests until they are authenticated, is queued fairly by address and connection on half of the processors, so that
// users are served meanwhile.
//
// Input counts until it is processed: as a request, a part of a body, a window update for a response. Unprocessed
// input, and requests that are reset or refused, cause a penalty; nothing is read from a connection until its penalty
// has passed.
//
// Locks, in this order: Conn.mu, Port.mu.
package listener

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
)

const (
	// patience is how long an unauthenticated client may be inactive before its connection can be evicted.
	// helloPatience applies until its handshake is over: a machine that opens thousands at once needs seconds for each.
	patience      = time.Second
	helloPatience = 3 * time.Second
	// evictionPause is the time between two searches for an eviction candidate. evictionTimeout is how long an
	// unauthenticated client waits for memory.
	evictionPause   = 5 * time.Millisecond
	evictionTimeout = 5 * time.Second
	// largeUnauthenticated: a connection whose requests hold more than this fraction of the memory of unauthenticated
	// clients is the first eviction candidate.
	largeUnauthenticated = 64
)

// Port tracks all connections of one port.
type Port struct {
	flow    *flowcontrol.Controller
	evicted atomic.Int64

	mu              sync.Mutex
	open            map[string]*Conn      // by the client's address and port
	addresses       map[string]*list.List // unauthenticated *Conn by address, the oldest first
	noCandidate     time.Time             // when the last search found no eviction candidate
	unauthenticated atomic.Int64
}

// New returns a Port without connections. Several Ports may share a Controller.
func New(a *flowcontrol.Controller) *Port {
	return &Port{flow: a, open: map[string]*Conn{}, addresses: map[string]*list.List{}}
}

// Listen returns a listener whose connections the Port tracks.
func (p *Port) Listen(l net.Listener) net.Listener { return listener{l, p} }

type listener struct {
	net.Listener
	port *Port
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.port.admit(conn), nil
}

// admit waits until there is memory for the connection.
func (p *Port) admit(conn net.Conn) *Conn {
	c := &Conn{
		Conn: conn, port: p, address: hostOf(conn.RemoteAddr().String()), accepted: time.Now(),
		known: make(chan struct{}),
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	boundSendQueue(conn)
	c.forgiven = c.accepted
	c.progress.Store(c.accepted.UnixNano())
	// New connections leave three eighths of the memory to established ones. Until there is memory, further ones wait
	// in the kernel at no cost.
	first := flowcontrol.Cost{Resource: flowcontrol.Connection, Bytes: flowcontrol.AcceptedBytes, Leaves: 3}
	for c.base == nil {
		_ = p.withEviction(c, evictionTimeout, func() (err error) {
			c.base, err = p.flow.Enqueue(c.Flow(), first)
			return err
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[conn.RemoteAddr().String()] = c
	from := p.addresses[c.address]
	if from == nil {
		from = list.New()
		p.addresses[c.address] = from
	}
	c.element = from.PushBack(c)
	p.unauthenticated.Add(1)
	return c
}

// known is called when the user of a connection is known.
func (p *Port) known(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.authenticated(c)
}

func (p *Port) forget(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key := c.RemoteAddr().String(); p.open[key] == c {
		delete(p.open, key)
	}
	p.authenticated(c)
}

func (p *Port) authenticated(c *Conn) {
	if c.element == nil {
		return
	}
	from := p.addresses[c.address]
	from.Remove(c.element)
	c.element = nil
	if from.Len() == 0 {
		delete(p.addresses, c.address)
	}
	p.unauthenticated.Add(-1)
}

// withEviction calls take. When unauthenticated clients have no memory left, and c is one of them, it evicts another
// connection and calls take again. Without an eviction candidate, as when many honest clients connect at once, it waits
// for at most wait: these clients authenticate soon.
func (p *Port) withEviction(c *Conn, wait time.Duration, take func() error) error {
	for began := time.Now(); ; {
		err := take()
		full, ok := errors.AsType[*flowcontrol.Full](err)
		if !ok || !c.Flow().Unauthenticated() {
			return err
		}
		switch evictionCandidate := p.evictionCandidate(full); {
		case evictionCandidate != nil:
			p.evicted.Add(1)
			evictionCandidate.Abort()
		case time.Since(began) >= wait || c.ctx.Err() != nil:
			return err
		default:
			time.Sleep(max(evictionPause, time.Since(began)/8)) // hundreds may wait
		}
	}
}

// evictionCandidate returns the connection to evict for the exhausted resource: the one whose requests hold most, if
// that is more than an honest unauthenticated client needs; else the one with the largest incomplete header; else the
// oldest of the address with most connections. The oldest is never one that waits for the proxy or made progress
// recently. The result is nil when there is none, or when an eviction would not free the resource.
func (p *Port) evictionCandidate(full *flowcontrol.Full) *Conn {
	if full.Own && full.Resource != flowcontrol.Input {
		return nil
	}
	requests := p.flow.Memory().MostUnauthenticated / largeUnauthenticated
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.noCandidate) < evictionPause { // hundreds may search
		return nil
	}
	var holder, largest, oldest *Conn
	since, helloSince := now.Add(-patience).UnixNano(), now.Add(-helloPatience).UnixNano()
	input, most := int64(inputFree), 0
	for _, from := range p.addresses {
		var first *Conn
		for permit := from.Front(); permit != nil; permit = permit.Next() {
			c := permit.Value.(*Conn) //nolint:forcetypeassert // nothing else is in a list
			if held := c.requests.Load(); held > requests {
				holder, requests = c, held
			}
			if granted := c.unfinished.Load(); granted != 0 && granted < since && c.input.Load() > input {
				largest, input = c, c.input.Load()
			}
			if first != nil || c.awaited.Load() > 0 {
				continue
			}
			if progress := c.progress.Load(); progress < helloSince || progress < since && c.shook.Load() {
				first = c
			}
		}
		many := from.Len()
		if first != nil && (oldest == nil || many > most || many == most && first.accepted.Before(oldest.accepted)) {
			oldest, most = first, many
		}
	}
	switch {
	case full.Own:
		oldest = largest
	case holder != nil:
		return holder
	case largest != nil:
		return largest
	}
	if oldest == nil {
		p.noCandidate = now
	}
	return oldest
}

// FlowControl returns the Controller of the connections.
func (p *Port) FlowControl() *flowcontrol.Controller { return p.flow }

// Unauthenticated returns the number of connections without a user.
func (p *Port) Unauthenticated() int { return int(p.unauthenticated.Load()) }

// Open returns the number of open connections.
func (p *Port) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// Evicted returns the number of evicted connections.
func (p *Port) Evicted() int64 { return p.evicted.Load() }

// Of returns the connection of a request, or nil when it is closed or not of this Port.
func (p *Port) Of(req *http.Request) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open[req.RemoteAddr]
}

// Below returns the connection below TLS, or nil when it is not of a Port.
func Below(conn net.Conn) *Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	one, _ := conn.(*Conn)
	return one
}

// hostOf returns the address of a client's flow: its network, without the port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return Network(host)
}

// Network returns the network of an address. IPv6 addresses count by /64, because one machine can have many. The
// network of an invalid address is "unknown".
func Network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return "unknown"
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
