package signer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	// clusterInFlight is the maximum number of concurrent requests. Each needs about five API calls.
	clusterInFlight = 8
	// clusterTimeout is how long the signer may take. A login that times out can still use another strategy.
	clusterTimeout = 10 * time.Second
	// A working signer is tested every testInterval; a failing one with exponential backoff from firstRetry.
	testInterval = 5 * time.Minute
	firstRetry   = 5 * time.Second
)

// ErrNotTested is returned before the first self-test of the cluster's signer has finished.
var ErrNotTested = errors.New("the cluster's signer is not tested yet")

// Cluster issues client certificates with the cluster's own signer, kubernetes.io/kube-apiserver-client. The API server
// accepts them directly, without an impersonation proxy. Cluster needs neither the cluster's signing key nor a pod on a
// control-plane node: it creates and approves CertificateSigningRequests. Use NewCluster.
type Cluster struct {
	options  ClusterOptions
	config   *rest.Config
	requests requester
	core     corev1client.ConfigMapsGetter

	slots chan struct{} // one for each certificate being issued
	test  chan struct{} // triggers a self-test
	state atomic.Pointer[ClusterState]
	keys  keyStock
}

// ClusterOptions are the options of NewCluster.
type ClusterOptions struct {
	// Agent is how the agent reaches the API server.
	Agent *rest.Config
	// Server, if set, replaces the API server URL for clients from ConfigMap cluster-info.
	Server string
	// Labels are set on the CertificateSigningRequests.
	Labels map[string]string
	// Changed, if set, is called when State changes.
	Changed func()
	// Timeout and FirstRetry default to ten seconds and five seconds.
	Timeout, FirstRetry time.Duration
}

// ClusterState is the state of the cluster's signer. It is immutable.
type ClusterState struct {
	// Tested is false until the first self-test has finished.
	Tested bool
	// Err says why the signer is unusable; nil if it works.
	Err error
	// Server and CABundle (PEM) are how clients reach the API server. InfoErr says why they are unknown.
	Server   string
	CABundle []byte
	InfoErr  error
}

func (s ClusterState) equal(other ClusterState) bool {
	same := func(a, b error) bool { return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error() }
	return s.Tested == other.Tested && same(s.Err, other.Err) && same(s.InfoErr, other.InfoErr) &&
		s.Server == other.Server && string(s.CABundle) == string(other.CABundle)
}

// NewCluster returns a Cluster. It issues nothing until Run has tested the signer.
func NewCluster(options ClusterOptions) (*Cluster, error) {
	options.Timeout = cmp.Or(options.Timeout, clusterTimeout)
	options.FirstRetry = cmp.Or(options.FirstRetry, firstRetry)
	if options.Changed == nil {
		options.Changed = func() {}
	}
	config := rest.CopyConfig(options.Agent)
	config.QPS = -1 // slots limits the load
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for CertificateSigningRequests: %w", err)
	}
	c := &Cluster{
		options:  options,
		config:   config,
		requests: requester{client.CertificatesV1().CertificateSigningRequests(), options.Labels},
		core:     client.CoreV1(),
		slots:    make(chan struct{}, clusterInFlight),
		test:     make(chan struct{}, 1),
	}
	c.state.Store(&ClusterState{})
	return c, nil
}

// State returns the current state of the signer.
func (c *Cluster) State() ClusterState { return *c.state.Load() }

// Run tests the signer periodically until ctx ends.
func (c *Cluster) Run(ctx context.Context) {
	c.keys.refill()
	wait := c.options.FirstRetry
	for {
		last := time.Now()
		state := ClusterState{Tested: true, Err: c.selfTest(ctx)}
		state.Server, state.CABundle, state.InfoErr = c.clusterInfo(ctx)
		if ctx.Err() != nil {
			return
		}
		c.set(ctx, state)
		next := testInterval
		if state.Err != nil || state.InfoErr != nil {
			next, wait = min(wait, next), min(2*wait, testInterval)
		} else {
			wait = c.options.FirstRetry
		}
		next += rand.N(next/5 + 1) //nolint:gosec // spreads the tests of the replicas
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		case <-c.test:
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(last.Add(c.options.FirstRetry))): // limits the tests that logins trigger
			}
		}
	}
}

