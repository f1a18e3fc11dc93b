package impersonator

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestSmallBodiesCanBeSentAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		length int64
		expect string
		want   bool
	}{
		{name: "a small one can", length: 5, want: true},
		{name: "one of unknown length cannot", length: -1},
		{name: "a large one cannot", length: maxReplayed + 1},
		{name: "one the client waits with cannot", length: 5, expect: "100-continue"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			req := &http.Request{
				Header:        http.Header{},
				ContentLength: test.length,
				Body:          io.NopCloser(strings.NewReader("hello")),
			}
			if test.expect != "" {
				req.Header.Set("Expect", test.expect)
			}
			if err := makeReplayable(req); err != nil {
				t.Fatal(err)
			}
			if (req.GetBody != nil) != test.want {
				t.Fatalf("want it replayable: %t", test.want)
			}
			bodies := []io.Reader{req.Body}
			if test.want {
				again, err := req.GetBody()
				if err != nil {
					t.Fatal(err)
				}
				bodies = append(bodies, again)
			}
			for _, body := range bodies {
				if text, err := io.ReadAll(body); err != nil || string(text) != "hello" {
					t.Errorf("want the body, got %q, %v", text, err)
				}
			}
		})
	}
	req := &http.Request{Header: http.Header{}, ContentLength: 10, Body: io.NopCloser(strings.NewReader("short"))}
	var broken *clientBodyError
	if err := makeReplayable(req); !errors.As(err, &broken) {
		t.Errorf("want the client's body to blame, got %v", err)
	}
}

func TestUpstreamStatus(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name   string
		method string
		err    error
		code   int32
		retry  int32

		problem upstreamProblem
	}{
		{"a request that was never sent can be made again", "POST", dial, 503, 1, problemUnreachable},
		{"also when the name is not known", "POST", &net.DNSError{Err: "no such host"}, 503, 1, problemUnreachable},
		{"also when TLS takes too long", "POST", errors.New("net/http: TLS handshake timeout"), 503, 1, problemUnreachable},
		{"a lost read can be made again", "GET", io.ErrUnexpectedEOF, 503, 1, problemLost},
		{"a lost write must not be made again by itself", "POST", io.ErrUnexpectedEOF, 503, 0, problemLost},
		{"GOAWAY with the body gone is for the client to try again", "PUT", errors.New("http2: Transport: cannot retry err " +
			"[x] after Request.Body was written"), 429, 1, problemRefusedStream},
		{"an identity too large is nobody's outage", "GET", errors.New("http2: request header list larger than peer's " +
			"advertised limit"), 431, 0, problemTooLarge},
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

func TestUpstreamTakesNoCredentials(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, "HTTP/2.0")
	config := api.config("a-token")
	config.Username, config.Password = "root", "root"
	ca := newCA(t, "ca")
	pair, err := ca.IssueClient(identityFor("root", "system:masters"), ca.Certificate().NotBefore, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	config.CertData, config.KeyData = pair.CertPEM, pair.KeyPEM
	up, err := newUpstream(config)
	if err != nil {
		t.Fatal(err)
	}
	defer up.close()
	for _, transport := range append(slices.Concat(up.plain, up.streams), up.upgrade) {
		if c := transport.TLSClientConfig; len(c.Certificates) != 0 || c.GetClientCertificate != nil || c.InsecureSkipVerify {
			t.Error("want no client certificate")
		}
	}
}
