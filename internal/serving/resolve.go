package serving

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pinniped-toolkit/pinniped/internal/delegation"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// Desired is what the spec of a CredentialIssuer asks for.
type Desired struct {
	// ImpersonationProxySpec has the defaults of the CRD. TLS is nil if the generated certificate is wanted.
	configv1alpha1.ImpersonationProxySpec

	// Secret is the one that TLS names. Delegated is true if its namespace is not the agent's.
	Secret    types.NamespacedName
	Delegated bool
	// Transition is spec.impersonationProxy.tls, even if it names no Secret.
	Transition configv1alpha1.ImpersonationProxyTLSSpec
}

// Resolve reads the spec of a CredentialIssuer. It returns an error for an invalid spec that the CRD's schema accepts.
// If mode is disabled, it validates nothing. namespace is the agent's.
func Resolve(issuer *configv1alpha1.CredentialIssuer, namespace string) (Desired, error) {
	if issuer.Spec.ImpersonationProxy == nil {
		return Desired{}, errors.New("could not load CredentialIssuer: spec.impersonationProxy is nil")
	}
	desired := Desired{ImpersonationProxySpec: *issuer.Spec.ImpersonationProxy}
	if desired.Service.Type == "" {
		desired.Service.Type = configv1alpha1.ServiceTypeLoadBalancer
	}
	if err := validateProxy(desired.ImpersonationProxySpec); err != nil {
		return desired, fmt.Errorf("could not load CredentialIssuer spec.impersonationProxy: %w", err)
	}
	if desired.TLS == nil {
		return desired, nil
	}
	desired.Transition = *desired.TLS
	if desired.TLS.SecretName == "" {
		desired.TLS = nil
		return desired, nil
	}
	desired.Secret, _ = delegation.SecretName(desired.TLS.SecretName, namespace) // validated, unless mode is disabled
	desired.Delegated = desired.Secret.Namespace != namespace
	return desired, nil
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
	if spec.TLS != nil && spec.TLS.CertificateAuthorityData != "" && spec.TLS.CertificateAuthorityDataSource != nil {
		return errors.New("tls.certificateAuthorityData and tls.certificateAuthorityDataSource cannot both be set")
	}
	if spec.TLS != nil && spec.TLS.SecretName != "" {
		if _, err := delegation.SecretName(spec.TLS.SecretName, ""); err != nil {
			return fmt.Errorf("invalid tls.secretName: %w", err)
		}
	}
	return nil
}

// validateLoadBalancer finds what the API server would refuse in the Service, so that the error names the fields here.
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

// Endpoint is where clients reach the proxy. Host is a DNS name or an IP address without brackets.
type Endpoint struct{ Host, Port string }

// URL returns the URL that is published. It leaves out port 443.
func (e Endpoint) URL() string {
	host := e.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if e.Port == "443" {
		return "https://" + host
	}
	return "https://" + host + ":" + e.Port
}

// parseEndpoint reads HOST or HOST:PORT.
func parseEndpoint(text string) (Endpoint, error) {
	host, port, err := certs.ParseEndpoint(text)
	if err != nil {
		return Endpoint{}, err
	}
	if port == "" {
		port = "443"
	}
	return Endpoint{Host: host, Port: port}, nil
}

// ErrPending is returned while the proxy has no address yet.
var ErrPending = errors.New("waiting for load balancer Service to be assigned IP or hostname")

// Endpoint returns the address of the proxy: the external endpoint, else that of the Service (nil if it does not exist
// yet). It returns ErrPending while the Service has no address.
func (d Desired) Endpoint(service *corev1.Service) (Endpoint, error) {
	if d.ExternalEndpoint != "" {
		return parseEndpoint(d.ExternalEndpoint)
	}
	if service == nil {
		return Endpoint{}, ErrPending
	}
	if d.Service.Type == configv1alpha1.ServiceTypeClusterIP {
		for _, ip := range ClusterIPs(service) {
			return Endpoint{Host: ip, Port: "443"}, nil
		}
		return Endpoint{}, ErrPending
	}
	ingresses := service.Status.LoadBalancer.Ingress
	for _, ingress := range ingresses {
		if ingress.Hostname != "" {
			return Endpoint{Host: ingress.Hostname, Port: "443"}, nil
		}
	}
	for _, ip := range ingressIPs(service) {
		return Endpoint{Host: ip, Port: "443"}, nil
	}
	if len(ingresses) == 0 || ingresses[0].IP == "" {
		return Endpoint{}, ErrPending
	}
	return Endpoint{}, fmt.Errorf(
		"could not find valid IP addresses or hostnames from load balancer %s/%s", service.Namespace, service.Name,
	)
}

// ingressIPs returns the distinct valid IP addresses of a load balancer, in the order of its status.
func ingressIPs(service *corev1.Service) []string {
	var valid []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(ingress.IP); err == nil && !slices.Contains(valid, addr.String()) {
			valid = append(valid, addr.String())
		}
	}
	return valid
}
