package serving

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// ClientNames returns the names of the proxy other than the external endpoint, each with its source. service is the one
// in front of the proxy, or nil. loadBalancerIP counts for every type of Service.
//
// With an external endpoint, clients use that. The addresses of the load balancer behind it, and loadBalancerIP, are
// then advisory, because a public CA would not certify them. A generated certificate covers them as well: see
// GeneratedNames.
func ClientNames(spec configv1alpha1.ImpersonationProxySpec, service *corev1.Service) []certs.Name {
	var names []certs.Name
	if ip := spec.Service.LoadBalancerIP; ip != "" {
		names = append(names, certs.Name{
			Value: ip, Source: "spec.impersonationProxy.service.loadBalancerIP", Advisory: spec.ExternalEndpoint != "",
		})
	}
	if service == nil {
		return names
	}
	switch spec.Service.Type {
	case configv1alpha1.ServiceTypeNone:
	case configv1alpha1.ServiceTypeClusterIP:
		if spec.ExternalEndpoint != "" {
			return names // a cluster IP is unreachable from outside the cluster
		}
		for _, ip := range ClusterIPs(service) {
			names = append(
				names,
				certs.Name{Value: ip, Source: fmt.Sprintf("Service %s/%s spec.clusterIPs", service.Namespace, service.Name)},
			)
		}
	default: // also "", for which LoadBalancer is the default
		source := fmt.Sprintf("Service %s/%s status.loadBalancer.ingress", service.Namespace, service.Name)
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			address := ingress.IP
			if _, err := netip.ParseAddr(address); err != nil {
				address = "" // a cloud provider may report an invalid address
			}
			for _, value := range []string{ingress.Hostname, address} {
				if value != "" && value != spec.Service.LoadBalancerIP {
					names = append(names, certs.Name{Value: value, Source: source, Advisory: spec.ExternalEndpoint != ""})
				}
			}
		}
	}
	return names
}

// GeneratedNames returns the names of the generated certificate: host, the endpoint of clients, and everything in
// ClientNames.
func GeneratedNames(
	host string, spec configv1alpha1.ImpersonationProxySpec, service *corev1.Service,
) certs.SANs {
	var names certs.SANs
	for _, name := range append([]certs.Name{{Value: host}}, ClientNames(spec, service)...) {
		value, _, err := certs.ParseEndpoint(name.Value)
		if err != nil {
			continue // no client can use it
		}
		if ip := net.ParseIP(value); ip == nil {
			if value = strings.ToLower(strings.TrimSuffix(value, ".")); !slices.Contains(names.DNSNames, value) {
				names.DNSNames = append(names.DNSNames, value)
			}
		} else if !slices.ContainsFunc(names.IPAddresses, ip.Equal) {
			names.IPAddresses = append(names.IPAddresses, ip)
		}
	}
	return names
}

// ClusterIPs returns a Service's valid IP addresses, the primary one first.
func ClusterIPs(service *corev1.Service) []string {
	all := service.Spec.ClusterIPs
	if len(all) == 0 && service.Spec.ClusterIP != "" {
		all = []string{service.Spec.ClusterIP}
	}
	var valid []string
	for _, ip := range all {
		if _, err := netip.ParseAddr(ip); err == nil {
			valid = append(valid, ip)
		}
	}
	return valid
}
