package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/trustbundle"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

const (
	maxHeader  = 64 << 10
	firstPause = 200 * time.Millisecond
	// leastTry is the minimum time limit of an attempt, if the deadline of the cluster permits it.
	leastTry = time.Second
)

// errNoTrustBundle means that a server has no trust bundle endpoint: a Pinniped, an agent with the endpoint disabled,
// or not an impersonation proxy.
var errNoTrustBundle = errors.New("it has no trust bundle endpoint; use --admin-kubeconfig")

// pauseError is an error response with Retry-After.
type pauseError struct {
	status string
	after  time.Duration
}

func (e *pauseError) Error() string { return fmt.Sprintf("it returned %.60q", e.status) }

// asker reads trust bundles from the clusters' own endpoints.
type asker struct {
	trustbundle.Policy
	options Options
}

// ask reads the trust bundle of the cluster, and sets its results.
func (a asker) ask(ctx context.Context, c *Cluster) {
	c.Source = SourceEndpoint
	var bundle *trustbundle.Received
	err := a.again(ctx, c, func(ctx context.Context) error {
		var err error
		bundle, err = a.once(ctx, c)
		return err
	})
	switch {
	case err == nil:
		c.Outcome, c.CABundle = ClusterAsked, bundle.PEM
		c.target = &kubeconfig.Target{
			Endpoint: kubeconfig.Endpoint{URL: c.Server}, CABundle: bundle.PEM, Accepts: bundle.Accepts,
		}
	case errors.Is(err, errNoTrustBundle) && !c.login:
		c.Outcome = ClusterUnrelated
	default:
		c.Outcome, c.Err = ClusterFailed, err
	}
}

// again calls try for the cluster until it succeeds, fails permanently, or the deadline of the cluster passes. Each attempt gets half
// of the remaining time, so that one that hangs leaves time for the next.
func (a asker) again(ctx context.Context, c *Cluster, try func(context.Context) error) error {
	started := a.Now()
	defer func() { c.Took = a.Now().Sub(started) }()
	ctx, cancel := context.WithTimeout(ctx, a.options.ClusterTimeout)
	defer cancel()
	pause := firstPause
	for {
		c.Tries++
		limit := a.options.ClusterTimeout
		if end, ok := ctx.Deadline(); ok && c.Tries <= a.options.Retries {
			limit = max(time.Until(end)/2, leastTry)
		}
		once, done := context.WithTimeout(ctx, limit)
		err := try(once)
		done()
		if err == nil || c.Tries > a.options.Retries || ctx.Err() != nil || discovery.Permanent(err) || permanent(err) {
			return a.withDeadline(ctx, err)
		}
		wait := pause/2 + rand.N(pause) //nolint:gosec // jitter
		if asked := (*pauseError)(nil); errors.As(err, &asked) {
			wait = max(wait, asked.after)
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait {
			return a.withDeadline(ctx, err)
		}
		a.options.Sleep(ctx, wait)
		pause *= 2
	}
}

// withDeadline adds the deadline to the error of an attempt that timed out.
func (a asker) withDeadline(ctx context.Context, err error) error {
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("no response in time")
		if ctx.Err() != nil {
			err = fmt.Errorf("no response within %s", a.options.ClusterTimeout)
		}
	}
	return err
}

// Permanent marks an error for which a retry cannot help.
func Permanent(err error) error { return &refusedError{err} }

// refusedError is an error for which a retry cannot help.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

func permanent(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused) || errors.Is(err, errNoTrustBundle)
}

// once sends one request, over a connection that at least one entry of the cluster would accept.
func (a asker) once(ctx context.Context, c *Cluster) (*trustbundle.Received, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: c.trusts[0].Host,
		// VerifyConnection verifies with the CA bundles of all entries, which may differ in age.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(state tls.ConnectionState) error {
			return a.verifies(c, state.PeerCertificates, func(t kubeconfig.Trust) []byte { return t.CABundle })
		},
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeader,
	}
	if c.proxy != "" {
		proxy, err := url.Parse(c.proxy)
		if err != nil {
			return nil, &refusedError{fmt.Errorf("reading the proxy-url of its kubeconfig: %w", err)}
		}
		transport.Proxy = http.ProxyURL(proxy)
	}
	defer transport.CloseIdleConnections()
	address := strings.TrimSuffix(strings.TrimSpace(c.Server), "/") + trustbundle.Path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &refusedError{err}
	}
	request.Header.Set("User-Agent", "pinniped")
	response, err := transport.RoundTrip(request) // follows no redirect
	if err != nil {
		return nil, discovery.WithoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := checkStatus(response); err != nil {
		return nil, err
	}
	bundle, err := trustbundle.Decode(response.Body)
	switch {
	case errors.Is(err, trustbundle.ErrNoDocument):
		return nil, errNoTrustBundle
	case err != nil && ctx.Err() != nil, err != nil && isNetwork(err):
		return nil, err
	case err != nil:
		return nil, &refusedError{err}
	}
	return a.offer(c, response.TLS.PeerCertificates, bundle)
}

