package serving

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestClientNames(t *testing.T) {
	t.Parallel()
	const (
		ipSource      = "spec.impersonationProxy.service.loadBalancerIP"
		ingressSource = "Service ns/s status.loadBalancer.ingress"
	)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.0.0.1", "fd00::1"}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{Hostname: "lb.example.com"}, {IP: "192.0.2.1"},
		}}},
	}
	for _, test := range []struct {
		name     string
		kind     configv1alpha1.ImpersonationProxyServiceType
		ip       string
		endpoint string
		service  *corev1.Service
		want     []certs.Name
	}{
		{name: "finds none without a Service", kind: "LoadBalancer"},
		{name: "takes every address of the load balancer", service: service, want: []certs.Name{
			{Value: "lb.example.com", Source: ingressSource}, {Value: "192.0.2.1", Source: ingressSource},
		}},
		{name: "only warns of the load balancer's addresses behind an endpoint", kind: "LoadBalancer", endpoint: "a.example", service: service, want: []certs.Name{
			{
				Value: "lb.example.com", Source: ingressSource, Advisory: true,
			}, {Value: "192.0.2.1", Source: ingressSource, Advisory: true},
		}},
		{name: "only warns of the load balancer IP behind an endpoint, too", kind: "LoadBalancer", ip: "192.0.2.1", endpoint: "a.example", service: service, want: []certs.Name{
			{Value: "192.0.2.1", Source: ipSource, Advisory: true}, {
				Value: "lb.example.com", Source: ingressSource, Advisory: true,
			},
		}},
		{name: "takes cluster IPs without an endpoint", kind: "ClusterIP", service: service, want: []certs.Name{
			{Value: "10.0.0.1", Source: "Service ns/s spec.clusterIPs"}, {Value: "fd00::1", Source: "Service ns/s " +
				"spec.clusterIPs"},
		}},
		{name: "leaves cluster IPs out behind an endpoint", kind: "ClusterIP", endpoint: "a.example", service: service},
		{
			name: "takes the load balancer IP whatever the type is", kind: "None", ip: "192.0.2.9",
			want: []certs.Name{{Value: "192.0.2.9", Source: ipSource}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := ClientNames(configv1alpha1.ImpersonationProxySpec{
				ExternalEndpoint: test.endpoint,
				Service:          configv1alpha1.ImpersonationProxyServiceSpec{Type: test.kind, LoadBalancerIP: test.ip},
			}, test.service)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
