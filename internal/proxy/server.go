package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pinniped-toolkit/pinniped/internal/logs"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/identity/clienttrust"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/listener"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/relay"
	"github.com/pinniped-toolkit/pinniped/internal/proxy/request"
	"github.com/pinniped-toolkit/pinniped/pkg/apis"
)

const (
	maxHeaderBytes    = 1 << 20 // as in the API server: names of many groups are long
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	writeTimeout      = 30 * time.Second // per write of 16 or 32 KiB, unless it fits into the client's buffers
	maxStreams        = 100              // per HTTP/2 connection, as in the API server; clients open more
	// A disconnected client is detected after the idle time and the ping time, 45 s in all.
	clientPingAfter = 30 * time.Second
	clientPingWait  = 15 * time.Second
	// The HTTP/2 receive windows of a stream and of a connection. Most request bodies fit. The client of a larger one
	// has to wait until the API server has read the first part.
	bodyWindow     = listener.MaxHeldBody
	connectionBody = 256 << 10
	// the smallest limit that HTTP/2 allows; an unauthenticated client's frame is read into memory
	maxFrame = 16 << 10
)

// Server is the impersonation proxy.
type Server struct {
	Options
	http      *http.Server
	drain     *drain
	trust     *clienttrust.Store
	anonymous *identity.Anonymous
	upstream  *relay.Upstream
	access    *identity.AccessReviewer
	tokens    *identity.TokenReviewer
	port      *listener.Port
	refused   *logs.Sampler // credentials
	failed    *logs.Sampler // requests that could not be forwarded

	serializer    runtime.NegotiatedSerializer
	authenticator authenticator.Request
	forward       http.Handler

	phase atomic.Int32
}

const (
	phaseNew int32 = iota
	phaseServing
	phaseDraining
)

// New returns a proxy that serves nothing before Run. It reads the cluster's client CAs and probes whether the API
// server admits anonymous users. It fails if it cannot, because a guess would admit too much or too little. Logs go to
// the logger in ctx.
func New(ctx context.Context, o Options) (*Server, error) {
	o.setDefaults()
	questions, err := newAgentClient(o.Agent)
	if err != nil {
		return nil, err
	}
	up, err := relay.NewUpstream(o.Upstream, o.Processors)
	if err != nil {
		return nil, err
	}
	loginGroup := apis.GroupsFor(o.GroupSuffix).Login.Group
	s := &Server{
		Options:    o,
		drain:      newDrain(),
		trust:      clienttrust.NewStore(o.SignerCABundle, questions.CoreV1(), o.Clock),
		anonymous:  identity.NewAnonymous(loginGroup, up.Address(), up),
		upstream:   up,
		port:       listener.New(o.FlowControl),
		serializer: request.NewSerializer(),
		refused:    logs.NewSampler("Refused credentials"),
		failed:     logs.NewSampler("Failed to forward request"),
	}
	if err := errors.Join(s.trust.Refresh(ctx), s.anonymous.Refresh(ctx)); err != nil {
		up.Close()
		return nil, err
	}
	reviews := identity.NewPostReview(questions.AuthenticationV1().RESTClient(), "tokenreviews")
	s.tokens = identity.NewTokenReviewer(reviews, o.FlowControl, o.Clock)
	var presented authenticator.Token = s.tokens
	if o.BearerTokens != nil {
		presented = o.BearerTokens(s.tokens)
	}
	reviews = identity.NewPostReview(questions.AuthorizationV1().RESTClient(), "subjectaccessreviews")
	s.access = identity.NewAccessReviewer(reviews, o.FlowControl, o.Clock, o.AllowTTL, o.DenyTTL)
	s.authenticator = identity.NewAuthenticator(s.trust, presented, s.anonymous, o.FlowControl, s.refused)
	s.forward = relay.NewHandler(relay.Options{
		Upstream: up, Token: o.Token, FlowControl: o.FlowControl, Failed: s.failed, Serializer: s.serializer,
	})
	said := serverLog{logger: klog.FromContext(ctx), metrics: o.Metrics}
	s.http = newHTTPServer(handler(s, loginGroup), tlsConfig(o.ServingCertificate, s.trust), said)
	return s, nil
}

// newAgentClient returns a client for many small requests: without client-side throttling, and in protobuf.
func newAgentClient(agent *rest.Config) (*kubernetes.Clientset, error) {
	config := rest.CopyConfig(agent)
	config.QPS = -1
	config.RateLimiter = nil
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for the agent: %w", err)
	}
	return client, nil
}

