package concierge

import (
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxStrangers is how many connections there are at a time on which no request of the front proxy was served. The
	// kubelet's probes come on such ones: two at a time, each for a moment.
	maxStrangers = 256
	// maxKnown is the same for the front proxy's. API servers need one for each hundred requests at a time.
	maxKnown = 256
	// maxStrangerBytes is how much is read on a connection of the first kind.
	maxStrangerBytes = 256 << 10
	// maxStrangersBytes is how much was read on all of them that are open. A header takes up to 40 times as much memory as
	// it has bytes.
	maxStrangersBytes = 1 << 20
	// largeHead is the size from which the head of a request also counts as what it is decoded: in HTTP/2, 250 bytes may
	// stand for 1 MiB (HPACK, RFC 7541).
	largeHead = 8 << 10
)

var errStrangerSentTooMuch = errors.New("a client that is not known has sent too much")

// Clients bounds the connections of clients, and what those may send that are not known: every pod of a cluster can
// connect to the port, each header or body that is not complete takes memory, and the agent serves users with the
// same memory. When there are too many connections, the oldest of the address with most of them is closed, and when
// they have sent too much, the one that has sent most. So an attacker replaces the attacker's own, and neither the API
// server nor the kubelet notices.
type Clients struct {
	mu     sync.Mutex
	open   map[string]*clientConnection // by the client's address and port
	known  int
	bytes  int        // received on all that are not known
	closed [2]float64 // by reasonMany and reasonBytes
}

const (
	reasonMany = iota
	reasonBytes
)

// NewClients returns bounds with no client in them.
func NewClients() *Clients { return &Clients{open: map[string]*clientConnection{}} }

// clientConnection is one of them, below TLS.
type clientConnection struct {
	net.Conn
	all     *Clients
	key     string // the address and port of the client
	host    string
	number  int64 // the older, the less
	closing sync.Once
	probing atomic.Bool // a probe is being answered

	// all.mu guards these
	known    bool
	received int
}

// listen returns a listener whose connections are bounded.
func (c *Clients) listen(listener net.Listener) net.Listener {
	return &clientListener{Listener: listener, all: c}
}

type clientListener struct {
	net.Listener
	all      *Clients
	accepted int64
}

// Accept implements net.Listener.
func (l *clientListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.accepted++
	key := conn.RemoteAddr().String()
	host, _, err := net.SplitHostPort(key)
	if err != nil {
		host = key
	}
	one := &clientConnection{Conn: conn, all: l.all, key: key, host: host, number: l.accepted}
	if surplus := l.all.admit(one); surplus != nil {
		surplus.abort()
	}
	return one, nil
}

// admit adds a connection, and returns the one that has to make room for it, if one has.
func (c *Clients) admit(one *clientConnection) (surplus *clientConnection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[one.key] = one
	if len(c.open)-c.known <= maxStrangers {
		return nil
	}
	c.closed[reasonMany]++
	defer func() { c.drop(surplus) }()
	each := map[string]int{}
	for _, other := range c.open {
		if !other.known {
			each[other.host]++
		}
	}
	for _, other := range c.open {
		switch {
		case other.known || other == one:
		case surplus == nil || each[other.host] > each[surplus.host]:
			surplus = other
		case each[other.host] == each[surplus.host] && other.number < surplus.number:
			surplus = other
		}
	}
	return surplus
}

// Read implements net.Conn.
func (c *clientConnection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	surplus := c.all.received(c, n)
	if surplus != nil {
		surplus.abort()
	}
	if surplus == c {
		return 0, errStrangerSentTooMuch
	}
	return n, err
}

// received counts what a client has sent, and returns the connection that has to go for it, if one has.
func (c *Clients) received(one *clientConnection, n int) (surplus *clientConnection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.known || c.open[one.key] != one {
		return nil
	}
	one.received += n
	c.bytes += n
	switch {
	case one.received > maxStrangerBytes:
		surplus = one
	case c.bytes > maxStrangersBytes:
		surplus = one
		for _, other := range c.open {
			if !other.known && other.received > surplus.received {
				surplus = other
			}
		}
	default:
		return nil
	}
	c.closed[reasonBytes]++
	c.drop(surplus) // before the next one is chosen
	return surplus
}

