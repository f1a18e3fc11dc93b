package manifest

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// issuerRef is the cert-manager issuer of the certificate.
type issuerRef struct {
	Kind, Name, Group string
}

// certificate returns a cert-manager Certificate. An RSA key also needs the usage key encipherment.
func certificate(secret types.NamespacedName, names []certs.Name, issuer issuerRef, algorithm string) map[string]any {
	dns, ips := []any{}, []any{}
	for _, name := range names {
		if _, err := netip.ParseAddr(name.Value); err == nil {
			ips = append(ips, name.Value)
			continue
		}
		dns = append(dns, name.Value)
	}
	key := map[string]any{"algorithm": "ECDSA", "size": int64(256), "rotationPolicy": "Always"}
	usages := []any{"digital signature", "server auth"}
	if algorithm == algorithmRSA {
		key["algorithm"], key["size"] = "RSA", int64(3072)
		usages = []any{"digital signature", "key encipherment", "server auth"}
	}
	spec := map[string]any{
		"secretName":  secret.Name,
		"duration":    "2160h", // 90 days; ACME issuers choose the lifetime, and cert-manager renews after two thirds of it
		"renewBefore": "720h",  // 30 days to notice a failed renewal
		"privateKey":  key,
		"usages":      usages,
		"issuerRef":   map[string]any{"group": issuer.Group, "kind": issuer.Kind, "name": issuer.Name},
	}
	if len(dns) > 0 {
		spec["dnsNames"] = dns
	}
	if len(ips) > 0 {
		spec["ipAddresses"] = ips
	}
	return object("cert-manager.io/v1", "Certificate", secret, spec)
}

// httpProxy returns an HTTPProxy for Contour. Only tcpproxy passes TLS through, and so client certificates.
func httpProxy(route types.NamespacedName, host, service string) map[string]any {
	return object("projectcontour.io/v1", "HTTPProxy", route, map[string]any{
		"virtualhost": map[string]any{"fqdn": host, "tls": map[string]any{"passthrough": true}},
		"tcpproxy":    map[string]any{"services": []any{map[string]any{"name": service, "port": servicePort}}},
	})
}

// tlsRoute returns a TLSRoute to a Gateway [NAMESPACE/]NAME, which needs a listener for TLS with mode Passthrough.
func tlsRoute(route types.NamespacedName, host, service, gateway string) map[string]any {
	parent := map[string]any{"name": gateway}
	if namespace, name, found := strings.Cut(gateway, "/"); found {
		parent["name"] = name
		if namespace != "" && namespace != route.Namespace {
			parent["namespace"] = namespace
		}
	}
	return object("gateway.networking.k8s.io/v1", "TLSRoute", route, map[string]any{
		"parentRefs": []any{parent},
		"hostnames":  []any{host},
		"rules":      []any{map[string]any{"backendRefs": []any{map[string]any{"name": service, "port": servicePort}}}},
	})
}

// ingress returns an Ingress for ingress-nginx, which needs --enable-ssl-passthrough.
func ingress(route types.NamespacedName, host, service string) map[string]any {
	backend := map[string]any{"service": map[string]any{"name": service, "port": map[string]any{"number": servicePort}}}
	made := object("networking.k8s.io/v1", "Ingress", route, map[string]any{
		"ingressClassName": "nginx",
		"rules": []any{map[string]any{
			"host": host,
			"http": map[string]any{"paths": []any{map[string]any{"path": "/", "pathType": "Prefix", "backend": backend}}},
		}},
	})
	metadata, _ := made["metadata"].(map[string]any)
	metadata["annotations"] = map[string]any{
		"nginx.ingress.kubernetes.io/ssl-passthrough":  "true",
		"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
	}
	return made
}

// servicePort is the port of the Service in front of the impersonation proxy.
const servicePort int64 = 443

func object(apiVersion, kind string, name types.NamespacedName, spec map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"name": name.Name, "namespace": name.Namespace},
		"spec":     spec,
	}
}

// required removes duplicates, and returns the names that clients use and the others.
func required(names []certs.Name) (kept, left []certs.Name) {
	for _, name := range names {
		same := func(n certs.Name) bool { return strings.EqualFold(n.Value, name.Value) }
		switch {
		case slices.ContainsFunc(kept, same), slices.ContainsFunc(left, same):
		case name.Advisory:
			left = append(left, name)
		default:
			kept = append(kept, name)
		}
	}
	return kept, left
}
