package edge_test

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestSendQueuesAreBounded writes to a client that reads nothing, until the kernel takes no more.
func TestSendQueuesAreBounded(t *testing.T) {
	t.Parallel()
	_, server := pair(t, newEdge())
	const unbounded = 1 << 20 // the client's kernel takes some of it, and there the usual queue alone is longer than that
	for written := 0; written < unbounded; {
		if err := server.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := server.Write(make([]byte, 16<<10))
		written += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("the kernel took %d bytes for a client that reads none", unbounded)
}
