package proxy

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is what the proxy measures about itself: a prometheus.Collector. One Metrics serves all Servers that an
// agent starts and stops, one after the other. No label names a user, an object or an address. Each metric is
// explained by its help text, and in docs/reference/metrics.md.
type Metrics struct {
	requests *prometheus.CounterVec
	// known are the counters of requests that have been used before. It saves the look-up by name.
	known           [len(knownVerbs)][maxCode + 1]atomic.Pointer[prometheus.Counter]
	added, upstream prometheus.Histogram
	handshakes      *prometheus.CounterVec
	sizes           sizes

	running atomic.Pointer[Server]
}

// knownVerbs are the values of the label verb: what the API server calls it, for paths that are no resource the method.
var knownVerbs = [...]string{
	"get",
	"list",
	"watch",
	"create",
	"update",
	"patch",
	"delete",
	"deletecollection",
	"proxy",
	"head",
	"options",
	"post",
	"put",
	"other",
}

const (
	maxCode = 599
	// codeNone stands for a connection that was broken off before an answer.
	codeNone = 0
)

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinniped_proxy_requests_total",
			Help: `Requests that ended, streams included, by verb and by status code; "none" when the connection was broken off before an answer.`,
		}, []string{"verb", "code"}),
		added: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pinniped_proxy_added_seconds",
			Help: "What the proxy added to the time until the answer began, for each request that was forwarded: all time " +
				"outside the upstream " +
				"round trip, token and access reviews included.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}),
		upstream: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pinniped_proxy_upstream_seconds",
			Help: "How long the API server took until its answer to a forwarded request began; watches, logs and upgraded " +
				"connections are left out.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinniped_proxy_tls_handshake_failures_total",
			Help: "TLS handshakes of clients that failed, by cause: alert_* is what the client's TLS library objected to.",
		}, []string{"cause"}),
		sizes: newSizes(),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.requests.Describe(to)
	m.added.Describe(to)
	m.upstream.Describe(to)
	m.handshakes.Describe(to)
	m.sizes.describe(to)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.requests.Collect(to)
	m.added.Collect(to)
	m.upstream.Collect(to)
	m.handshakes.Collect(to)
	if server := m.running.Load(); server != nil {
		m.sizes.collect(server, to)
	}
}

// measure counts requests and measures how long they take.
func (m *Metrics) measure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		state := stateFrom(req.Context())
		measured := &state.measured
		measured.began = time.Now()
		measured.answer.ResponseWriter = w
		returned := false
		defer func() {
			if measured.answer.code == codeNone && returned {
				measured.answer.code = http.StatusOK // what net/http makes of a handler that says nothing
			}
			m.observe(state, state.LongRunning || state.Upgrade != "")
		}()
		next.ServeHTTP(&measured.answer, req)
		returned = true
	})
}

// measurement holds the measured values of one request.
type measurement struct {
	verb   string
	answer answerWriter
	began  time.Time // when the request came
}

func (m *Metrics) observe(state *requestState, stream bool) {
	one := &state.measured
	m.counter(one.verb, one.answer.code).Inc()
	if state.Answered.IsZero() || one.answer.at.IsZero() {
		return
	}
	m.added.Observe((state.Sent.Sub(one.began) + one.answer.at.Sub(state.Answered)).Seconds())
	if !stream {
		m.upstream.Observe(state.Answered.Sub(state.Sent).Seconds())
	}
}

func (m *Metrics) counter(verb string, code int) prometheus.Counter {
	if code < codeNone || code > maxCode {
		code = http.StatusInternalServerError
	}
	row := verbIndex(verb)
	known := &m.known[row][code]
	if counter := known.Load(); counter != nil {
		return *counter
	}
	label := "none"
	if code != codeNone {
		label = strconv.Itoa(code)
	}
	counter := m.requests.WithLabelValues(knownVerbs[row], label)
	known.Store(&counter)
	return counter
}

func verbIndex(verb string) int {
	for i, known := range knownVerbs {
		if verb == known {
			return i
		}
	}
	return len(knownVerbs) - 1
}

// answerWriter notes what the client is answered, and when.
type answerWriter struct {
	http.ResponseWriter
	code int
	at   time.Time
	// before is called before the answer begins; it may be nil.
	before func(code int)
}

// Unwrap lets http.ResponseController find what the wrapped writer can do.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *answerWriter) WriteHeader(code int) {
	if code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		w.note(code)
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *answerWriter) Write(p []byte) (int, error) {
	w.note(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

func (w *answerWriter) note(code int) {
	if w.code == codeNone {
		w.code, w.at = code, time.Now()
		if w.before != nil {
			w.before(code)
		}
	}
}

// Hijack implements http.Hijacker. ReverseProxy takes the connection over only to switch protocols, and writes the
// 101 itself.
func (w *answerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.note(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}
