package impersonator

import (
	"net"
	"testing"
)

// TestHasLeft closes connections in all ways, and leaves some open.
func TestHasLeft(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do   func(*net.TCPConn)
		want bool
	}{
		"is open":          {func(*net.TCPConn) {}, false},
		"has sent":         {func(c *net.TCPConn) { _, _ = c.Write([]byte("more")) }, false},
		"has closed":       {func(c *net.TCPConn) { _ = c.Close() }, true},
		"has reset":        {func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, true},
		"sends no more":    {func(c *net.TCPConn) { _ = c.CloseWrite() }, true},
		"sent, and closed": {func(c *net.TCPConn) { _, _ = c.Write([]byte("more")); _ = c.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close() //nolint:errcheck // the test is over
			client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close() //nolint:errcheck // the test is over
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close() //nolint:errcheck // the test is over
			test.do(client.(*net.TCPConn))
			if test.want {
				eventually(t, func() bool { return hasLeft(server) })
				return
			}
			for range 3 {
				if hasLeft(server) {
					t.Error("want it to be there")
				}
			}
		})
	}
	if hasLeft(deadEnd{}) {
		t.Error("want nothing said about connections of other kinds")
	}
}
