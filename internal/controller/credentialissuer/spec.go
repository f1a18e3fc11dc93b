package credentialissuer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// withDefaults returns a copy of the spec with the defaults of the CRD, for objects that were made without them.
func withDefaults(spec configv1alpha1.ImpersonationProxySpec) configv1alpha1.ImpersonationProxySpec {
	if spec.Service.Type == "" {
		spec.Service.Type = configv1alpha1.ServiceTypeLoadBalancer
	}
	return spec
}

// validate returns what is wrong with a spec that the CRD's schema lets through. Mode disabled ignores everything
// else.
func validate(issuer *configv1alpha1.CredentialIssuer) (configv1alpha1.ImpersonationProxySpec, error) {
	if issuer.Spec.ImpersonationProxy == nil {
		return configv1alpha1.ImpersonationProxySpec{}, errors.New(
			"could not load CredentialIssuer: spec.impersonationProxy is nil",
		)
	}
	spec := withDefaults(*issuer.Spec.ImpersonationProxy)
	if err := validateProxy(spec); err != nil {
		return spec, fmt.Errorf("could not load CredentialIssuer spec.impersonationProxy: %w", err)
	}
	if spec.TLS != nil && spec.TLS.SecretName == "" {
		spec.TLS = nil // a transition to the generated certificate: see seen.tls
	}
	return spec, nil
}

func validateProxy(spec configv1alpha1.ImpersonationProxySpec) error {
	switch spec.Mode {
	case configv1alpha1.ImpersonationProxyModeDisabled:
		return nil
	case configv1alpha1.ImpersonationProxyModeAuto, configv1alpha1.ImpersonationProxyModeEnabled:
	default:
		return fmt.Errorf("invalid proxy mode %q (expected auto, disabled, or enabled)", spec.Mode)
	}
	switch spec.Service.Type {
	case configv1alpha1.ServiceTypeNone, configv1alpha1.ServiceTypeLoadBalancer, configv1alpha1.ServiceTypeClusterIP:
	default:
		return fmt.Errorf("invalid service type %q (expected None, LoadBalancer, or ClusterIP)", spec.Service.Type)
	}
	if ip := spec.Service.LoadBalancerIP; ip != "" {
		if _, err := netip.ParseAddr(ip); err != nil {
			return fmt.Errorf("invalid LoadBalancerIP %q", ip)
		}
	}
	if err := validateLoadBalancer(spec.Service); err != nil {
		return err
	}
	if spec.Service.Type == configv1alpha1.ServiceTypeNone && spec.ExternalEndpoint == "" {
		return errors.New("externalEndpoint must be set when service.type is None")
	}
	if spec.ExternalEndpoint != "" {
		if _, err := parseEndpoint(spec.ExternalEndpoint); err != nil {
			return fmt.Errorf("invalid ExternalEndpoint %q: %w", spec.ExternalEndpoint, err)
		}
	}
	if spec.TLS != nil && spec.TLS.SecretName == "" && spec.TLS.CATransition != configv1alpha1.CATransitionDualTrust {
		return errors.New(`tls.secretName must be set when tls is set, except with caTransition "DualTrust"`)
	}
	if spec.TLS != nil && spec.TLS.SecretName != "" {
		if _, err := delegation.SecretName(spec.TLS.SecretName, ""); err != nil {
			return fmt.Errorf("invalid tls.secretName: %w", err)
		}
	}
	return nil
}

// validateLoadBalancer returns what the API server would refuse in a Service, in words that name our own fields.
func validateLoadBalancer(service configv1alpha1.ImpersonationProxyServiceSpec) error {
	for i, text := range service.LoadBalancerSourceRanges {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf(
				"invalid service.loadBalancerSourceRanges[%d] %q: write a network as ADDRESS/BITS, such as 192.0.2.0/24 or "+
					"2001:db8::/32",
				i,
				text,
			)
		}
		if masked := network.Masked(); masked != network {
			return fmt.Errorf(
				"invalid service.loadBalancerSourceRanges[%d] %q: that is an address within a network (write %q for the network)",
				i,
				text,
				masked,
			)
		}
	}
	if class := service.LoadBalancerClass; class != "" {
		if problems := validation.IsQualifiedName(class); len(problems) > 0 {
			return fmt.Errorf("invalid service.loadBalancerClass %q: %s", class, strings.Join(problems, "; "))
		}
	}
	return nil
}

// endpoint is where clients reach the proxy: host is a DNS name or an IP address without brackets.
type endpoint struct {
	host string
	port string
}

// URL returns what is advertised. The port is left out when it is the one that https has anyway.
func (e endpoint) URL() string {
	host := e.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if e.port == "443" {
		return "https://" + host
	}
	return "https://" + host + ":" + e.port
}

// parseEndpoint reads HOST or HOST:PORT.
func parseEndpoint(text string) (endpoint, error) {
	host, port, err := certs.ParseEndpoint(text)
	if err != nil {
		return endpoint{}, err
	}
	if port == "" {
		port = "443"
	}
	return endpoint{host: host, port: port}, nil
}

// errPending is returned while the address of the proxy is still being assigned.
var errPending = errors.New("waiting for load balancer Service to be assigned IP or hostname")

// chooseEndpoint returns where clients reach the proxy: the external endpoint, else the address of the Service (nil
// when it does not exist yet). It returns errPending while the Service has no address.
func chooseEndpoint(spec configv1alpha1.ImpersonationProxySpec, service *corev1.Service) (endpoint, error) {
	if spec.ExternalEndpoint != "" {
		return parseEndpoint(spec.ExternalEndpoint)
	}
	if service == nil {
		return endpoint{}, errPending
	}
	if spec.Service.Type == configv1alpha1.ServiceTypeClusterIP {
		for _, ip := range serving.ClusterIPs(service) {
			return endpoint{host: ip, port: "443"}, nil
		}
		return endpoint{}, errPending
	}
	ingresses := service.Status.LoadBalancer.Ingress
	for _, ingress := range ingresses {
		if ingress.Hostname != "" {
			return endpoint{host: ingress.Hostname, port: "443"}, nil
		}
	}
	for _, ip := range ingressIPs(service) {
		return endpoint{host: ip, port: "443"}, nil
	}
	if len(ingresses) == 0 || ingresses[0].IP == "" {
		return endpoint{}, errPending
	}
	return endpoint{}, coded(
		configv1alpha1.CodeServiceAddressInvalid,
		fmt.Errorf(
			"could not find valid IP addresses or hostnames from load balancer %s/%s",
			service.Namespace,
			service.Name,
		),
	)
}

// ingressIPs returns the valid IP addresses of a load balancer, each once, in the order in which its cloud tells them.
func ingressIPs(service *corev1.Service) []string {
	var valid []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(ingress.IP); err == nil && !slices.Contains(valid, addr.String()) {
			valid = append(valid, addr.String())
		}
	}
	return valid
}
