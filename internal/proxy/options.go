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

// Options is everything the proxy needs. Listener to Metrics are required; the rest may be left out.
type Options struct {
	// Listener is already listening. Run closes it.
	Listener net.Listener
	// ServingCertificate returns the certificate for one handshake, never nil without an error; an error ends that
	// handshake. Its result may change at any time. It is also called with an empty ClientHelloInfo to find out whether
	// there is a certificate at all.
	ServingCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// SignerCABundle returns the CA of the client certificates that this product issues, in PEM, nil when there is
	// none. It is asked with each request, and what it returned is never changed.
	SignerCABundle func() []byte
	// Agent is the agent's own identity: TokenReview, SubjectAccessReview and the ConfigMap
	// extension-apiserver-authentication.
	Agent *rest.Config
	// Upstream is the address and CA of the API server. Credentials in it are not used.
	Upstream *rest.Config
	// Token is the upstream credential.
	Token relay.TokenSource
	// GroupSuffix ends the API group in which TokenCredentialRequest stays open to anonymous users.
	GroupSuffix string
	// FlowControl bounds the memory and the work of clients.
	FlowControl *flowcontrol.Controller
	// Processors is how many the agent may use.
	Processors int
	// Metrics counts what the proxy does.
	Metrics *Metrics

	// AllowTTL and DenyTTL are how long a response of a SubjectAccessReview is used again: 10 s and 500 ms by default.
	AllowTTL, DenyTTL time.Duration
	// BodyTimeout is how long a client may take to send the body of a request that is not a stream, 60 s by default, as in
	// the API server.
	BodyTimeout time.Duration
	// WriteTimeout is how long a client may take to read 32 KiB of a response that is not a stream, 30 s by default.
	WriteTimeout time.Duration
	// DrainDelay is how long the proxy keeps serving, reporting not ready, after its context has ended: the time a load
	// balancer needs to notice. Zero by default.
	DrainDelay time.Duration
	// StreamGrace is how long watches and upgraded connections live on after DrainDelay, 5 s by default.
	StreamGrace time.Duration
	// DrainTimeout is how long ordinary requests have to finish after DrainDelay, 60 s by default.
	DrainTimeout time.Duration
	// ProbeInterval is how often the proxy asks again whether the API server admits anonymous users, 1 min by default.
	// It asks six times as often for the client CAs and front proxy settings.
	ProbeInterval time.Duration
	// Audit is the log of requests. Without it, requests are not logged.
	Audit *AuditLog
	// BearerTokens, if set, returns what authenticates bearer tokens in place of the cluster, which it is given and may
	// ask. An error whose method Unavailable() bool returns true results in 503, any other in 401.
	BearerTokens func(cluster authenticator.Token) authenticator.Token
	// TrustBundle returns the document with the CA bundle that verifies this proxy, nil while there is none. The proxy
	// serves it to all clients at trustbundle.Path. Without this function, requests for that path are treated like all
	// others.
	TrustBundle func() []byte
	// LoginInfo returns how people log in, nil while that is not configured. The proxy serves it to all clients, at
	// logininfo.Path and to browsers at "/".
	LoginInfo func() *logininfo.Offer

	// Used, if set, is called when a client uses the proxy: it has logged in, is authenticated, or fetched the trust bundle.
	// The name is the one by which it verified the certificate; it is empty where that is not known. It must be fast.
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
