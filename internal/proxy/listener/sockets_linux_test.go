package listener_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestSendQueuesAreBounded writes to a client that reads nothing, until the kernel takes no more.
func TestSendQueuesAreBounded(t *testing.T) {
	t.Parallel()
	_, server := pair(t, newPort())
	const unbounded = 1 << 20 // more than the client's kernel and the default send queue take
	for written := 0; written < unbounded; {
		must.Do(t, server.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := server.Write(make([]byte, 16<<10))
		written += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		must.Do(t, err)
	}
	t.Errorf("the kernel took %d bytes for a client that reads none", unbounded)
}

// TestClientsThatHaveLeft has clients reset more requests than their penalty allows within the test, and disconnect.
// Their remaining input is not processed.
func TestClientsThatHaveLeft(t *testing.T) {
	t.Parallel()
	const clients, requests = 60, 450 // after more, net/http ends the connection
	p := serveWith(t, flowcontrol.DefaultMemory, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	block := blockWith(0)
	for range clients {
		conn := p.secure(t, "h2")
		_, _ = io.WriteString(conn, http2.ClientPreface)
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings()
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		for i := range uint32(requests) {
			err := framer.WriteHeaders(
				http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block, EndStream: true, EndHeaders: true},
			)
			if err == nil {
				err = framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
			}
			if err != nil {
				break // it has already ended
			}
		}
		_ = conn.Close()
	}
	eventually(t, "the connections end", func() bool { return p.port.Open() == 0 })
}
