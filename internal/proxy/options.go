package proxy

import (
	"cmp"
	"crypto/tls"
	"net"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/pinniped-toolkit/pinniped/internal/logininfo"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/flowcontrol"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
)

// Options configures the proxy. Listener to Metrics are required; the rest is optional.
type Options struct {
	// Listener is already listening. Run closes it.
	Listener net.Listener
	// ServingCertificate returns the certificate for one handshake; an error ends that handshake. The result is never
	// nil without an error, and may change at any time. An empty ClientHelloInfo asks whether there is a certificate at
	// all.
	ServingCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// SignerCABundle returns the CA of the client certificates that pinniped issues, in PEM, or nil when there is none.
	// It is called for each request; its result must not be changed.
	SignerCABundle func() []byte
	// Agent is the agent's own identity. It sends TokenReviews and SubjectAccessReviews, and reads the ConfigMap
	// extension-apiserver-authentication.
	Agent *rest.Config
	// Upstream is the address and CA of the API server. Its credentials are not used.
	Upstream *rest.Config
	// Token is the upstream credential.
	Token relay.TokenSource
	// GroupSuffix is the suffix of the API group in which TokenCredentialRequest is open to anonymous users.
	GroupSuffix string
	// FlowControl limits the memory and the work of clients.
	FlowControl *flowcontrol.Controller
	// Processors is how many processors the agent may use.
	Processors int
	// Metrics are the metrics of the proxy.
	Metrics *Metrics

	// AllowTTL and DenyTTL are how long the result of a SubjectAccessReview is cached, by default 10 s and 500 ms.
	AllowTTL, DenyTTL time.Duration
	// BodyTimeout is how long a client may take to send the body of a request that is not a stream, by default 60 s, as
	// in the API server.
	BodyTimeout time.Duration
	// WriteTimeout is how long a client may take to read 32 KiB of a response that is not a stream, by default 30 s.
	WriteTimeout time.Duration
	// DrainDelay is how long the proxy reports not ready but keeps serving after its context has ended, so that load
	// balancers notice. By default zero.
	DrainDelay time.Duration
	// StreamGrace is how long after DrainDelay watches and upgraded connections are ended, by default 5 s.
	StreamGrace time.Duration
	// DrainTimeout is how long after DrainDelay ordinary requests must finish, by default 60 s.
	DrainTimeout time.Duration
	// ProbeInterval is how often the proxy checks whether the API server admits anonymous users, by default 1 min. It
	// reads the client CAs and front proxy settings six times as often.
	ProbeInterval time.Duration
	// Audit is the audit log, nil for none.
	Audit *AuditLog
	// BearerTokens, if set, returns the authenticator of bearer tokens. It gets the cluster's own authenticator, which
	// it may call. An error whose method Unavailable() bool returns true results in 503, any other in 401.
	BearerTokens func(cluster authenticator.Token) authenticator.Token
	// TrustBundle returns the document with the CA bundle that verifies this proxy, or nil while there is none. The
	// proxy serves it to all clients at trustbundle.Path. Without this function, that path is not special.
	TrustBundle func() []byte
	// LoginInfo returns how users log in, or nil while that is not configured. The proxy serves it to all clients at
	// logininfo.Path, and to browsers at "/".
	LoginInfo func() *logininfo.Offer

	// Used, if set, is called when a client uses the proxy: it logs in, is authenticated, or fetches the trust bundle
	// or the login information. name is the server name with which it verified the certificate, or empty if unknown. It
	// must be fast.
	Used func(name string)
	// Clock is the real clock by default.
	Clock clock.WithTicker
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.AllowTTL = cmp.Or(o.AllowTTL, 10*time.Second)
	o.DenyTTL = cmp.Or(o.DenyTTL, 500*time.Millisecond)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, writeTimeout)
	o.StreamGrace = cmp.Or(o.StreamGrace, 5*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, time.Minute)
	o.ProbeInterval = cmp.Or(o.ProbeInterval, time.Minute)
}