func newHTTPServer(handler http.Handler, config *tls.Config, said io.Writer) *http.Server {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          log.New(said, "", 0),
		Protocols:         new(http.Protocols),
		// Pass "OPTIONS *" through the filters like every other request.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerStream:     bodyWindow,
			MaxReceiveBufferPerConnection: connectionBody,
			WriteByteTimeout:              writeTimeout,    // for a client that reads no frames
			SendPingTimeout:               clientPingAfter, // ends the watches of a disconnected client
			PingTimeout:                   clientPingWait,
		},
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	return server
}

// Run serves until ctx ends, then drains: it reports not ready, keeps serving for DrainDelay, and sends GOAWAY;
// ordinary requests finish, streams end after StreamGrace. It returns nil if every request finished. It can be called
// once.
func (s *Server) Run(ctx context.Context) error {
	if !s.phase.CompareAndSwap(phaseNew, phaseServing) {
		return errors.New("the impersonation proxy already ran")
	}
	// Requests that finish after ctx has ended still need work.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer s.upstream.Close()
	go s.followAPIServer(work)

	s.Metrics.running.Store(s)
	defer s.Metrics.running.CompareAndSwap(s, nil)
	s.http.BaseContext = func(net.Listener) context.Context { return work }
	failed := make(chan error, 1)
	go func() { failed <- s.http.ServeTLS(s.port.Listen(s.Listener), "", "") }()
	logger := klog.FromContext(ctx)
	defer s.refused.Stop(logger)
	defer s.failed.Stop(logger)
	logger.Info("Started the impersonation proxy", "address", s.Listener.Addr().String())
	select {
	case err := <-failed:
		return s.broken(err)
	case <-ctx.Done():
	}
	s.phase.Store(phaseDraining)
	s.drain.leaving.Store(true)
	select {
	case err := <-failed:
		return s.broken(err)
	case <-s.Clock.After(s.DrainDelay):
	}
	return s.shutDown(work, logger)
}

// followAPIServer regularly refreshes the client CAs and the anonymous authentication policy. On an error, it keeps the
// last ones.
func (s *Server) followAPIServer(ctx context.Context) {
	turn, failed := 0, 0
	_ = wait.PollUntilContextCancel(ctx, s.ProbeInterval/6, false, func(ctx context.Context) (bool, error) {
		logger := klog.FromContext(ctx)
		err := s.trust.Refresh(ctx)
		if failed++; err == nil {
			failed = 0
		} else if failed%6 == 0 { // a restart of the API server is not an error
			logger.Error(err, "Failed to read the cluster's client CAs for a minute; kept the last known ones")
		}
		if turn++; turn%6 != 0 {
			return false, nil
		}
		if err := s.anonymous.Refresh(ctx); err != nil {
			logger.V(2).Info("Kept the last known anonymous authentication policy", "reason", err.Error())
		}
		return false, nil
	})
}

// broken closes all connections after the listener failed.
func (s *Server) broken(err error) error {
	s.phase.Store(phaseDraining)
	s.drain.endStreams()
	_ = s.http.Close()
	return fmt.Errorf("serving the impersonation proxy: %w", err)
}

func (s *Server) shutDown(ctx context.Context, logger klog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, s.DrainTimeout)
	defer cancel()
	streams := time.AfterFunc(s.StreamGrace, s.drain.endStreams)
	defer streams.Stop()
	err := s.http.Shutdown(ctx)
	if err == nil {
		err = s.drain.wait(ctx) // the server no longer tracks upgraded connections; they end after StreamGrace
	}
	if err != nil {
		s.drain.endStreams()
		_ = s.http.Close()
		return fmt.Errorf("draining the impersonation proxy: %w", err)
	}
	logger.Info("Drained the impersonation proxy")
	return nil
}

// Ready returns nil when the proxy serves. It returns an error when it is not running, has no serving certificate, or
// no credential for the API server. The availability of the API server is not checked, because it is the same for every
// replica.
func (s *Server) Ready() error {
	switch s.phase.Load() {
	case phaseNew:
		return errors.New("the impersonation proxy is not running yet")
	case phaseDraining:
		return request.ErrDraining
	}
	if _, err := s.ServingCertificate(&tls.ClientHelloInfo{}); err != nil {
		return fmt.Errorf("the impersonation proxy has no serving certificate: %w", err)
	}
	if _, err := s.Token.Token(); err != nil {
		return fmt.Errorf("the impersonation proxy has no upstream credential: %w", err)
	}
	return nil
}
