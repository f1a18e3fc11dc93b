package concierge

import (
	"crypto/x509"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
)

// frontProxy is the one user of this port: it speaks for all others.
const frontProxy = "front proxy"

// onlyFrontProxy stands before all others. Only the front proxy, which speaks for users, gets to what is behind it: it
// has shown its certificate in the handshake. An unauthenticated client may send the probes of the kubelet, one at a
// time. Anything else ends the connection: nothing is read of a body, and no credential is looked at. The response has
// no body either, as a client that does not read it would hold up the handler.
func onlyFrontProxy(next http.Handler, isFrontProxy func(*x509.Certificate) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		holds := listener.From(req.Context())
		known := holds.Flow().User == frontProxy
		if !known && req.TLS != nil && len(req.TLS.PeerCertificates) > 0 && isFrontProxy(req.TLS.PeerCertificates[0]) {
			if err := holds.Identified(frontProxy, false); err != nil {
				tooMany(w, req, err)
				return
			}
			known = true
		}
		if known {
			next.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Connection", "close")
		switch {
		case !isProbe(req):
			w.WriteHeader(http.StatusForbidden)
		case holds.Others():
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// tooMany answers a request for which there is no memory.
func tooMany(w http.ResponseWriter, _ *http.Request, _ error) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusTooManyRequests)
}

// isProbe is true for what anybody may ask.
func isProbe(req *http.Request) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodHead || req.ContentLength != 0 {
		return false
	}
	return slices.Contains(probePaths(), req.URL.Path)
}

// probePaths are where the kubelet asks.
func probePaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

var (
	clientsDesc = prometheus.NewDesc("pinniped_agent_api_connections",
		"Open connections at the port of the Concierge APIs, by whether a request of a known client was served on it.",
		[]string{"client"}, nil)
	clientsEvictedDesc = prometheus.NewDesc("pinniped_agent_api_connections_evicted_total",
		"Connections at the port of the Concierge APIs that were closed because clients that are not known hold too much.",
		nil, nil)
)

// ClientMetrics are about the connections at the port of the Concierge APIs.
type ClientMetrics struct{ Edge *listener.Port }

// Describe implements prometheus.Collector.
func (ClientMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- clientsDesc
	to <- clientsEvictedDesc
}

// Collect implements prometheus.Collector.
func (m ClientMetrics) Collect(to chan<- prometheus.Metric) {
	open, strangers := m.Edge.Open(), m.Edge.Unauthenticated()
	to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(open-strangers), "known")
	to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(strangers), "unknown")
	to <- prometheus.MustNewConstMetric(clientsEvictedDesc, prometheus.CounterValue, float64(m.Edge.Evicted()))
}
