package kubelet

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
)

// PortForward implements portforward.PortForwarder: it connects a stream and a port of this machine. Each side may
// close its half first.
func (c *container) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	dialed, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("connecting to port %d of the pod: %w", port, err)
	}
	conn := dialed.(*net.TCPConn)
	defer conn.Close() //nolint:errcheck // both directions have ended
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.CloseWrite()
	}()
	// The end of the server's output ends it, as in a container runtime.
	_, err = io.Copy(stream, conn)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}
