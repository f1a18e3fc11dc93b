package discovery_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

func issuerNamed(name string, objects *configv1alpha1.ObjectNames) *configv1alpha1.CredentialIssuer {
	return &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: configv1alpha1.CredentialIssuerSpec{
			ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{Mode: "enabled"},
		},
		Status: configv1alpha1.CredentialIssuerStatus{Objects: objects},
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	own := configv1alpha1.ObjectNames{
		Namespace:                      "a",
		LoadBalancerService:            "b",
		ClusterIPService:               "c",
		GeneratedCertificateSecret:     "d",
		GeneratedCASecret:              "e",
		LastKnownGoodCertificateSecret: "f",
		ServiceAccount:                 "g",
	}
	shipped := func(app string) configv1alpha1.ObjectNames {
		return configv1alpha1.ObjectNames{
			Namespace:                      "ns",
			LoadBalancerService:            app + "-impersonation-proxy-load-balancer",
			ClusterIPService:               app + "-impersonation-proxy-cluster-ip",
			GeneratedCertificateSecret:     app + "-impersonation-proxy-tls-serving-certificate",
			GeneratedCASecret:              app + "-impersonation-proxy-ca-certificate",
			LastKnownGoodCertificateSecret: app + "-impersonation-proxy-last-known-good-certificate",
			RevisionsConfigMap:             app + "-revisions",
			ServiceAccount:                 app,
		}
	}
	for _, test := range []struct {
		name      string
		issuer    *configv1alpha1.CredentialIssuer
		want      configv1alpha1.ObjectNames
		published bool
	}{
		{"takes what the agent publishes", issuerNamed("x-config", &own), own, true},
		{
			"takes Pinniped's names where none are published", issuerNamed("pinniped-concierge-config", nil),
			shipped("pinniped-concierge"), false,
		},
		{"goes by the name of the application", issuerNamed("second-config", nil), shipped("second"), false},
		{"takes Pinniped's application for any other name", issuerNamed("issuer", nil), shipped("pinniped-concierge"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, published := discovery.Objects(test.issuer, "ns")
			if diff := cmp.Diff(test.want, got); diff != "" || published != test.published {
				t.Errorf("published %v (-want +got):\n%s", published, diff)
			}
		})
	}
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	issuer := issuerNamed("x-config", nil)
	issuer.Spec.ImpersonationProxy.ExternalEndpoint = "proxy.example.com:8443"
	issuer.Spec.ImpersonationProxy.Service.LoadBalancerIP = "192.0.2.1"
	issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
		DNSNames:    []string{"Localhost.", "*.example.com"},
		IPAddresses: []string{"127.0.0.1", "::1"},
	}
	issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
		{Frontend: &configv1alpha1.CredentialIssuerFrontend{
			ImpersonationProxyInfo: &configv1alpha1.ImpersonationProxyInfo{Endpoint: "https://localhost:8443"},
		}},
	}
	issuer.Status.Revisions = []configv1alpha1.RevisionStatus{
		{Endpoint: "https://before.example.com", Names: []string{"before.example.com", "localhost"}},
	}
	balancer := &corev1.Service{
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeLoadBalancer,
			ClusterIP:  "10.0.0.1",
			ClusterIPs: []string{"10.0.0.1"},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{Hostname: "lb.example.net"}, {IP: "2001:db8::7"}},
		}},
	}
	inside := &corev1.Service{
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.0.0.1",
			ClusterIPs: []string{"10.0.0.1", "fd00::1"},
		},
	}
	always := []string{
		"*.example.com",
		"127.0.0.1",
		"192.0.2.1:443",
		"::1",
		"before.example.com",
		"before.example.com:443",
		"localhost",
		"localhost:8443",
		"proxy.example.com:8443",
	}
	for _, test := range []struct {
		name    string
		service *corev1.Service
		want    []string
	}{
		{"has the names of status, spec and certificate", nil, always},
		{
			"has the addresses of a load balancer, and not the cluster IPs behind it", balancer,
			append([]string{"[2001:db8::7]:443", "lb.example.net:443"}, always...),
		},
		{
			"has the cluster IPs of a Service of that type", inside,
			append([]string{"10.0.0.1:443", "[fd00::1]:443"}, always...),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := discovery.Endpoint(issuer, test.service, "")
			if got.URL != "https://localhost:8443" {
				t.Errorf("the URL is %q", got.URL)
			}
			seen := map[string]bool{}
			for _, name := range got.Names {
				seen[name] = true
			}
			want := map[string]bool{}
			for _, name := range test.want {
				want[name] = true
			}
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
	if got := discovery.Endpoint(issuer, nil, "https://other.example.com"); got.URL != "https://other.example.com" {
		t.Errorf("a given URL became %q", got.URL)
	}
}

// oneService has a single Service.
type oneService struct {
	namespace, name string
	err             error
}

func (s oneService) Service(_ context.Context, namespace, name string) (*corev1.Service, error) {
	if s.err != nil {
		return nil, s.err
	}
	if namespace != s.namespace || name != s.name {
		return nil, discovery.ErrNotFound
	}
	return &corev1.Service{}, nil
}

func (oneService) AgentNamespace(context.Context) (string, error) { return "found", nil }

func TestFindService(t *testing.T) {
	t.Parallel()
	renamed := &configv1alpha1.ObjectNames{Namespace: "own", LoadBalancerService: "lb", ClusterIPService: "ip"}
	typed := func(issuer *configv1alpha1.CredentialIssuer, kind configv1alpha1.ImpersonationProxyServiceType) *configv1alpha1.CredentialIssuer {
		issuer.Spec.ImpersonationProxy.Service.Type = kind
		return issuer
	}
	off := issuerNamed("pinniped-concierge-config", nil)
	off.Spec.ImpersonationProxy.Mode = configv1alpha1.ImpersonationProxyModeDisabled
	for _, test := range []struct {
		name      string
		issuer    *configv1alpha1.CredentialIssuer
		namespace string
		cluster   oneService
		found     bool
		missing   string
		err       error
	}{
		{
			name: "finds a renamed one", issuer: issuerNamed("x", renamed), cluster: oneService{namespace: "own", name: "lb"},
			found: true,
		},
		{
			name: "goes by the type", issuer: typed(issuerNamed("x", renamed), "ClusterIP"),
			cluster: oneService{namespace: "own", name: "ip"}, found: true,
		},
		{
			name: "needs none of type None", issuer: typed(issuerNamed("x", renamed), "None"),
			cluster: oneService{err: errors.New("asked")},
		},
		{name: "needs none when the proxy is off", issuer: off, cluster: oneService{err: errors.New("asked")}},
		{
			name: "takes Pinniped's name in the namespace that the cluster tells", issuer: issuerNamed(
				"pinniped-concierge-config", nil,
			),
			cluster: oneService{namespace: "found", name: "pinniped-concierge-impersonation-proxy-load-balancer"}, found: true,
		},
		{
			name: "or in a given one", issuer: issuerNamed("pinniped-concierge-config", nil), namespace: "given",
			cluster: oneService{namespace: "given", name: "pinniped-concierge-impersonation-proxy-load-balancer"}, found: true,
		},
		{
			name: "says that it guessed", issuer: issuerNamed("x-config", nil),
			missing: `there is no Service "found/x-impersonation-proxy-load-balancer" (the name that Pinniped uses; the agent publishes no other name), so its addresses are not known`,
		},
		{
			name: "says that one is gone", issuer: issuerNamed("x", renamed),
			missing: `there is no Service "own/lb", so its addresses are not known`,
		},
		{
			name: "returns any other error", issuer: issuerNamed("x", renamed), cluster: oneService{err: discovery.ErrForbidden},
			err: discovery.ErrForbidden,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			service, missing, err := discovery.FindService(t.Context(), test.cluster, test.issuer, test.namespace)
			if (service != nil) != test.found || missing != test.missing || !errors.Is(err, test.err) {
				t.Errorf("got %v, %q, %v", service, missing, err)
			}
		})
	}
}

