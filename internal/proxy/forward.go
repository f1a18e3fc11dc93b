package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/budget"
)

const (
	bufferSize = 32 << 10
	// streamBufferSize is that of logs and of programs behind a proxy subresource.
	streamBufferSize = 16 << 10
	// A watch keeps its buffer as long as it is open. There are many watches, and events are small.
	watchBufferSize = 2 << 10
)

// forwarder is the back half: it sends the request to the API server as the user in its context.
type forwarder struct {
	upstream    *upstream
	token       TokenSource
	passThrough *tokenPassThrough
	budget      *budget.Budget
	work        allWork
	failed      *logs.Sampler
	serializer  runtime.NegotiatedSerializer
	// One proxy in three kinds, which differ in buffers and flushing only.
	plain, stream, watch *httputil.ReverseProxy
}

func newForwarder(
	up *upstream,
	token TokenSource,
	passThrough *tokenPassThrough,
	b *budget.Budget,
	all allWork,
	failed *logs.Sampler,
	s runtime.NegotiatedSerializer,
) *forwarder {
	f := &forwarder{
		upstream:    up,
		work:        all,
		token:       token,
		passThrough: passThrough,
		budget:      b,
		failed:      failed,
		serializer:  s,
	}
	f.plain, f.stream, f.watch = f.proxy(bufferSize), f.proxy(streamBufferSize), f.proxy(watchBufferSize)
	// An answer of known length is no stream: it is written when a frame is full, and at its end. ReverseProxy flushes
	// answers of unknown length at once all the same.
	f.plain.FlushInterval = 0
	return f
}

func (f *forwarder) proxy(buffer int) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: f.address,
		Transport: holdUntilAuthorized{
			&asUser{token: f.token, passThrough: f.passThrough, next: holdAnswer{f.inFlight(), f.budget}},
		},
		FlushInterval:  -1, // watches stream
		BufferPool:     newBufferPool(buffer),
		ModifyResponse: f.checkAnswer,
		ErrorHandler:   f.writeError,
		ErrorLog:       log.New(io.Discard, "", 0), // a broken stream is the client's to report
	}
}

func (f *forwarder) inFlight() inFlight {
	return inFlight{
		next:    reserveAnswer{f.upstream, f.budget},
		all:     f.work.all,
		long:    f.work.allLong,
		watches: f.work.watches,
	}
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if logger := klog.FromContext(req.Context()).V(4); logger.Enabled() {
		logger.Info("Forwarded a request", "method", req.Method, "path", req.URL.Path)
	}
	info, ok := request.RequestInfoFrom(req.Context())
	switch {
	case ok && info.Verb == "watch":
		f.watch.ServeHTTP(w, req)
	case stateFrom(req.Context()).longRunning:
		f.stream.ServeHTTP(w, req)
	default:
		f.plain.ServeHTTP(w, req)
	}
}

// address sets the address of the API server, and the header that tells its audit log where the request came from.
func (f *forwarder) address(pr *httputil.ProxyRequest) {
	pr.SetURL(f.upstream.address)
	pr.Out.Host = pr.In.Host
	pr.Out.Trailer = nil
	if host, _, err := net.SplitHostPort(pr.In.RemoteAddr); err == nil {
		pr.Out.Header["X-Forwarded-For"] = []string{host}
	}
}

var (
	errOurCredential = errors.New("the API server did not accept the proxy's credential")
	errBadSwitch     = errors.New("the API server switched to a protocol that was not asked for")
)

