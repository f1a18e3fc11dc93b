package relay

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
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

const (
	bufferSize = 32 << 10
	// streamBufferSize is for logs and responses of proxy subresources.
	streamBufferSize = 16 << 10
	// watchBufferSize is small: watches keep their buffer while they are open, there are many, and events are small.
	watchBufferSize = 2 << 10
)

// Options are the dependencies of NewHandler. All are required.
type Options struct {
	Upstream *Upstream
	// Token is the upstream credential.
	Token TokenSource
	// FlowControl limits how much of a response is buffered.
	FlowControl *flowcontrol.Controller
	// Failed logs the reasons why requests could not be forwarded.
	Failed     *logs.Sampler
	Serializer runtime.NegotiatedSerializer
}

// forwarder forwards requests to the API server as the user in their context.
type forwarder struct {
	Options
	// They differ only in buffers and flushing.
	plain, stream, watch *httputil.ReverseProxy
}

// NewHandler returns the back half of the proxy: it sends requests to the API server as the user in their context.
func NewHandler(options Options) http.Handler {
	f := &forwarder{Options: options}
	f.plain, f.stream, f.watch = f.proxy(bufferSize), f.proxy(streamBufferSize), f.proxy(watchBufferSize)
	// A response of known length is not a stream: it is written when a frame is full, and at its end. ReverseProxy
	// always flushes responses of unknown length at once.
	f.plain.FlushInterval = 0
	return f
}

func (f *forwarder) proxy(buffer int) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        f.address,
		Transport:      &asUser{f.Options, holdResponse{f.Upstream, f.FlowControl}},
		FlushInterval:  -1, // watches stream
		BufferPool:     newBufferPool(buffer),
		ModifyResponse: f.checkResponse,
		ErrorHandler:   f.writeError,
		ErrorLog:       log.New(io.Discard, "", 0), // the client reports a broken stream
	}
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if logger := klog.FromContext(req.Context()).V(4); logger.Enabled() {
		logger.Info("Forwarded request", "method", req.Method, "path", req.URL.Path)
	}
	info, ok := apirequest.RequestInfoFrom(req.Context())
	switch {
	case ok && info.Verb == "watch":
		f.watch.ServeHTTP(w, req)
	case request.From(req.Context()).LongRunning:
		f.stream.ServeHTTP(w, req)
	default:
		f.plain.ServeHTTP(w, req)
	}
}

// address sets the address of the API server, and X-Forwarded-For with the client's address for the audit log.
func (f *forwarder) address(pr *httputil.ProxyRequest) {
	pr.SetURL(f.Upstream.address)
	pr.Out.Host = pr.In.Host
	pr.Out.Trailer = nil
	pr.Out.URL.RawQuery = strings.ReplaceAll(pr.Out.URL.RawQuery, " ", "%20") // as in HTTP/1.1
	if host, _, err := net.SplitHostPort(pr.In.RemoteAddr); err == nil {
		pr.Out.Header["X-Forwarded-For"] = []string{host}
	}
}

// checkResponse checks the API server's response before any of it is sent to the client.
func (f *forwarder) checkResponse(res *http.Response) error {
	state := request.From(res.Request.Context())
	state.RespondedInTime = res.Request.Context().Err() == nil
	if res.StatusCode == http.StatusSwitchingProtocols {
		// Join the two connections only if both sides named the same protocol.
		if state.Upgrade == "" || !request.WantsUpgrade(res.Header) ||
			!strings.EqualFold(res.Header.Get("Upgrade"), state.Upgrade) {
			return f.Upstream.problem(problemProtocol,
				apierrors.NewInternalError(errors.New("the API server switched to an unrequested protocol")))
		}
		delete(state.Header, "Connection")
		if conn, ok := res.Body.(io.ReadWriteCloser); ok && state.End != nil {
			res.Body = &upgradedBody{ReadWriteCloser: conn, end: state.End}
		}
	} else if state.CloseAfterwards {
		request.CloseAfterwards(state.Header) // again, because an informational response empties the header
	}
	if res.StatusCode == http.StatusUnauthorized && ownResponse(res) {
		f.Token.Reject(state.UpstreamToken)
		return f.Upstream.problem(problemCredential,
			request.StatusUnavailable("the API server rejected the proxy's credential; it is being renewed"))
	}
	if state.Login != nil {
		state.Login.Responded(res)
	}
	if _, ours := state.Header[request.AuditIDHeader]; ours {
		delete(res.Header, request.AuditIDHeader) // it is the same
	}
	// Replace the API server's headers. Set them again, because an informational response empties the header.
	for name, values := range request.SecurityHeaders {
		delete(res.Header, name)
		state.Header[name] = values
	}
	if state.LongRunning && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = endingBody{res.Body, res.Request}
	}
	return nil
}

