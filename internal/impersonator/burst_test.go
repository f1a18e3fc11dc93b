package impersonator

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// dribble is a connection on which pieces arrive at given times. A read takes what has arrived.
type dribble struct {
	net.Conn
	pieces []arrival
	reads  int
	err    error // with the last piece
}

type arrival struct {
	at   time.Time
	data []byte
}

func (d *dribble) Read(p []byte) (int, error) {
	d.reads++
	if len(d.pieces) == 0 {
		return 0, d.err
	}
	time.Sleep(time.Until(d.pieces[0].at))
	n := 0
	for n < len(p) && len(d.pieces) > 0 && !d.pieces[0].at.After(time.Now()) {
		first := &d.pieces[0]
		taken := copy(p[n:], first.data)
		n += taken
		if first.data = first.data[taken:]; len(first.data) == 0 {
			d.pieces = d.pieces[1:]
		}
	}
	if len(d.pieces) == 0 {
		return n, d.err
	}
	return n, nil
}

var errBroken = errors.New("broken")

func TestBurstConn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		pieces int
		size   int
		pause  time.Duration // after each piece
		end    error
		reads  int // of the connection below, at most
	}{
		{name: "reads all that there is at once", pieces: 200, size: 4096, end: io.EOF, reads: 7 + 12},
		{name: "reads a short answer as it is asked to", pieces: 3, size: 4096, end: io.EOF, reads: 3},
		{name: "goes back to that after a gap", pieces: 20, size: 40 << 10, pause: time.Second, end: io.EOF, reads: 9 * 20},
		{name: "breaks off where the API server does", pieces: 200, size: 4096, end: errBroken, reads: 7 + 12},
		{name: "ends where there is nothing", end: io.EOF, reads: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				under := &dribble{err: test.end}
				var want []byte
				began := time.Now()
				at := began
				for i := range test.pieces {
					data := bytes.Repeat([]byte{byte(i)}, test.size)
					under.pieces = append(under.pieces, arrival{at, data})
					want = append(want, data...)
					at = at.Add(test.pause)
				}
				conn := &burstConn{Conn: under}
				var got []byte
				var err error
				for err == nil {
					var n int
					buffer := make([]byte, 5000)
					n, err = conn.Read(buffer)
					got = append(got, buffer[:n]...)
					if waited := time.Since(began) - time.Duration((len(got)-1)/max(test.size, 1))*test.pause; n > 0 && waited > 0 {
						t.Fatalf("what had come was held for %s", waited)
					}
				}
				if !errors.Is(err, test.end) || !bytes.Equal(got, want) {
					t.Errorf("want all %d bytes and then %v, got %d and %v", len(want), test.end, len(got), err)
				}
				if under.reads > test.reads {
					t.Errorf("want at most %d reads, got %d", test.reads, under.reads)
				}
			})
		})
	}
}

// TestListsArePassedOnAsTheyAre has the API server make lists in small pieces, and break one off.
func TestListsArePassedOnAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, breaks := range []bool{false, true} {
		p := startProxy(t)
		var sent bytes.Buffer
		p.api.set(func() {
			p.api.serve = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				for i := range 100 {
					piece := bytes.Repeat([]byte{byte(i)}, 3001)
					sent.Write(piece)
					_, _ = w.Write(piece)
					_ = http.NewResponseController(w).Flush()
				}
				if breaks {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("X-Sum", "1")
			}
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.address+"/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := p.as(t, "jane").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		switch {
		case breaks && err == nil:
			t.Error("want an answer that broke off not to look complete")
		case breaks:
		case err != nil || !bytes.Equal(got, sent.Bytes()):
			t.Errorf("want the very %d bytes, got %d and %v", sent.Len(), len(got), err)
		case res.Trailer.Get("X-Sum") != "1":
			t.Errorf("want the trailer, got %v", res.Trailer)
		}
	}
}
