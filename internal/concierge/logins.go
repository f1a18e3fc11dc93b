package concierge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
)

const (
	// maxLoginBody limits the body of a TokenCredentialRequest in bytes, as at the impersonation proxy: a token has up
	// to 128 KiB.
	maxLoginBody = 136 << 10
	// maxOtherBody is the limit of all other requests: a WhoAmIRequest only has a name.
	maxOtherBody = 8 << 10
	// logInterval is the time without refusals after which the next refusal is logged.
	logInterval = time.Minute
)

// LoginLimits limits the number of concurrent logins. Unauthenticated clients may log in, and each login costs a
// webhook call or the verification of a token. Logins are queued fairly by source network. Excess logins are refused at
// once, so that a flood does not block the API server, which waits for each response.
type LoginLimits struct {
	flowControl *flowcontrol.Controller
	refused     atomic.Int64
	lastRefused atomic.Int64 // in Unix nanoseconds
	ended       loginResults
}

// loginResult is the result of a login.
type loginResult int

const (
	loginDone    loginResult = iota
	loginRefused             // the token, the user or the request is invalid
	loginFailed              // no decision, or no credential can be issued: an operator must act
)

// loginResults counts logins by result.
type loginResults [loginFailed + 1]atomic.Int64

func (r *loginResults) note(how loginResult) {
	if r != nil {
		r[how].Add(1)
	}
}

// NewLoginLimits returns LoginLimits that c enforces.
func NewLoginLimits(c *flowcontrol.Controller) *LoginLimits { return &LoginLimits{flowControl: c} }

// apply limits the logins that go to next, and the length of all bodies, which must not be YAML. It runs after
// authentication and authorization.
func (l *LoginLimits) apply(next http.Handler, group schema.GroupVersion, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		refuse := func(err error) { responsewriters.ErrorNegotiated(err, s, group, w, req) }
		if !cheaplyDecoded(req) {
			refuse(negotiation.NewUnsupportedMediaTypeError(
				[]string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}))
			return
		}
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		login := ok && info.IsResourceRequest && info.APIGroup == group.Group && info.Verb == "create" &&
			info.Resource == "tokencredentialrequests"
		what, most := "the request", int64(maxOtherBody)
		if login {
			what, most = "a TokenCredentialRequest", maxLoginBody
		}
		// Read the body before a seat is acquired: a slow client only blocks itself.
		if err := readBody(w, req, what, most); err != nil {
			refuse(err)
			return
		}
		if !login {
			next.ServeHTTP(w, req)
			return
		}
		permit, err := l.flowControl.Acquire(
			req.Context(), flowcontrol.Flow{Address: source(req)}, flowcontrol.Cost{Resource: flowcontrol.ServedLogin},
		)
		if _, full := errors.AsType[*flowcontrol.Full](err); full {
			l.noteRefusal(req)
			refuse(apierrors.NewTooManyRequests("too many logins at once, please try again", 1))
			return
		}
		if err == nil { // else the client has disconnected
			defer permit.Release()
			next.ServeHTTP(w, req)
		}
	})
}

// cheaplyDecoded is false for a YAML body: decoding takes more than a hundred times its length in memory, and no client
// sends one.
func cheaplyDecoded(req *http.Request) bool {
	if req.ContentLength == 0 || req.Header.Get("Content-Type") == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	return err == nil && (kind == runtime.ContentTypeJSON || kind == runtime.ContentTypeProtobuf)
}

// noteRefusal counts a refusal, and logs the first of a series.
func (l *LoginLimits) noteRefusal(req *http.Request) {
	l.refused.Add(1)
	now := time.Now().UnixNano()
	if last := l.lastRefused.Swap(now); time.Duration(now-last) > logInterval {
		usage := l.usage()
		klog.FromContext(req.Context()).Info("Refused logins: too many at once (not logged again while this continues)",
			"source", source(req), "running", usage.Taken, "waiting", usage.Waiting)
	}
}

func (l *LoginLimits) usage() flowcontrol.Usage {
	return l.flowControl.Usage()[flowcontrol.ServedLogin]
}

// source returns the network of the client that logs in. The API server, authenticated by its client certificate,
// appends the address of its own client; the addresses before it may be forged.
func source(req *http.Request) string {
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		if lines := req.Header.Values("X-Forwarded-For"); len(lines) > 0 {
			all := strings.Split(lines[len(lines)-1], ",")
			return listener.Network(strings.TrimSpace(all[len(all)-1]))
		}
	}
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		host = req.RemoteAddr
	}
	return listener.Network(host)
}

// readBody reads the whole body of a request, up to most bytes, and replaces it with a buffer. what names the request
// in errors.
func readBody(w http.ResponseWriter, req *http.Request, what string, most int64) error {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, most))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s exceeds %d bytes", what, most))
	case err != nil:
		return apierrors.NewBadRequest("reading the request body: " + bounded(err.Error()))
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return nil
}

var (
	loginsDesc = prometheus.NewDesc("pinniped_agent_logins",
		"TokenCredentialRequests to the Concierge APIs, by state: running or waiting.",
		[]string{"state"}, nil)
	loginsRefusedDesc = prometheus.NewDesc("pinniped_agent_logins_refused_total",
		"TokenCredentialRequests that got 429 from the Concierge APIs because of too many logins.", nil, nil)
	loginsEndedDesc = prometheus.NewDesc("pinniped_agent_logins_ended_total",
		"TokenCredentialRequests by result: done; refused, because the token, the user or the request is invalid; "+
			"failed, because an authenticator did not respond or no credential could be issued.",
		[]string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (l *LoginLimits) Describe(to chan<- *prometheus.Desc) {
	to <- loginsDesc
	to <- loginsRefusedDesc
	to <- loginsEndedDesc
}

// Collect implements prometheus.Collector.
func (l *LoginLimits) Collect(to chan<- prometheus.Metric) {
	usage := l.usage()
	to <- prometheus.MustNewConstMetric(loginsDesc, prometheus.GaugeValue, float64(usage.Taken), "running")
	to <- prometheus.MustNewConstMetric(loginsDesc, prometheus.GaugeValue, float64(usage.Waiting), "waiting")
	to <- prometheus.MustNewConstMetric(loginsRefusedDesc, prometheus.CounterValue, float64(l.refused.Load()))
	for how, result := range [...]string{"done", "refused", "failed"} {
		to <- prometheus.MustNewConstMetric(loginsEndedDesc, prometheus.CounterValue, float64(l.ended[how].Load()), result)
	}
}