// flowSchemaHeader is a header of every response to a request that the API server queues, which it does after
// authentication. It does not queue long-running requests other than watches.
const flowSchemaHeader = "X-Kubernetes-Pf-Flowschema-Uid"

// ownResponse is true when a 401 means that the API server refused the proxy's credential. An aggregated API, or a
// server behind a proxy subresource, may return its own 401 after the API server has accepted the credential.
func ownResponse(res *http.Response) bool {
	info, ok := apirequest.RequestInfoFrom(res.Request.Context())
	return ok && info.Subresource != "proxy" && res.Header.Get(flowSchemaHeader) == ""
}

// writeError responds to a request that could not be sent, or whose response could not be used.
func (f *forwarder) writeError(w http.ResponseWriter, req *http.Request, err error) {
	var refused apierrors.APIStatus
	state := request.From(req.Context())
	switch {
	case errors.As(err, &refused):
	case state.BodyFailed.Load(), state.Body != nil && state.Body.Late():
		err = errUnreadableBody
	case isDraining(req):
		err = request.StatusUnavailable("the proxy is shutting down")
	case request.HasLeft(req.Context()) && (onlyReads(req) || neverSent(err)):
		err = request.ErrClientLeft
	case request.HasLeft(req.Context()):
		err = request.ErrClientLeftWrite
	default:
		var problem string
		reason := request.Bounded(err.Error())
		problem, err = upstreamStatus(req, err)
		f.Upstream.Problems[problem].Add(1)
		f.Failed.Info(klog.FromContext(req.Context()), "problem", problem, "reason", reason)
	}
	request.WriteStatus(w, req, f.Serializer, err)
}

func onlyReads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// upstreamStatus converts a transport error to a response that says whether a retry is safe.
func upstreamStatus(req *http.Request, err error) (problem string, status error) {
	text := err.Error()
	switch {
	case neverSent(err):
		return problemUnreachable, request.StatusUnavailable("the API server cannot be reached")
	case strings.Contains(text, "cannot retry err"): // GOAWAY, and the body is consumed
		tooMany := request.StatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
			"the API server closed the connection before it processed the request")
		tooMany.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: request.RetryAfterSeconds}
		return problemRefusedStream, tooMany
	case strings.Contains(text, "request header list larger than"):
		return problemTooLarge, request.StatusError(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonBadRequest,
			"the request with the user's identity is too large for the API server")
	case onlyReads(req):
		return problemLost, request.StatusUnavailable("the connection to the API server was lost")
	}
	// No Retry-After: clients would retry by themselves, and the request may have been carried out.
	return problemLost, request.StatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		"the connection to the API server was lost; the request may have been carried out")
}

// endingBody ends the body of a stream without an error when the proxy shuts down, so that the client reads a regular
// end.
type endingBody struct {
	io.ReadCloser
	req *http.Request
}

func (b endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && isDraining(b.req) {
		err = io.EOF
	}
	return n, err
}

func isDraining(req *http.Request) bool {
	return errors.Is(context.Cause(req.Context()), request.ErrDraining)
}

// bufferPool implements httputil.BufferPool.
type bufferPool struct{ sync.Pool } // of *[]byte

func newBufferPool(size int) *bufferPool {
	return &bufferPool{sync.Pool{New: func() any { return ptr.To(make([]byte, size)) }}}
}

func (p *bufferPool) Get() []byte  { return *p.Pool.Get().(*[]byte) }
func (p *bufferPool) Put(b []byte) { p.Pool.Put(&b) }
