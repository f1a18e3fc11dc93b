package concierge

import (
	"context"
	"crypto/x509"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

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

// keepFrontProxyConnection keeps the front proxy's HTTP/2 connections open. Against abuse, the API server library
// closes a connection after an anonymous request. The front proxy sends the requests of many users over one connection,
// including anonymous ones; closing it would fail the others. The front proxy is identified by its client certificate.
// A client with an invalid certificate gets 401, and its connection is closed.
func keepFrontProxyConnection(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		keep := &keepOpen{ResponseWriter: w}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(keep), r)
		keep.settle(http.StatusOK)
	})
}

type keepOpen struct {
	http.ResponseWriter
	settled bool
}

var _ responsewriter.UserProvidedDecorator = (*keepOpen)(nil)

func (k *keepOpen) Unwrap() http.ResponseWriter { return k.ResponseWriter }

func (k *keepOpen) WriteHeader(status int) {
	k.settle(status)
	k.ResponseWriter.WriteHeader(status)
}

func (k *keepOpen) Write(data []byte) (int, error) {
	k.settle(http.StatusOK) // the status that Write implies
	return k.ResponseWriter.Write(data)
}

// settle decides once, when the status is known and the header is not sent yet.
func (k *keepOpen) settle(status int) {
	if k.settled || status < http.StatusOK { // 1xx precede the final status
		return
	}
	k.settled = true
	if status != http.StatusUnauthorized {
		k.Header().Del("Connection")
	}
}

type sourceIPsKey struct{}

// withSourceIPs stores the source addresses of a request for the audit log: those that proxies report, then the peer.
func withSourceIPs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var addresses []string
		for _, ip := range utilnet.SourceIPs(r) {
			addresses = append(addresses, ip.String())
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceIPsKey{}, addresses)))
	})
}

func sourceIPs(ctx context.Context) []string {
	addresses, _ := ctx.Value(sourceIPsKey{}).([]string)
	return addresses
}

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
