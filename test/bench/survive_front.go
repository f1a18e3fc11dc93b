package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// balancer is a Service: it leads each new connection to the next replica that takes part. A connection that exists
// stays where it is.
type balancer struct {
	listener net.Listener
	cancel   context.CancelFunc
	busy     sync.WaitGroup

	mu    sync.Mutex
	taken []string // addresses of the replicas that take part
	next  int
}

func startBalancer(ctx context.Context) (*balancer, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: listener}
	ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b.busy.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			b.busy.Go(func() { b.connect(ctx, from) })
		}
	})
	return b, nil
}

func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) close() {
	b.cancel()
	_ = b.listener.Close()
	b.busy.Wait()
}

// lead says whether new connections go to an address.
func (b *balancer) lead(address string, there bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = slices.DeleteFunc(b.taken, func(one string) bool { return one == address })
	if there {
		b.taken = append(b.taken, address)
	}
}

func (b *balancer) choose() (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.taken) == 0 {
		return "", false
	}
	b.next++
	return b.taken[b.next%len(b.taken)], true
}

func (b *balancer) connect(ctx context.Context, from net.Conn) {
	defer from.Close() //nolint:errcheck // it ends in any case
	address, ok := b.choose()
	if !ok {
		return
	}
	to, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close() //nolint:errcheck // it ends in any case
	defer context.AfterFunc(ctx, func() { _ = from.Close(); _ = to.Close() })()
	var both sync.WaitGroup
	both.Go(func() { passOn(to, from) })
	both.Go(func() { passOn(from, to) })
	both.Wait()
}

// passOn copies one direction, and passes its end on as what it is.
func passOn(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if tcp, ok := to.(*net.TCPConn); ok && err == nil {
		_ = tcp.CloseWrite()
		return
	}
	_ = to.Close() // an abrupt end
	_ = from.Close()
}

// presents returns nil when an address serves this certificate to newcomers.
func presents(ctx context.Context, address string, want *certs.KeyPair) error {
	ctx, cancel := context.WithTimeout(ctx, renewedWithin)
	defer cancel()
	conn, err := (&tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true,
	}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	pair, err := tls.X509KeyPair(want.CertPEM, want.KeyPEM)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return err
	}
	if got := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]; !got.Equal(leaf) {
		return fmt.Errorf("%s still serves the previous certificate", address)
	}
	return nil
}

// attackers are processes that attack the replicas, one for each.
type attackers struct {
	*survival
	what attack

	mu      sync.Mutex
	running map[int]*attacking // by replica
	did     toll
}

// start attacks a replica at its own address, also before it listens there.
func (a *attackers) start(ctx context.Context, replica int) error {
	what, err := a.orderFor(ctx, a.what, a.replicas[replica])
	if err != nil {
		return err
	}
	what.Seconds = time.Hour.Seconds()
	started, err := startAttack(ctx, what)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running == nil {
		a.running = map[int]*attacking{}
	}
	a.running[replica] = started
	return nil
}

// end ends the attack on a replica, if there is one.
func (a *attackers) end(replica int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.running[replica]
	if one == nil {
		return nil
	}
	delete(a.running, replica)
	did, _, err := one.stop()
	a.did.Connections += did.Connections
	a.did.Requests += did.Requests
	a.did.Answered += did.Answered
	a.did.Refused += did.Refused
	a.did.Closed += did.Closed
	a.did.Failed += did.Failed
	return err
}

func (a *attackers) stop() error {
	var err error
	for replica := range a.replicas {
		err = errors.Join(err, a.end(replica))
	}
	return err
}
