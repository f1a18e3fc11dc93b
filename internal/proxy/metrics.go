package proxy

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// Metrics is a prometheus.Collector for the proxy. One Metrics serves all Servers that an agent starts and stops, one
// after the other. No label names a user, an object or an address. docs/reference/metrics.md explains each metric.
type Metrics struct {
	requests, handshakes *prometheus.CounterVec
	added, upstream      prometheus.Histogram
	scraped              []scraped

	running atomic.Pointer[Server]
}

// knownVerbs are the values of the label verb, except "other": the Kubernetes verb, or the method for paths that are
// not resources.
var knownVerbs = strings.Fields(
	"get list watch create update patch delete deletecollection proxy head options post put",
)

// NewMetrics returns metrics with zero values.
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinniped_proxy_requests_total",
			Help: "Completed requests and streams, by verb and status code. " +
				`The code is "none" if the connection ended before a response.`,
		}, []string{"verb", "code"}),
		added: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pinniped_proxy_added_seconds",
			Help: "Time that the proxy added to each forwarded request before its response began. This is all time " +
				"outside the upstream round trip. Token and access reviews count as added time.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}),
		upstream: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pinniped_proxy_upstream_seconds",
			Help: "Time until the API server began responding to forwarded requests, except watches, logs and upgraded " +
				"connections.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinniped_proxy_tls_handshake_failures_total",
			Help: "Failed TLS handshakes of clients, by cause. A cause that begins with alert_ is an alert from the client's " +
				"TLS library.",
		}, []string{"cause"}),
		scraped: newScraped(),
	}
}

func (m *Metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.added, m.upstream, m.handshakes}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, one := range m.counted() {
		one.Describe(to)
	}
	for _, one := range m.scraped {
		to <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, one := range m.counted() {
		one.Collect(to)
	}
	if server := m.running.Load(); server != nil {
		for _, one := range m.scraped {
			one.read(server, func(value int64, labels ...string) {
				to <- prometheus.MustNewConstMetric(one.desc, one.kind, float64(value), labels...)
			})
		}
	}
}

// measure counts requests and measures how long they take.
func (m *Metrics) measure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := request.From(req.Context())
		state.Began = time.Now()
		returned := false
		defer func() {
			if state.Code == 0 && returned {
				state.Code = http.StatusOK // net/http's default
			}
			m.observe(state)
		}()
		next.ServeHTTP(&responseWriter{w, state}, req)
		returned = true
	})
}

func (m *Metrics) observe(state *request.State) {
	m.counter(state.Verb, state.Code).Inc()
	if state.Responded.IsZero() || state.ResponseBegan.IsZero() {
		return
	}
	m.added.Observe((state.Sent.Sub(state.Began) + state.ResponseBegan.Sub(state.Responded)).Seconds())
	if !state.IsStream() {
		m.upstream.Observe(state.Responded.Sub(state.Sent).Seconds())
	}
}

// counter returns the counter to increase. code is zero when the connection ended before a response.
func (m *Metrics) counter(verb string, code int) prometheus.Counter {
	if !slices.Contains(knownVerbs, verb) {
		verb = "other"
	}
	switch {
	case code == 0:
		return m.requests.WithLabelValues(verb, "none")
	case code < 0 || code > 599:
		code = http.StatusInternalServerError
	}
	return m.requests.WithLabelValues(verb, strconv.Itoa(code))
}

// responseWriter records the status and the start of the response. It then releases the pre-authentication seat of an
// unauthenticated client, which may be slow to read the response.
type responseWriter struct {
	http.ResponseWriter
	state *request.State
}

// Unwrap is for http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(code int) {
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		w.note(code)
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *responseWriter) Write(p []byte) (int, error) {
	w.note(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

func (w *responseWriter) note(code int) {
	if w.state.Code == 0 {
		w.state.Code, w.state.ResponseBegan = code, time.Now()
		w.state.Holds.PreAuthDone()
	}
}

// Hijack implements http.Hijacker. ReverseProxy hijacks the connection only for a protocol upgrade, and writes the 101
// itself.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.note(http.StatusSwitchingProtocols)
		w.state.Holds.Conn.Upgraded()
		w.state.Switched(conn)
	}
	return conn, buffered, err
}

// handshakeCauses names the errors of crypto/tls about failed handshakes, except alerts of the client. The first match
// counts.
var handshakeCauses = []struct{ text, cause string }{
	{"there is no serving certificate", "no_serving_certificate"},
	{"client offered only unsupported versions", "no_shared_version"},
	{"no cipher suite supported by both", "no_shared_cipher"},
	{"requested unsupported application protocols", "no_shared_protocol"},
	{"client sent an HTTP request to an HTTPS server", "not_tls"},
	{"first record does not look like a TLS handshake", "not_tls"},
	{"i/o timeout", "timeout"},
	{"EOF", "client_left"}, // for example the health check of a load balancer
	{"connection reset by peer", "client_left"},
}

// serverLog receives net/http's messages about connections. Any client can cause them, so they are logged only at
// higher levels. Failed handshakes are also counted by cause; net/http only has their text.
type serverLog struct {
	logger  klog.Logger
	metrics *Metrics
}

func (l serverLog) Write(p []byte) (int, error) {
	text := request.Bounded(strings.TrimSpace(string(p)))
	if about, ok := strings.CutPrefix(text, "http: TLS handshake error from "); ok {
		cause := handshakeCause(about)
		l.metrics.handshakes.WithLabelValues(cause).Inc()
		l.logger.V(2).Info("TLS handshake failed", "cause", cause, "reason", about)
		return len(p), nil
	}
	l.logger.V(4).Info("Client connection failed", "reason", text)
	return len(p), nil
}

// handshakeCause returns the cause in a text of the form "address: error". An alert has one of about thirty names, or a
// number.
func handshakeCause(text string) string {
	_, problem, _ := strings.Cut(text, ": ")
	if alert, ok := strings.CutPrefix(problem, "remote error: tls: "); ok {
		if strings.Contains(alert, "(") {
			alert = "other"
		}
		return "alert_" + strings.ReplaceAll(alert, " ", "_")
	}
	for _, known := range handshakeCauses {
		if strings.Contains(text, known.text) {
			return known.cause
		}
	}
	return "other"
}