// checkAnswer checks the API server's answer before any of it is sent to the client.
func (f *forwarder) checkAnswer(res *http.Response) error {
	state := stateFrom(res.Request.Context())
	state.answeredInTime = res.Request.Context().Err() == nil
	state.asRequest.Release()
	if res.StatusCode == http.StatusSwitchingProtocols {
		// Two connections are joined only when both sides named the same protocol.
		if state.upgrade == "" || !wantsUpgrade(res.Header) || !strings.EqualFold(res.Header.Get("Upgrade"), state.upgrade) {
			return errBadSwitch
		}
		delete(state.header, "Connection")
		if conn, ok := res.Body.(io.ReadWriteCloser); ok && state.end != nil {
			res.Body = &upgradedBody{ReadWriteCloser: conn, end: state.end}
		}
	} else if state.closeAfterwards {
		closeAfterwards(state.header) // again, as an informational answer empties the header
	}
	if res.StatusCode == http.StatusUnauthorized && state.upstreamToken != "" && ownAnswer(res.Request) {
		f.token.Reject(state.upstreamToken)
		return errOurCredential
	}
	if state.loginEnded != nil {
		noteLogin(res, state)
	}
	if _, ours := state.header[auditIDHeader]; ours {
		delete(res.Header, auditIDHeader) // it is the same
	}
	// Ours replace those of the API server. Set here again, as an informational answer empties the header.
	for name, values := range securityHeaders {
		delete(res.Header, name)
		state.header[name] = values
	}
	if state.longRunning && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &endingBody{ReadCloser: res.Body, draining: func() bool {
			return errors.Is(context.Cause(res.Request.Context()), errDraining)
		}}
	}
	return nil
}

// ownAnswer is true when a 401 can only mean that the API server refused our credential. Behind a proxy subresource
// there is another program, which may answer 401 about users of its own.
func ownAnswer(req *http.Request) bool {
	info, ok := request.RequestInfoFrom(req.Context())
	return ok && info.Subresource != "proxy"
}

// writeError answers a request that could not be sent, or whose answer could not be used.
func (f *forwarder) writeError(w http.ResponseWriter, req *http.Request, err error) {
	var refused apierrors.APIStatus
	var body *clientBodyError
	switch {
	case errors.As(err, &refused):
		if errors.Is(err, errNoToken) {
			f.upstream.counts.problem(problemNoCredential)
		}
	case errors.As(err, &body), stateFrom(req.Context()).bodyError.Load() != nil, stateFrom(req.Context()).body.late():
		err = errUnreadableBody
	case errors.Is(err, errOurCredential):
		f.upstream.counts.problem(problemCredential)
		err = statusUnavailable("the API server did not accept the proxy's credential; it is being renewed")
	case errors.Is(err, errBadSwitch):
		f.upstream.counts.problem(problemProtocol)
		err = apierrors.NewInternalError(errBadSwitch)
	case errors.Is(context.Cause(req.Context()), errDraining):
		err = statusUnavailable("the proxy is shutting down")
	case hasLeft(req.Context()):
		if onlyReads(req) || neverSent(err) {
			err = errClientLeft
		} else {
			err = errClientLeftWrite
		}
	default:
		var problem upstreamProblem
		reason := bounded(err.Error())
		problem, err = upstreamStatus(req, err)
		f.upstream.counts.problem(problem)
		f.failed.Info(klog.FromContext(req.Context()), "problem", problem.String(), "reason", reason)
	}
	writeStatus(w, req, f.serializer, err)
}

func onlyReads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// upstreamStatus turns a transport's error into an answer that says whether it is safe to try again.
func upstreamStatus(req *http.Request, err error) (upstreamProblem, error) {
	text := err.Error()
	switch {
	case neverSent(err):
		return problemUnreachable, statusUnavailable("the API server cannot be reached")
	case strings.Contains(text, "cannot retry err"): // GOAWAY, and the body is gone
		tooMany := statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
			"the API server closed the connection before it looked at the request")
		tooMany.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
		return problemRefusedStream, tooMany
	case strings.Contains(text, "request header list larger than"):
		return problemTooLarge, statusError(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonBadRequest,
			"the request with the user's identity is larger than the API server takes")
	case onlyReads(req):
		return problemLost, statusUnavailable("the connection to the API server was lost")
	}
	// No Retry-After: clients would send the request again by themselves, and it may have been carried out.
	return problemLost, statusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the connection to the API server was lost; the request may have been carried out")
}

// endingBody ends the body of a stream without an error when the proxy shuts down, so that the client sees its
// regular end.
type endingBody struct {
	io.ReadCloser
	draining func() bool
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.draining() {
		err = io.EOF
	}
	return n, err
}

// bufferPool implements httputil.BufferPool.
type bufferPool struct {
	pool sync.Pool
}

func newBufferPool(size int) *bufferPool {
	return &bufferPool{pool: sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

func (p *bufferPool) Get() []byte  { return *p.pool.Get().(*[]byte) }
func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