// Close implements net.Conn.
func (c *clientConnection) Close() error {
	c.closing.Do(func() { c.all.forget(c) })
	return c.Conn.Close()
}

// abort closes the connection and drops what it has not sent.
func (c *clientConnection) abort() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (c *Clients) forget(one *clientConnection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(one)
}

// drop counts a connection no longer. It is called with mu held.
func (c *Clients) drop(one *clientConnection) {
	if c.open[one.key] != one {
		return
	}
	delete(c.open, one.key)
	if one.known {
		c.known--
	} else {
		c.bytes -= one.received
	}
}

// countHeads counts large heads of clients that are not known as what they are decoded. It stands before all others. No
// request is served on a connection that was closed for it.
func (c *Clients) countHeads(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if size := sizeOfHead(req); size > largeHead && req.ProtoMajor == 2 && !c.receivedHead(req.RemoteAddr, size) {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, req)
	})
}

// receivedHead returns false when the connection with a client is closed because of the head that it has sent.
func (c *Clients) receivedHead(address string, size int) bool {
	one := c.at(address)
	if one == nil {
		return false
	}
	surplus := c.received(one, size)
	if surplus != nil {
		surplus.abort()
	}
	return surplus != one
}

// sizeOfHead returns how many bytes the path and the header of a request have.
func sizeOfHead(req *http.Request) int {
	size := len(req.RequestURI)
	for name, values := range req.Header {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return size
}

// onlyFrontProxy stands before all others. Only the front proxy, which speaks for users, gets to what is behind it: it
// has shown its certificate in the handshake. A stranger may send the probes of the kubelet, one at a time. Anything else
// ends the connection: nothing is read of a body, and no credential is looked at. The answer has no body either, as a
// client that does not read it would hold up the handler.
func (c *Clients) onlyFrontProxy(next http.Handler, isFrontProxy func(*x509.Certificate) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one := c.at(req.RemoteAddr)
		if one == nil {
			panic(http.ErrAbortHandler) // it is closed already
		}
		if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 && c.knows(one, req.TLS.PeerCertificates[0], isFrontProxy) {
			next.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Connection", "close")
		switch {
		case !isProbe(req):
			w.WriteHeader(http.StatusForbidden)
		case !one.probing.CompareAndSwap(false, true):
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			defer one.probing.Store(false)
			next.ServeHTTP(w, req)
		}
	})
}

// isProbe is true for what anybody may ask.
func isProbe(req *http.Request) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodHead || req.ContentLength != 0 {
		return false
	}
	return slices.Contains(probePaths(), req.URL.Path)
}

// probePaths are where the kubelet asks.
func probePaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

func (c *Clients) at(address string) *clientConnection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[address]
}

// knows returns whether the connection is one of the front proxy's. It is found out with its first request, and again
// with each one that comes while there are too many of them.
func (c *Clients) knows(one *clientConnection, leaf *x509.Certificate, isFrontProxy func(*x509.Certificate) bool) bool {
	c.mu.Lock()
	known := one.known
	c.mu.Unlock()
	if known {
		return true
	}
	if !isFrontProxy(leaf) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[one.key] == one && !one.known && c.known < maxKnown {
		one.known = true
		c.known++
		c.bytes -= one.received
	}
	return true
}

var (
	clientsDesc = prometheus.NewDesc("pinniped_agent_api_connections",
		"Open connections at the port of the Concierge APIs, by whether a request of a known client was served on it.",
		[]string{"client"}, nil)
	clientsClosedDesc = prometheus.NewDesc("pinniped_agent_api_connections_closed_total",
		"Connections at the port of the Concierge APIs that were closed because clients that are not known had too many "+
			"(connections), or sent too much (bytes).",
		[]string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Clients) Describe(to chan<- *prometheus.Desc) {
	to <- clientsDesc
	to <- clientsClosedDesc
}

// Collect implements prometheus.Collector.
func (c *Clients) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(c.known), "known")
	to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(len(c.open)-c.known), "unknown")
	for reason, name := range [...]string{reasonMany: "connections", reasonBytes: "bytes"} {
		to <- prometheus.MustNewConstMetric(clientsClosedDesc, prometheus.CounterValue, c.closed[reason], name)
	}
}
