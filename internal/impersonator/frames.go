package impersonator

import "net/http"

// frameSize is how much of an answer goes into one HTTP/2 frame. Together with the frame's header it fills one TLS
// record (16384 bytes). A frame of 16384 bytes would need a second record, and a second system call, for its last
// nine.
const frameSize = 16384 - 9

// frameWriter writes large pieces to HTTP/2 in pieces of frameSize.
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
