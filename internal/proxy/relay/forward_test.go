package relay

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestUpstreamStatus(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name   string
		method string
		err    error
		code   int32
		retry  int32

		problem string
	}{
		{"a request that was never sent can be made again", "POST", dial, 503, 1, problemUnreachable},
		{"also when the name is not known", "POST", &net.DNSError{Err: "no such host"}, 503, 1, problemUnreachable},
		{"also when TLS takes too long", "POST", errors.New("net/http: TLS handshake timeout"), 503, 1, problemUnreachable},
		{"a lost read can be made again", "GET", io.ErrUnexpectedEOF, 503, 1, problemLost},
		{"a lost write must not be made again by itself", "POST", io.ErrUnexpectedEOF, 503, 0, problemLost},
		{"GOAWAY with the body gone is for the client to try again", "PUT", errors.New("http2: Transport: cannot retry err " +
			"[x] after Request.Body was written"), 429, 1, problemRefusedStream},
		{"an identity too large is nobody's outage", "GET", errors.New("http2: request header list larger than peer's " +
			"published limit"), 431, 0, problemTooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var status apierrors.APIStatus
			problem, err := upstreamStatus(&http.Request{Method: test.method}, test.err)
			if problem != test.problem {
				t.Errorf("want problem %s, got %s", test.problem, problem)
			}
			if !errors.As(err, &status) {
				t.Fatalf("want a status, got %v", err)
			}
			got := status.Status()
			var retry int32
			if got.Details != nil {
				retry = got.Details.RetryAfterSeconds
			}
			if got.Code != test.code || retry != test.retry || got.Message == "" {
				t.Errorf("want %d with retry after %d, got %+v", test.code, test.retry, got)
			}
		})
	}
}
