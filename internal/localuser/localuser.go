// Package localuser is the local-user-authenticator: a TokenReview webhook whose users are the Secrets of one
// namespace. It is an identity provider for demonstrations and tests, not for production.
//
// A user is a Secret with the key passwordHash (bcrypt) and, optionally, groups (one line of comma-separated names);
// the Secret's name is the username. The token of a user is "username:password". Run serves the webhook at POST
// /authenticate over TLS 1.3 with a certificate that it issues and renews itself, and stores in the Secret
// ServingSecretName together with its CA.
//
// Anyone who reaches the port may send a TokenReview, and only learns whether a username and a password match. The
// number of concurrent password comparisons is limited. A user who may write Secrets in the namespace can define users,
// but none with a group that begins with "system:".
//
// There is no health endpoint: every path but /authenticate gets 404, as clients of this protocol expect. The port is
// opened when the users have been read and the certificate exists, so a TCP probe of the port reports readiness.
package localuser

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	goruntime "runtime"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// Name is the name of the webhook's Service and of its other objects.
	Name = "local-user-authenticator"
	// DefaultNamespace is the namespace of the manifests.
	DefaultNamespace = Name
	// ServingSecretName is the name of the Secret with the serving certificate and its CA.
	ServingSecretName = Name + "-tls-serving-certificate"

	defaultAddress = ":8443"
	// shutdownPatience is how long requests may take after ctx has ended.
	shutdownPatience = 10 * time.Second
)

// Options configures Run.
type Options struct {
	// RestConfig is for the cluster whose Secrets are the users.
	RestConfig *rest.Config
	// Namespace is the namespace of the users and of the serving certificate's Secret.
	Namespace string
	// Address is the host:port to listen on; the default is port 8443 of all addresses.
	Address string
	// ServingNames are DNS names and IP addresses of the serving certificate, in addition to those of the Service.
	ServingNames []string
}

// Run serves the webhook until ctx ends, then finishes pending requests and returns nil. It fails if a serving name is
// invalid, the port cannot be opened, or the API server is unavailable for minutes at the start.
func Run(ctx context.Context, o Options) error {
	names, err := servingNames(o.Namespace, o.ServingNames)
	if err != nil {
		return err
	}
	client, err := corev1client.NewForConfig(o.RestConfig)
	if err != nil {
		return fmt.Errorf("configuring the Kubernetes client: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("setting up the Secrets' type: %w", err)
	}
	logger := logr.FromContextOrDiscard(ctx)
	m, err := ctrl.NewManager(o.RestConfig, ctrl.Options{
		Scheme: scheme, Logger: logger,
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{o.Namespace: {}}},
	})
	if err != nil {
		return fmt.Errorf("configuring the Kubernetes client: %w", err)
	}
	certificate := newServingCertificate(names, o.Namespace, m.GetCache(), client.Secrets(o.Namespace))
	if err := certificate.setUp(m); err != nil {
		return fmt.Errorf("watching the serving certificate: %w", err)
	}
	handler, err := newWebhook(m.GetCache(), o.Namespace, max(1, goruntime.GOMAXPROCS(0)/2), logger)
	if err != nil {
		return err
	}
	if err := m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return serve(ctx, cmp.Or(o.Address, defaultAddress), certificate, handler, logger)
	})); err != nil {
		return fmt.Errorf("adding the webhook: %w", err)
	}
	logger.Info("Waiting for users and serving certificate", "namespace", o.Namespace)
	return m.Start(ctx)
}

// serve opens the port when there is a certificate, and serves until ctx ends.
func serve(
	ctx context.Context, address string, certificate *servingCertificate, handler http.Handler, logger logr.Logger,
) error {
	select {
	case <-ctx.Done():
		return nil
	case <-certificate.ready:
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("opening the webhook's port: %w", err)
	}
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate.get},
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    32 << 10,
		// At a high verbosity, because probes that only open a connection are logged here.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(logger.V(4)), slog.LevelInfo),
	}
	logger.Info("Serving webhook", "address", listener.Addr().String(), "path", authenticatePath)
	stopped := make(chan error, 1)
	go func() { stopped <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-stopped:
		return fmt.Errorf("serving the webhook: %w", err)
	case <-ctx.Done():
	}
	logger.Info("Stopping webhook")
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPatience)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		return errors.Join(fmt.Errorf("waiting for the last requests: %w", err), server.Close())
	}
	return nil
}
