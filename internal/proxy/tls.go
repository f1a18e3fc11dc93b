package proxy

import (
	"crypto/tls"

	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
)

// tlsConfig returns the configuration for handshakes. Session resumption is off: the client would not be asked for its
// certificate again (CVE-2025-68121). Go's clients and kubectl do not resume sessions.
func tlsConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), trust *clienttrust.Store) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// For TLS 1.2 only; the suites of TLS 1.3 are not configurable.
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		// Without P-521 and P-384, which cost the proxy milliseconds, but next to nothing for a client that replays a
		// recorded ClientHello.
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256},
		NextProtos:       []string{"h2", "http/1.1"},
		// Requested, not required, and verified by the filters: a client may have a token instead.
		ClientAuth:             tls.RequestClientCert,
		GetCertificate:         certificate,
		SessionTicketsDisabled: true,
	}
	config := base.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		config := base.Clone()
		config.ClientCAs = trust.Current().Named
		if conn := listener.Below(hello.Conn); conn != nil {
			conn.Shaking(hello.Context().Done())
			config.VerifyConnection = func(state tls.ConnectionState) error {
				// The certificate was verified before and is still valid.
				known, ok, err := trust.Current().Users.Known(state.PeerCertificates)
				if err == nil && ok && !request.IsAnonymous(known.User) {
					conn.Claim(known.User.GetName())
				}
				return nil
			}
		}
		return config, nil
	}
	return config
}