func isNetwork(err error) bool {
	var network interface{ Timeout() bool }
	return errors.As(err, &network)
}

func checkStatus(response *http.Response) error {
	code := response.StatusCode
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError && code != http.StatusNotImplemented:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return &pauseError{response.Status, time.Duration(min(max(seconds, 0), 60)) * time.Second}
	}
	return errNoTrustBundle
}

// offer checks the bundle for the cluster as a whole. Each entry is checked later.
func (a asker) offer(c *Cluster, chain []*x509.Certificate, bundle []byte) (*trustbundle.Received, error) {
	if err := a.Unexpected(bundle); err != nil {
		return nil, &refusedError{err}
	}
	if err := a.verifies(c, chain, func(kubeconfig.Trust) []byte { return bundle }); err != nil {
		return nil, &refusedError{
			fmt.Errorf("the published CA bundle does not verify the certificate in service: %w", err),
		}
	}
	return &trustbundle.Received{Policy: a.Policy, Chain: chain, PEM: bundle}, nil
}

// verifies returns nil if a bundle verifies the chain for at least one entry of the cluster.
func (a asker) verifies(c *Cluster, chain []*x509.Certificate, bundle func(kubeconfig.Trust) []byte) error {
	var first error
	for _, trust := range c.trusts {
		err := a.Verifies(chain, trust.Host, bundle(trust))
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
	}
	return first
}

// Admin is a trusted source of a CA bundle: an administrator's kubeconfig, or flags.
type Admin struct {
	Name string // file and context, for messages
	// Target returns the endpoint and the CA bundle for the cluster's clients.
	Target func(ctx context.Context) (kubeconfig.Target, error)
	// Untried disables the test connection to the endpoint.
	Untried bool
	// Optional means that if this fails, the cluster's endpoint is asked.
	Optional bool
}

// askAdmins reads the CredentialIssuers of all clusters with an administrator's kubeconfig.
func (r *run) askAdmins(ctx context.Context) error {
	asker := asker{trustbundle.Policy{Now: r.Now, Expected: r.ExpectedCAs}, r.Options}
	admins := map[*Cluster]Admin{}
	for _, admin := range r.Admins {
		cluster := &Cluster{Server: admin.Name, Source: SourceAdmin, Outcome: ClusterNotAsked}
		admins[cluster] = admin
		r.admins = append(r.admins, cluster)
	}
	r.each(ctx, r.admins, "clusters read with administrators' kubeconfigs", func(ctx context.Context, c *Cluster) {
		err := asker.again(ctx, c, func(ctx context.Context) error { return r.askAdmin(ctx, asker, admins[c], c) })
		switch {
		case err == nil:
			c.Outcome = ClusterAsked
		case admins[c].Optional:
			c.Outcome = ClusterUnrelated
			r.Progress.Info("found no published CA bundle at %s, so the command reads the bundle from the "+
				"endpoint: %v", c.Server, err)
		default:
			c.Outcome, c.Err = ClusterFailed, err
		}
	})
	if err := over(ctx); err != nil {
		return err
	}
	if r.Only && len(r.admins) == 1 && r.admins[0].Err != nil {
		return &SourceError{r.admins[0].Err}
	}
	return nil
}

func (r *run) askAdmin(ctx context.Context, asker asker, admin Admin, c *Cluster) error {
	target, err := admin.Target(ctx)
	switch {
	case errors.Is(err, discovery.ErrForbidden), errors.Is(err, discovery.ErrNotInstalled):
		return &refusedError{err}
	case err != nil:
		return err
	}
	if err := asker.Unexpected(target.CABundle); err != nil {
		return &refusedError{&BundleError{URL: target.URL, Unexpected: true, Err: err}}
	}
	if !admin.Untried {
		try, err := discovery.NewHTTPClient(&clientcmdapi.Cluster{Server: target.URL}, target.CABundle)
		if err != nil {
			return err
		}
		defer try.CloseIdleConnections()
		if err := discovery.Try(ctx, try, target.URL); err != nil {
			return &BundleError{URL: target.URL, Err: err}
		}
	}
	c.target, c.CABundle = &target, target.CABundle
	return nil
}

// BundleError means that the CA bundle of a cluster cannot be used.
type BundleError struct {
	URL        string
	Unexpected bool // it has a certificate that is not in Options.ExpectedCAs; otherwise, connecting with it failed
	Err        error
}

func (e *BundleError) Error() string {
	if e.Unexpected {
		return fmt.Sprintf("the CA bundle for %q: %v", e.URL, e.Err)
	}
	return fmt.Sprintf("connecting to %q with the CA bundle: %v", e.URL, e.Err)
}
func (e *BundleError) Unwrap() error { return e.Err }
