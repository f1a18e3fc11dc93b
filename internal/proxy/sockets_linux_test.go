package proxy

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

// TestSendQueuesAreBounded writes to a client that reads nothing, until the kernel takes no more.
func TestSendQueuesAreBounded(t *testing.T) {
	t.Parallel()
	plain, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close() //nolint:errcheck // the test is over
	listener := newClientConnections(budget.New(budget.Limits{}, time.Now), 1).listen(plain)
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close() //nolint:errcheck // the test is over
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()      //nolint:errcheck // the test is over
	const unbounded = 1 << 20 // the client's kernel takes some of it, and there the usual queue alone is longer than that
	written, piece := 0, make([]byte, 16<<10)
	for written < unbounded {
		if err := server.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := server.Write(piece)
		written += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("the kernel took %d bytes for a client that reads none", written)
}
