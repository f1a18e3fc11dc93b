// Package localuser is the local-user-authenticator: a TokenReview webhook whose users are the Secrets of one
// namespace. It is an identity provider for demonstrations and tests, not for production.
//
// A user is a Secret with the key passwordHash (bcrypt) and, optionally, groups (one line of comma-separated names);
// the Secret's name is the username. The token of a user is "username:password". Run serves the webhook at POST
// /authenticate over TLS 1.3 with a certificate that it issues and renews itself, and keeps in the Secret
// ServingSecretName together with its CA.
//
// Anyone who reaches the port may ask, and learns only whether a username and a password match. The number of comparisons
// at a time is bounded. A user who may write Secrets in the namespace decides who the users are, but cannot give a user or
// a group a name that begins with "system:".
//
// There is no health endpoint: every path but /authenticate gets 404, as clients of this protocol expect. The port is
// opened when the users have been read and the certificate exists, so a TCP probe of the port reports readiness.
package localuser

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// shutdownPatience is how long requests that are being answered may take after Run was told to stop.
const shutdownPatience = 10 * time.Second

// Run serves the webhook until ctx is done, then finishes the requests it has and returns nil. It waits for an API
// server that is away; it returns an error when the options make no sense or the port cannot be opened.
func Run(ctx context.Context, options Options) error {
	o, err := options.complete()
	if err != nil {
		return fmt.Errorf("checking the options: %w", err)
	}
	if o.Listener != nil {
		defer o.Listener.Close() //nolint:errcheck // nothing is left to lose
	}
	client, err := corev1client.NewForConfig(o.RestConfig)
	if err != nil {
		return fmt.Errorf("configuring the Kubernetes client: %w", err)
	}
	logger := klog.FromContext(ctx)
	users := &directory{log: logger}
	verify, err := newVerifier(users, max(1, goruntime.GOMAXPROCS(0)/2))
	if err != nil {
		return err
	}
	secrets := client.Secrets(o.Namespace)
	informer := newInformer(secrets)
	serving := newServingCertificate(o, lastSeen(informer.GetStore(), o.Namespace), secrets, logger)
	registration, err := informer.AddEventHandler(follow(users, serving))
	if err != nil {
		return fmt.Errorf("following the Secrets: %w", err)
	}

	// The background work ends with Run, whatever makes Run end.
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { informer.RunWithContext(ctx) })

	logger.Info("Waiting for users and serving certificate", "namespace", o.Namespace)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return nil
	}
	background.Go(func() { serving.run(ctx) })
	select {
	case <-ctx.Done():
		return nil
	case <-serving.ready:
	}
	return serve(ctx, o, serving, &webhook{verifier: verify, log: logger}, logger)
}

// newInformer follows all Secrets of the namespace that secrets is for.
func newInformer(secrets corev1client.SecretInterface) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return secrets.List(ctx, options)
		},
		WatchFuncWithContext: secrets.Watch,
	}, secrets), &corev1.Secret{}, 0, cache.Indexers{})
}

// lastSeen reads the serving certificate's Secret out of what the informer knows.
func lastSeen(store cache.Store, namespace string) func() *corev1.Secret {
	return func() *corev1.Secret {
		item, found, err := store.GetByKey(namespace + "/" + ServingSecretName)
		if secret, ok := item.(*corev1.Secret); ok && found && err == nil {
			return secret
		}
		return nil
	}
}

// follow hands changes on: those of the serving certificate's Secret to serving, all others to users.
func follow(users *directory, serving *servingCertificate) cache.ResourceEventHandler {
	set := func(item any) {
		secret, ok := item.(*corev1.Secret)
		switch {
		case !ok:
		case secret.Name == ServingSecretName:
			serving.notify()
		default:
			users.set(secret)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, item any) { set(item) },
		DeleteFunc: func(item any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(item)
			if err != nil {
				return
			}
			_, name, err := cache.SplitMetaNamespaceKey(key)
			switch {
			case err != nil:
			case name == ServingSecretName:
				serving.notify()
			default:
				users.remove(name)
			}
		},
	}
}

// serve answers until ctx is done.
func serve(
	ctx context.Context,
	o *completed,
	serving *servingCertificate,
	handler http.Handler,
	logger logr.Logger,
) error {
	listener := o.Listener
	if listener == nil {
		var err error
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address); err != nil {
			return fmt.Errorf("opening the webhook's port: %w", err)
		}
	}
	server := newServer(serving, handler, logger)
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

func newServer(serving *servingCertificate, handler http.Handler, logger logr.Logger) *http.Server {
	return &http.Server{
		Handler: handler,
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS13,
			GetCertificate: serving.get,
		},
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    32 << 10,
		// Probes that only open a connection are reported here again and again.
		ErrorLog: log.New(errorLog{logger}, "", 0),
	}
}

// errorLog passes what net/http reports on to our log, quietly.
type errorLog struct{ log logr.Logger }

func (w errorLog) Write(line []byte) (int, error) {
	w.log.V(4).Info("Connection failed", "reason", strings.TrimSpace(string(line)))
	return len(line), nil
}