func TestSameServer(t *testing.T) {
	t.Parallel()
	asked := map[string]int{}
	hosts := map[string]string{
		"proxy.example.com": "192.0.2.1",
		"alias.example.com": "::ffff:192.0.2.1",
		"other.example.com": "192.0.2.2",
	}
	resolve := func(_ context.Context, host string) ([]netip.Addr, error) {
		asked[host]++
		if addr, ok := hosts[host]; ok {
			return []netip.Addr{netip.MustParseAddr(addr)}, nil
		}
		return nil, errors.New("no such host")
	}
	same := discovery.SameServer(t.Context(), resolve, "https://proxy.example.com:8443")
	for range 2 {
		for host, want := range map[string][2]bool{
			"alias.example.com": {true, true}, "other.example.com": {false, true}, "gone.example.com": {false, false},
		} {
			if is, known := same(host); is != want[0] || known != want[1] {
				t.Errorf("%s: same %v, known %v", host, is, known)
			}
		}
	}
	for host, times := range asked {
		if times != 1 {
			t.Errorf("%s was asked for %d times", host, times)
		}
	}
	if is, known := discovery.SameServer(
		t.Context(),
		resolve,
		"https://gone.example.com",
	)(
		"alias.example.com",
	); is ||
		known {
		t.Errorf("of a server without an address: same %v, known %v", is, known)
	}
}
