package proxy

import (
	"strings"

	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// handshakeCauses gives names to the errors of crypto/tls about failed handshakes. The first match counts. Unknown
// errors are "other".
var handshakeCauses = []struct{ text, cause string }{
	// What the client did not accept.
	{"remote error: tls: unknown certificate authority", "alert_unknown_ca"},
	{"remote error: tls: bad certificate", "alert_bad_certificate"},
	{"remote error: tls: expired certificate", "alert_certificate_expired"},
	{"remote error: tls: revoked certificate", "alert_certificate_revoked"},
	{"remote error: tls: unsupported certificate", "alert_unsupported_certificate"},
	{"remote error: tls: unknown certificate", "alert_certificate_unknown"},
	{"remote error: tls: protocol version", "alert_protocol_version"},
	{"remote error: tls: handshake failure", "alert_handshake_failure"},
	{"remote error: tls: user canceled", "alert_user_canceled"},
	{"remote error: tls:", "alert_other"},
	// What we did not accept.
	{"there is no serving certificate", "no_serving_certificate"},
	{"client offered only unsupported versions", "no_shared_version"},
	{"no cipher suite supported by both", "no_shared_cipher"},
	{"requested unsupported application protocols", "no_shared_protocol"},
	{"client sent an HTTP request to an HTTPS server", "not_tls"},
	{"first record does not look like a TLS handshake", "not_tls"},
	{"oversized record", "not_tls"},
	// What happened on the way.
	{"i/o timeout", "timeout"},
	{"EOF", "client_left"}, // what health checks of load balancers that only connect look like
	{"connection reset by peer", "client_left"},
	{"broken pipe", "client_left"},
}

const handshakePrefix = "http: TLS handshake error from "

// serverLog gets the messages of net/http about connections. Any client can cause them, so they are logged only at
// higher levels. Failed handshakes are counted as well, by cause. net/http gives their errors as text only.
type serverLog struct {
	logger  klog.Logger
	metrics *Metrics
}

func (l serverLog) Write(p []byte) (int, error) {
	text := request.Bounded(strings.TrimSpace(string(p)))
	if about, ok := strings.CutPrefix(text, handshakePrefix); ok {
		cause := handshakeCause(about)
		l.metrics.handshakes.WithLabelValues(cause).Inc()
		l.logger.V(2).Info("Could not agree on TLS with a client", "cause", cause, "reason", about)
		return len(p), nil
	}
	l.logger.V(4).Info("Served a connection badly", "reason", text)
	return len(p), nil
}

func handshakeCause(text string) string {
	for _, known := range handshakeCauses {
		if strings.Contains(text, known.text) {
			return known.cause
		}
	}
	return "other"
}
