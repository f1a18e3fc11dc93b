package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
)

// DefaultAppName is the application name of a Pinniped Concierge, from which it derives the names of its objects.
const DefaultAppName = "pinniped-concierge"

// AppName returns the application name for the CredentialIssuer called issuer, from which the agent's objects are named
// if the status publishes no names.
func AppName(issuer string) string {
	if app, ok := strings.CutSuffix(issuer, "-config"); ok {
		return app
	}
	return DefaultAppName
}

// Objects returns the names of the agent's objects: those that the status publishes (published is true), or else the
// defaults of a Pinniped Concierge in namespace. With defaults, an object that is not found may have another name.
func Objects(
	issuer *configv1alpha1.CredentialIssuer,
	namespace string,
) (names configv1alpha1.ObjectNames, published bool) {
	if issuer.Status.Objects != nil {
		names = *issuer.Status.Objects
		names.ServiceAccount = cmp.Or(names.ServiceAccount, AppName(issuer.Name))
		return names, true
	}
	proxy := AppName(issuer.Name) + "-impersonation-proxy"
	return configv1alpha1.ObjectNames{
		Namespace:                      namespace,
		LoadBalancerService:            proxy + "-load-balancer",
		ClusterIPService:               proxy + "-cluster-ip",
		GeneratedCertificateSecret:     proxy + "-tls-serving-certificate",
		GeneratedCASecret:              proxy + "-ca-certificate",
		LastKnownGoodCertificateSecret: proxy + "-last-known-good-certificate",
		RevisionsConfigMap:             AppName(issuer.Name) + "-revisions",
		ServiceAccount:                 AppName(issuer.Name),
	}, false
}

// ProxyService returns the name of the Service that the agent creates for the configured type, or "" if it creates
// none.
func ProxyService(spec *configv1alpha1.ImpersonationProxySpec, names configv1alpha1.ObjectNames) string {
	switch spec.Service.Type {
	case configv1alpha1.ServiceTypeNone:
		return ""
	case configv1alpha1.ServiceTypeClusterIP:
		return names.ClusterIPService
	case configv1alpha1.ServiceTypeLoadBalancer:
	}
	return names.LoadBalancerService // also the default for an empty type
}

// Endpoint returns the impersonation proxy's endpoint with all the names by which clients may reach it: from the spec,
// from current and past endpoints and certificates in the status, and from the addresses of the Service, which may be
// nil. published is the URL; if it is empty, the status's is used.
func Endpoint(issuer *configv1alpha1.CredentialIssuer, service *corev1.Service, published string) kubeconfig.Endpoint {
	endpoint := kubeconfig.Endpoint{URL: published}
	var names []string
	addHost := func(host string) {
		if host != "" {
			names = append(names, withPort(host))
		}
	}
	addURL := func(text string) {
		if u, err := url.Parse(text); err == nil {
			addHost(u.Host)
		}
	}
	for i := range issuer.Status.Strategies {
		if front := issuer.Status.Strategies[i].Frontend; front != nil && front.ImpersonationProxyInfo != nil {
			endpoint.URL = cmp.Or(endpoint.URL, front.ImpersonationProxyInfo.Endpoint)
			addURL(front.ImpersonationProxyInfo.Endpoint)
		}
	}
	if serving := issuer.Status.ServingCertificate; serving != nil {
		names = append(append(names, serving.DNSNames...), serving.IPAddresses...)
	}
	if spec := issuer.Spec.ImpersonationProxy; spec != nil {
		addHost(spec.ExternalEndpoint)
		addHost(spec.Service.LoadBalancerIP)
	}
	for _, address := range addressesOf(service) {
		addHost(address)
	}
	for _, revision := range issuer.Status.Revisions { // includes names that are no longer covered
		names = append(names, revision.Names...)
		addURL(revision.Endpoint)
	}
	endpoint.Names = kubeconfig.Canonical(names)
	return endpoint
}

// addressesOf returns the addresses of a Service, which may be nil; some may be empty. Cluster IPs count only for type
// ClusterIP: other clusters have the same ones, and their kubeconfigs must not match.
func addressesOf(service *corev1.Service) []string {
	var addresses []string
	switch {
	case service == nil:
	case service.Spec.Type == corev1.ServiceTypeClusterIP:
		for _, address := range append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...) {
			if address != corev1.ClusterIPNone {
				addresses = append(addresses, address)
			}
		}
	default:
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			addresses = append(addresses, ingress.Hostname, ingress.IP)
		}
	}
	return addresses
}

// withPort appends port 443 to a host without port.
func withPort(name string) string {
	u, err := url.Parse("https://" + name)
	if err == nil && u.Port() != "" {
		return name
	}
	if strings.Count(name, ":") > 1 && !strings.HasPrefix(name, "[") {
		name = "[" + name + "]"
	}
	return name + ":443"
}

// services reads Services.
type services interface {
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	AgentNamespace(ctx context.Context) (string, error)
}

// FindService returns the Service in front of the proxy, or nil if none is configured. If it is configured but does not
// exist, missing is a sentence that says so. namespace is the agent's, or empty if unknown; it is used only if the
// agent publishes no names.
func FindService(
	ctx context.Context,
	cluster services,
	issuer *configv1alpha1.CredentialIssuer,
	namespace string,
) (service *corev1.Service, missing string, err error) {
	spec := issuer.Spec.ImpersonationProxy
	if spec == nil || spec.Mode == configv1alpha1.ImpersonationProxyModeDisabled {
		return nil, "", nil
	}
	if namespace == "" && issuer.Status.Objects == nil {
		if namespace, err = cluster.AgentNamespace(ctx); err != nil {
			namespace = DefaultAppName
		}
	}
	names, published := Objects(issuer, namespace)
	name := ProxyService(spec, names)
	if name == "" {
		return nil, "", nil
	}
	service, err = cluster.Service(ctx, names.Namespace, name)
	switch {
	case err == nil:
		return service, "", nil
	case errors.Is(err, ErrNotFound):
		missing = fmt.Sprintf("there is no Service %q", names.Namespace+"/"+name)
		if !published {
			missing += " (the name that Pinniped uses; the agent publishes no other name)"
		}
		return nil, missing + ", so its addresses are not known", nil
	}
	return nil, "", err
}
