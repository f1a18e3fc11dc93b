package listener_test

import (
	"net"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// pair returns both ends of a connection to a port.
func pair(t *testing.T, e *listener.Port) (client net.Conn, server *listener.Conn) {
	t.Helper()
	inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = inner.Close() }()
	client = must.Get(net.Dial("tcp", inner.Addr().String()))(t)
	t.Cleanup(func() { _ = client.Close() })
	accepted := must.Get(e.Listen(inner).Accept())(t)
	t.Cleanup(func() { _ = accepted.Close() })
	return client, listener.Below(accepted)
}

func newPort() *listener.Port {
	return listener.New(flowcontrol.New(flowcontrol.LimitsFor(flowcontrol.DefaultMemory, 2)))
}

// TestPossessionComesFirst presents a known certificate without its key yet. The connection counts for the user only
// after the handshake has succeeded.
func TestPossessionComesFirst(t *testing.T) {
	t.Parallel()
	e := newPort()
	client, server := pair(t, e)
	proven := make(chan struct{})
	server.Shaking(proven)
	server.Claim("jane")
	for _, want := range []bool{false, true} {
		must.Get(client.Write([]byte("a")))(t)
		must.Get(server.Read(make([]byte, 1)))(t)
		if held := e.FlowControl().Total(flowcontrol.Flow{User: "jane"}); (held > 0) != want {
			t.Errorf("want the connection counted for the user: %t, got %d bytes", want, held)
		}
		if !want {
			close(proven)
		}
	}
}

// TestUnauthenticatedClientsWaitForAProcessor has more unauthenticated clients in a handshake than half of the
// processors. One waits until the result for another is written, or the other has disconnected.
func TestUnauthenticatedClientsWaitForAProcessor(t *testing.T) {
	t.Parallel()
	e := newPort()
	begin := func() (*listener.Conn, <-chan error) {
		client, server := pair(t, e)
		must.Get(client.Write([]byte("hello")))(t)
		read := make(chan error, 1)
		go func() {
			_, err := server.Read(make([]byte, 10))
			read <- err
		}()
		return server, read
	}
	last, read := begin()
	for _, end := range []func(*listener.Conn) error{
		func(c *listener.Conn) error { _, err := c.Write([]byte("hello")); return err },
		(*listener.Conn).Close,
	} {
		must.Do(t, <-read)
		next, waits := begin()
		eventually(t, "the next one waits", func() bool {
			select {
			case err := <-waits: // this machine was so slow that the previous turn was over
				if err != nil {
					t.Error(err)
				}
				last = next
				next, waits = begin()
			default:
			}
			return e.FlowControl().Usage()[flowcontrol.PreAuth].Waiting == 1
		})
		must.Do(t, end(last))
		last, read = next, waits
	}
	must.Do(t, <-read)
}

// TestNetworks checks which addresses count as one.
func TestNetworks(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1":           "192.0.2.1",
		"::ffff:192.0.2.1":    "192.0.2.1",
		"2001:db8:1:2:3::4":   "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::": "2001:db8:1:2::/64",
		"fe80::1%eth0":        "fe80::/64",
		"somewhere":           "unknown",
		"":                    "unknown",
	} {
		if got := listener.Network(address); got != want {
			t.Errorf("%q: want %s, got %s", address, want, got)
		}
	}
}