func (c *Cluster) set(ctx context.Context, state ClusterState) {
	before := c.state.Swap(&state)
	if before.equal(state) {
		return
	}
	logger := logr.FromContextOrDiscard(ctx)
	switch {
	case state.Err != nil:
		logger.Info("Found that the cluster's own signer cannot be used", "problem", state.Err.Error())
	case state.InfoErr != nil:
		logger.Info("Found no API server address that clients can use", "problem", state.InfoErr.Error())
	default:
		logger.Info("Found that the cluster's own signer works", "server", state.Server)
	}
	c.options.Changed()
}

// IssueClientCertificate returns a certificate from the cluster's signer that is valid for about ttl, and at least ten
// minutes. While the signer is unusable, it fails at once. A timeout marks the signer as unusable until a self-test
// succeeds. Any other error triggers a self-test, except ErrRefused or if no slot became free.
func (c *Cluster) IssueClientCertificate(
	ctx context.Context, identity certs.ClientIdentity, ttl time.Duration,
) (*certs.KeyPair, error) {
	switch state := c.State(); {
	case !state.Tested:
		return nil, ErrNotTested
	case state.Err != nil:
		return nil, state.Err
	}
	pair, err := c.issue(ctx, identity, ttl)
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrRefused) || errors.Is(err, errBusy) {
		return pair, err
	}
	if errors.Is(err, errNoResponse) {
		broken := c.State()
		broken.Err = err
		c.set(ctx, broken)
	}
	c.Retest()
	return pair, err
}

// Retest triggers a self-test, which also reads the API server's address for clients again. It runs at most once per
// FirstRetry.
func (c *Cluster) Retest() {
	select {
	case c.test <- struct{}{}:
	default: // a test is pending
	}
}

// errNoResponse is the cause of a timeout of the signer.
var errNoResponse = errors.New("no response")

// errBusy is returned if no slot becomes free in time.
var errBusy = errors.New("too many certificate requests at the moment")

// issue gets one certificate as soon as a slot is free.
func (c *Cluster) issue(ctx context.Context, identity certs.ClientIdentity, ttl time.Duration) (*certs.KeyPair, error) {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, errBusy
	}
	done := func() { <-c.slots }
	key, err := c.keys.take()
	if err != nil {
		done()
		return nil, err
	}
	pair, err := c.requests.get(ctx, key, identity, max(ttl, minClusterLife), done)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errNoResponse) && !errors.Is(err, errNoResponse) {
		err = fmt.Errorf("%w: %w", cause, err) // the API server took too long
	}
	return pair, explain(err)
}

func (c *Cluster) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("%w within %s", errNoResponse, c.options.Timeout)
	return context.WithTimeoutCause(ctx, c.options.Timeout, cause)
}

// explain adds a hint to an error.
func explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: the agent needs the permissions in deploy/clustersigner", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: the API server does not serve %s", err, certificatesv1.SchemeGroupVersion)
	}
	return err
}

// selfTestUser is the user of the self-test's certificate. It is in no group but system:authenticated.
const selfTestUser = "concierge.pinniped.dev:self-test"

// selfTest gets a certificate as a login would, and asks the API server which user it authenticates.
func (c *Cluster) selfTest(ctx context.Context) error {
	pair, err := c.issue(ctx, certs.ClientIdentity{Username: selfTestUser}, minClusterLife)
	if err != nil {
		return err
	}
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	if err := c.tryCertificate(ctx, pair); err != nil {
		return fmt.Errorf("testing a certificate from the cluster's signer: %w", err)
	}
	return nil
}

// tryCertificate returns nil if the API server authenticates the user of the certificate.
func (c *Cluster) tryCertificate(ctx context.Context, pair *certs.KeyPair) error {
	config := rest.AnonymousClientConfig(c.config)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return err
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	tlsConfig.Certificates = []tls.Certificate{certificate}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	// A separate transport, because client-go would cache one for each certificate forever.
	transport := &http.Transport{
		TLSClientConfig: tlsConfig, Proxy: proxy, DialContext: config.Dial, DisableKeepAlives: true,
		TLSHandshakeTimeout: 10 * time.Second,
	}
	client, err := authenticationv1client.NewForConfigAndClient(config, &http.Client{Transport: transport})
	if err != nil {
		return err
	}
	review, err := client.SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), fmt.Sprintf("%q", selfTestUser)):
		return nil // the API server has authenticated the user
	case apierrors.IsNotFound(err):
		return nil // Kubernetes before 1.28 does not serve this API
	case err != nil:
		return err
	case review.Status.UserInfo.Username != selfTestUser:
		return fmt.Errorf("the API server authenticates it as %q", review.Status.UserInfo.Username)
	}
	return nil
}
