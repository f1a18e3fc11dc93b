package edge_test

import (
	"net"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/admission"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/edge"
)

// pair returns both ends of a connection to an edge.
func pair(t *testing.T, e *edge.Edge) (client net.Conn, server *edge.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err = net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	accepted, err := e.Listen(listener).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return client, edge.Below(accepted)
}

func newEdge() *edge.Edge {
	return edge.New(admission.New(admission.LimitsFor(admission.DefaultMemory, 2)))
}

// TestPossessionComesFirst has a connection on which a known certificate was shown, but not yet its key. It counts for
// the user when the handshake has succeeded.
func TestPossessionComesFirst(t *testing.T) {
	t.Parallel()
	e := newEdge()
	client, server := pair(t, e)
	proven := make(chan struct{})
	server.Claim("jane", proven)
	for _, want := range []bool{false, true} {
		if _, err := client.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if held := e.Admission().Total(admission.Owner{User: "jane"}); (held > 0) != want {
			t.Errorf("want the connection counted for the user: %t, got %d bytes", want, held)
		}
		if !want {
			close(proven)
		}
	}
}

// TestNetworks looks at which addresses count as one.
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
		if got := edge.Network(address); got != want {
			t.Errorf("%q: want %s, got %s", address, want, got)
		}
	}
}
