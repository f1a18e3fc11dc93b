package iptls

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const (
	defaultNamespace = "pinniped-concierge"
	defaultAppName   = "pinniped-concierge"
)

// Cluster is what the commands read and write; *discovery.Client is one.
type Cluster interface {
	CredentialIssuer(ctx context.Context, name string) (*configv1alpha1.CredentialIssuer, error)
	ApplyCredentialIssuer(ctx context.Context, name string, object any, opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error)
	MergeCredentialIssuer(ctx context.Context, name string, patch any, opts discovery.ApplyOptions) (*configv1alpha1.CredentialIssuer, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ApplySecret(ctx context.Context, namespace, name string, object any, opts discovery.ApplyOptions) (*corev1.Secret, error)
	DeleteSecret(ctx context.Context, secret *corev1.Secret) error
	Certificate(ctx context.Context, namespace, name string) (*discovery.Certificate, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	AgentNamespace(ctx context.Context) (string, error)
	Permissions
	Grants
}

// state is what was found in the cluster.
type state struct {
	issuer     *configv1alpha1.CredentialIssuer
	secretName string          // empty: the agent's generated certificate
	secret     *corev1.Secret  // nil when there is none
	permission []certs.Finding // about a Secret of another namespace; one that refuses means that the Secret was not read
	service    *corev1.Service // in front of the proxy; nil when there is none
	now        time.Time
	serverTime time.Time
}

// findNamespace returns the agent's namespace: the one given, else the one behind the aggregated login API, else the
// usual one.
func findNamespace(ctx context.Context, cluster Cluster, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	namespace, err := cluster.AgentNamespace(ctx)
	switch {
	case err == nil:
		return namespace, nil
	case errors.Is(err, discovery.ErrUnreachable), errors.Is(err, discovery.ErrUnauthorized), ctx.Err() != nil:
		return "", fmt.Errorf("finding the agent's namespace: %w", err)
	default:
		// The agent may run without the aggregated APIs, and not everybody may read APIServices.
		return defaultNamespace, nil
	}
}

// gather reads the objects that a decision is about. Without a secretName, it takes the one that is configured.
func gather(ctx context.Context, cluster Cluster, issuerName, namespace, secretName string) (*state, error) {
	issuer, err := readIssuer(ctx, cluster, issuerName)
	if err != nil {
		return nil, err
	}
	if tls := issuer.Spec.ImpersonationProxy.TLS; secretName == "" && tls != nil {
		secretName = tls.SecretName
	}
	st := &state{issuer: issuer}
	return st, st.gatherAround(ctx, cluster, namespace, secretName)
}

// gatherAround reads the objects beside the CredentialIssuer.
func (st *state) gatherAround(ctx context.Context, cluster Cluster, namespace, secretName string) error {
	if err := st.gatherSecret(ctx, cluster, namespace, secretName); err != nil {
		return err
	}
	var err error
	if st.service, err = readService(ctx, cluster, st.issuer, namespace); err != nil {
		return withCodes(fmt.Errorf("reading the Service in front of the impersonation proxy: %w", err))
	}
	return nil
}

// gatherSecret reads the Secret that a spec names, unless it is of another namespace whose owner does not permit that.
func (st *state) gatherSecret(ctx context.Context, cluster Cluster, namespace, secretName string) error {
	st.secretName = secretName
	name, err := delegation.SecretName(secretName, namespace)
	if err != nil {
		return ui.Usage(err)
	}
	if name.Namespace != namespace {
		if st.permission, err = mayUse(ctx, cluster, name, agentAccount(namespace, st.issuer)); err != nil {
			return err
		}
	}
	if !st.notPermitted() {
		if st.secret, err = readSecret(ctx, cluster, name.Namespace, name.Name); err != nil {
			return withCodes(fmt.Errorf("reading the Secret with the certificate: %w", err))
		}
	}
	return nil
}

// notPermitted says whether the Secret is of another namespace and may not be used.
func (st *state) notPermitted() bool {
	return slices.ContainsFunc(st.permission, certs.Finding.Refuses)
}

func readIssuer(ctx context.Context, cluster Cluster, name string) (*configv1alpha1.CredentialIssuer, error) {
	issuer, err := cluster.CredentialIssuer(ctx, name)
	if name == "" && errors.Is(err, discovery.ErrForbidden) {
		// Who may not list them may still read the one that there usually is.
		if usual, again := cluster.CredentialIssuer(ctx, defaultAppName+"-config"); again == nil {
			issuer, err = usual, nil
		}
	}
	if err != nil {
		return nil, withCodes(fmt.Errorf("finding the CredentialIssuer: %w", err))
	}
	if issuer.Spec.ImpersonationProxy == nil {
		return nil, ui.WithHint(fmt.Errorf("CredentialIssuer %q has no spec.impersonationProxy", issuer.Name),
			"its agent does not know the impersonation proxy; apply the manifests in deploy/ again")
	}
	return issuer, nil
}

// appName returns the name of the application, after which the agent's objects and the CredentialIssuer are named.
func appName(issuer *configv1alpha1.CredentialIssuer) string { return appNameOf(issuer.Name) }

func appNameOf(issuer string) string {
	if app, ok := strings.CutSuffix(issuer, "-config"); ok {
		return app
	}
	return defaultAppName
}

// readSecret returns nil for a Secret that does not exist: a check says so.
func readSecret(ctx context.Context, cluster Cluster, namespace, name string) (*corev1.Secret, error) {
	if name == "" {
		return nil, nil
	}
	secret, err := cluster.Secret(ctx, namespace, name)
	if errors.Is(err, discovery.ErrNotFound) {
		return nil, nil
	}
	return secret, err
}

// readService reads the Service that the agent makes for the configured type; it is nil when there is none.
func readService(ctx context.Context, cluster Cluster, issuer *configv1alpha1.CredentialIssuer, namespace string) (*corev1.Service, error) {
	app := appName(issuer)
	var name string
	switch serviceType(issuer.Spec.ImpersonationProxy) {
	case configv1alpha1.ServiceTypeNone:
		return nil, nil
	case configv1alpha1.ServiceTypeClusterIP:
		name = app + "-impersonation-proxy-cluster-ip"
	default:
		name = app + "-impersonation-proxy-load-balancer"
	}
	service, err := cluster.Service(ctx, namespace, name)
	if errors.Is(err, discovery.ErrNotFound) {
		return nil, nil
	}
	return service, err
}

func serviceType(spec *configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxyServiceType {
	if spec.Service.Type == "" {
		return configv1alpha1.ServiceTypeLoadBalancer
	}
	return spec.Service.Type
}

// withCodes gives errors from the cluster the exit codes that the command documents, and the hints that fit its flags.
func withCodes(err error) error {
	var several *discovery.SeveralError
	switch {
	case errors.Is(err, discovery.ErrForbidden):
		return ui.WithExitCode(err, ui.ExitNotPermitted)
	case errors.As(err, &several):
		return ui.WithHint(err, "name one of them with --credential-issuer")
	default:
		return err
	}
}

// serverClock remembers what the API server's clock reads, from the Date header of its answers.
type serverClock struct {
	now func() time.Time

	mu  sync.Mutex
	gap time.Duration // how far the server's clock is ahead
	set bool
}

// watch makes config's requests tell the time.
func (c *serverClock) watch(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				c.read(response.Header.Get("Date"))
			}
			return response, err
		})
	})
}

func (c *serverClock) read(header string) {
	date, err := http.ParseTime(header)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gap, c.set = date.Sub(c.now()), true
}

// at returns what the server's clock reads at now; zero when it is not known.
func (c *serverClock) at(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.set {
		return time.Time{}
	}
	return now.Add(c.gap)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
