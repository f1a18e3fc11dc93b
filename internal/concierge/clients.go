package concierge

import (
	"crypto/x509"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
)

// frontProxy is the only authenticated client of this port. It forwards the requests of all users.
const frontProxy = "front proxy"

// onlyFrontProxy is the outermost filter. It passes requests of the front proxy, which presents its client certificate
// in the handshake. An unauthenticated client may send the kubelet's probes, one at a time. Any other request ends the
// connection: neither its body nor its credential is read. The response has no body, so that a slow client does not
// block the handler.
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

// tooMany refuses a request for which there is no memory.
func tooMany(w http.ResponseWriter, _ *http.Request, _ error) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusTooManyRequests)
}

// isProbe reports whether an unauthenticated client may send the request.
func isProbe(req *http.Request) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodHead || req.ContentLength != 0 {
		return false
	}
	return slices.Contains(probePaths(), req.URL.Path)
}

func probePaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

var (
	clientsDesc = prometheus.NewDesc("pinniped_agent_api_connections",
		"Open connections to the Concierge APIs, by client: authenticated or not.",
		[]string{"client"}, nil)
	clientsEvictedDesc = prometheus.NewDesc("pinniped_agent_api_connections_evicted_total",
		"Evicted connections of unauthenticated clients to the Concierge APIs.",
		nil, nil)
)

// ClientMetrics reports the connections at the port of the Concierge APIs.
type ClientMetrics struct{ Port *listener.Port }

// Describe implements prometheus.Collector.
func (ClientMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- clientsDesc
	to <- clientsEvictedDesc
}

// Collect implements prometheus.Collector.
func (m ClientMetrics) Collect(to chan<- prometheus.Metric) {
	open, unauthenticated := m.Port.Open(), m.Port.Unauthenticated()
	to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(open-unauthenticated), "authenticated")
	to <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(unauthenticated), "unauthenticated")
	to <- prometheus.MustNewConstMetric(clientsEvictedDesc, prometheus.CounterValue, float64(m.Port.Evicted()))
}
