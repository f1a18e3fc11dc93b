package edge

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

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
)

const (
	// patience is how long a stranger may take for its part before its connection may go for another one, helloPatience
	// the same until its handshake is over: a machine that opens thousands at once needs seconds for each.
	patience      = time.Second
	helloPatience = 3 * time.Second
	// roomPause is the time between two looks for room, and roomPatience how long a stranger waits for it at most.
	roomPause    = 5 * time.Millisecond
	roomPatience = 5 * time.Second
	// largeStranger: the requests of no honest stranger hold one part of so many of what all strangers may have.
	largeStranger = 64
)

// Edge knows all connections of one port.
type Edge struct {
	admission *admission.Admission
	evicted   atomic.Int64

	mu        sync.Mutex
	open      map[string]*Conn      // by the client's address and port
	addresses map[string]*list.List // of *Conn without a user, the oldest first, by their address
	noVictim  time.Time             // when a victim was looked for in vain
	strangers atomic.Int64
}

// New returns an edge without connections. Connections of more than one edge may share an admission.
func New(a *admission.Admission) *Edge {
	return &Edge{admission: a, open: map[string]*Conn{}, addresses: map[string]*list.List{}}
}

// Listen returns a listener of which every connection counts.
func (e *Edge) Listen(l net.Listener) net.Listener { return listener{l, e} }

type listener struct {
	net.Listener
	edge *Edge
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.edge.admit(conn), nil
}

// admit waits until there is room for the connection.
func (e *Edge) admit(conn net.Conn) *Conn {
	c := &Conn{
		Conn: conn, edge: e, address: hostOf(conn.RemoteAddr().String()), accepted: time.Now(),
		known: make(chan struct{}),
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	boundSendQueue(conn)
	c.forgiven = c.accepted
	c.progress.Store(c.accepted.UnixNano())
	// Those that have just come leave three eighths to those that go on. While there is no room, others wait in the
	// kernel, where they cost us nothing.
	first := admission.Cost{Kind: admission.Connection, Bytes: admission.AcceptedBytes, Leaves: 3}
	for c.base == nil {
		_ = e.makeRoom(c, roomPatience, func() (err error) {
			c.base, err = e.admission.Join(c.Owner(), first)
			return err
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open[conn.RemoteAddr().String()] = c
	from := e.addresses[c.address]
	if from == nil {
		from = list.New()
		e.addresses[c.address] = from
	}
	c.place = from.PushBack(c)
	e.strangers.Add(1)
	return c
}

// known is called when the user of a connection is known.
func (e *Edge) known(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noStranger(c)
}

func (e *Edge) forget(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if key := c.RemoteAddr().String(); e.open[key] == c {
		delete(e.open, key)
	}
	e.noStranger(c)
}

func (e *Edge) noStranger(c *Conn) {
	if c.place == nil {
		return
	}
	from := e.addresses[c.address]
	from.Remove(c.place)
	c.place = nil
	if from.Len() == 0 {
		delete(e.addresses, c.address)
	}
	e.strangers.Add(-1)
}

// makeRoom calls take, and as long as that says that strangers have no room, and c is one, closes a connection of another
// one and calls it again. When none can go, as many honest clients come at once and wait for us, it waits for at most wait:
// their users are known soon.
func (e *Edge) makeRoom(c *Conn, wait time.Duration, take func() error) error {
	for began := time.Now(); ; {
		err := take()
		full, ok := errors.AsType[*admission.Full](err)
		if !ok || !c.Owner().IsStranger() {
			return err
		}
		switch victim := e.victim(full); {
		case victim != nil:
			e.evicted.Add(1)
			victim.Abort()
		case time.Since(began) >= wait || c.ctx.Err() != nil:
			return err
		default:
			time.Sleep(max(roomPause, time.Since(began)/8)) // hundreds may wait
		}
	}
}

// victim returns the connection that has to go first for what is full. It is the one whose requests hold most, if that
// is more than any honest stranger's do. Otherwise it is the one with the largest head that is not complete, and then
// the oldest of the address with most connections; of these, a connection that waits for us is left alone. So is one
// for which we did something a moment ago, or whose head began then. The result is nil when there is no other, or when
// its end would free nothing of what is full.
func (e *Edge) victim(full *admission.Full) *Conn {
	if full.Own && full.Kind != admission.Input {
		return nil
	}
	requests := e.admission.Memory().MostStrangers / largeStranger
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if now.Sub(e.noVictim) < roomPause { // hundreds may look
		return nil
	}
	var holder, largest, oldest *Conn
	since, helloSince := now.Add(-patience).UnixNano(), now.Add(-helloPatience).UnixNano()
	input, most := int64(inputFree), 0
	for _, from := range e.addresses {
		var first *Conn
		for place := from.Front(); place != nil; place = place.Next() {
			c := place.Value.(*Conn) //nolint:forcetypeassert // nothing else is in a list
			if held := c.requests.Load(); held > requests {
				holder, requests = c, held
			}
			if begun := c.unfinished.Load(); begun != 0 && begun < since && c.input.Load() > input {
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
		e.noVictim = now
	}
	return oldest
}

// Admission returns what decides how much clients may hold and cause.
func (e *Edge) Admission() *admission.Admission { return e.admission }

// Strangers returns how many connections have no user.
func (e *Edge) Strangers() int { return int(e.strangers.Load()) }

// Open returns how many connections there are.
func (e *Edge) Open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.open)
}

// Evicted returns how many were closed to make room for others.
func (e *Edge) Evicted() int64 { return e.evicted.Load() }

// Of returns the connection on which a request came, nil when it came over none of the edge's, or that is closed.
func (e *Edge) Of(req *http.Request) *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open[req.RemoteAddr]
}

// Below returns the connection below TLS, nil when it is none of an edge's.
func Below(conn net.Conn) *Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	one, _ := conn.(*Conn)
	return one
}

// hostOf returns the address to which a client counts, without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return Network(host)
}

// Network returns the network to which an address counts. One machine has many addresses of IPv6: those of its network
// (/64) are one. What is no address counts as "unknown".
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
