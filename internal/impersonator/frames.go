package impersonator

import "net/http"

const (
	// frameSize is as much as fits into one TLS record together with the head of its HTTP/2 frame, whose size clients
	// rarely allow to be larger. A full frame (16384) would need a second record, and a second call of the system, for
	// its last nine bytes.
	frameSize = 16384 - 9
	// readFrameSize is the largest frame that the API server may send.
	readFrameSize = 256 << 10
)

// frameWriter hands large pieces to HTTP/2 in pieces that fill a frame.
type frameWriter struct {
	http.ResponseWriter
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w frameWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w frameWriter) Write(p []byte) (int, error) {
	written := 0
	for len(p)-written > frameSize {
		n, err := w.ResponseWriter.Write(p[written : written+frameSize])
		written += n
		if err != nil {
			return written, err
		}
	}
	n, err := w.ResponseWriter.Write(p[written:])
	return written + n, err
}
