package impersonator

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pieces notes the sizes of what is written to it, and fails when it has taken a number of them.
type pieces struct {
	*httptest.ResponseRecorder
	sizes []int
	most  int
}

var errFull = errors.New("full")

func (w *pieces) Write(p []byte) (int, error) {
	if len(w.sizes) == w.most {
		return 0, errFull
	}
	w.sizes = append(w.sizes, len(p))
	return w.ResponseRecorder.Write(p)
}

func TestFrameWriter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		length  int
		most    int
		want    []int
		written int
		err     error
	}{
		{"passes on what fits a frame", frameSize, 9, []int{frameSize}, frameSize, nil},
		{"passes on nothing as nothing", 0, 9, []int{0}, 0, nil},
		{"splits what does not", 2*frameSize + 1, 9, []int{frameSize, frameSize, 1}, 2*frameSize + 1, nil},
		{"says how much was written before an error", 3 * frameSize, 2, []int{frameSize, frameSize}, 2 * frameSize, errFull},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			data := bytes.Repeat([]byte("abcdefg"), test.length/7+1)[:test.length]
			under := &pieces{ResponseRecorder: httptest.NewRecorder(), most: test.most}
			n, err := frameWriter{under}.Write(data)
			if n != test.written || !errors.Is(err, test.err) {
				t.Errorf("want %d and %v, got %d and %v", test.written, test.err, n, err)
			}
			if diff := cmp.Diff(test.want, under.sizes); diff != "" {
				t.Errorf("pieces (-want +got):\n%s", diff)
			}
			if !bytes.Equal(under.Body.Bytes(), data[:test.written]) {
				t.Error("what was written is not what was to be")
			}
		})
	}
	under := httptest.NewRecorder()
	if err := http.NewResponseController(frameWriter{under}).Flush(); err != nil || !under.Flushed {
		t.Errorf("want the writer below flushed, got %v", err)
	}
}
