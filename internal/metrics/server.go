// Package metrics serves the metrics of this process, and optionally its profiles, over plain HTTP on a separate port.
//
// A scraper needs no credentials, so by default the port is on the loopback address, and no metric names a user, an
// object or a secret. Profiles reveal more: they are off by default, and if they are on, only clients on the same
// machine (or in the same pod) may read them, unless that is configured, too.
package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" // it also registers with http.DefaultServeMux, which is not served
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// Profiling determines which clients may read the profiles (pprof) of the process.
type Profiling string

// The values of Profiling.
const (
	ProfilingDisabled Profiling = "disabled" // no client
	ProfilingLocal    Profiling = "local"    // clients that connect from a loopback address, such as kubectl port-forward
	ProfilingAnyone   Profiling = "anyone"   // every client that reaches the port
)

// AddressOff is the Address with which no metrics are served.
const AddressOff = "off"

const (
	listenAgain     = 10 * time.Second // after the port could not be opened
	shutdownTimeout = time.Second
	readTimeout     = 10 * time.Second
	scrapeTimeout   = 10 * time.Second // to read metrics
	profileTimeout  = 10 * time.Minute // to create and read a profile
	maxHeaderBytes  = 16 << 10
	maxScrapes      = 4 // concurrent ones
	// maxConnections is the number of open connections. Others wait, so that they do not use up the memory for users.
	maxConnections = 64
)

// Server serves /metrics, and /debug/pprof/ for the clients of Profiling. Set its fields before Run.
type Server struct {
	// Address is the host:port to listen on, or AddressOff.
	Address   string
	Gatherer  prometheus.Gatherer
	Profiling Profiling

	// listening, if set, is called with the address of the server.
	listening func(net.Addr)
}

// Run serves until ctx ends. If the port is in use, it logs that and retries; the agent runs without metrics meanwhile.
func (s *Server) Run(ctx context.Context) {
	if s.Address == AddressOff {
		return
	}
	logger := logr.FromContextOrDiscard(ctx)
	lastError := ""
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if err == nil {
			return
		}
		if text := err.Error(); text != lastError {
			lastError = text
			logger.Error(err, "Failed to serve metrics", "retryAfter", listenAgain.String())
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

func (s *Server) serve(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listening for metrics: %w", err)
	}
	logger := logr.FromContextOrDiscard(ctx)
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       2 * time.Minute, // longer than the usual scrape interval
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(logger.V(4)), slog.LevelInfo),
	}
	stop := context.AfterFunc(ctx, func() {
		shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(shutdown) != nil {
			_ = server.Close() // a long profile may be running
		}
	})
	defer stop()
	logger.Info("Started serving metrics", "address", listener.Addr().String(), "profiling", string(s.Profiling))
	if s.listening != nil {
		s.listening(listener.Addr())
	}
	if err := server.Serve(netutil.LimitListener(listener, maxConnections)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}

// Handler returns the handler of the server.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", within(scrapeTimeout, promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes,
		ErrorHandling:       promhttp.ContinueOnError, // one collector's failure must not hide the other metrics
	})))
	if s.Profiling != ProfilingLocal && s.Profiling != ProfilingAnyone {
		return mux
	}
	for pattern, handler := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index,
		"GET /debug/pprof/cmdline": pprof.Cmdline,
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		mux.Handle(pattern, within(profileTimeout, s.admit(handler)))
	}
	return mux
}

// within limits how long writing a response may take: slow clients must not block the few concurrent responses.
func within(timeout time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			http.Error(w, "the response cannot have a deadline", http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// admit refuses profiles to clients on other machines, unless Profiling permits all clients.
func (s *Server) admit(next http.Handler) http.Handler {
	if s.Profiling == ProfilingAnyone {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if from, err := netip.ParseAddrPort(req.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "profiles are for clients on the same machine", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, req)
	})
}
