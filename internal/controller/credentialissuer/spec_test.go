package credentialissuer

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

type (
	spec = configv1alpha1.ImpersonationProxySpec
	svc  = configv1alpha1.ImpersonationProxyServiceSpec
)

func TestValidate(t *testing.T) {
	t.Parallel()
	const prefix = "could not load CredentialIssuer spec.impersonationProxy: "
	service := func(kind configv1alpha1.ImpersonationProxyServiceType, ip string) configv1alpha1.ImpersonationProxyServiceSpec {
		return configv1alpha1.ImpersonationProxyServiceSpec{Type: kind, LoadBalancerIP: ip}
	}
	for _, test := range []struct {
		name string
		spec *spec
		want string
	}{
		{"refuses an empty spec", nil, "could not load CredentialIssuer: spec.impersonationProxy is nil"},
		{"ignores all else when disabled", &spec{Mode: "disabled", ExternalEndpoint: "https://x"}, ""},
		{"defaults the Service's type", &spec{Mode: "auto"}, ""},
		{"refuses unknown modes", &spec{Mode: "x"}, prefix + `invalid proxy mode "x" (expected auto, disabled, or enabled)`},
		{
			"refuses unknown Service types", &spec{Mode: "enabled", Service: service("x", "")},
			prefix + `invalid service type "x" (expected None, LoadBalancer, or ClusterIP)`,
		},
		{
			"refuses load balancer addresses that are none", &spec{Mode: "enabled", Service: service("ClusterIP", "1.2.3")},
			prefix + `invalid LoadBalancerIP "1.2.3"`,
		},
		{"takes IPv6 load balancer addresses", &spec{Mode: "enabled", Service: service("LoadBalancer", "fd00::1")}, ""},
		{
			"refuses networks that are none",
			&spec{Mode: "enabled", Service: svc{LoadBalancerSourceRanges: []string{"10.0.0.0/8", "10.0.0.0"}}},
			prefix + `invalid service.loadBalancerSourceRanges[1] "10.0.0.0": write a network as ADDRESS/BITS`,
		},
		{
			"refuses networks with leading zeros",
			&spec{Mode: "enabled", Service: svc{LoadBalancerSourceRanges: []string{"010.0.0.0/8"}}},
			prefix + `invalid service.loadBalancerSourceRanges[0] "010.0.0.0/8"`,
		},
		{
			"refuses an address within a network",
			&spec{Mode: "enabled", Service: svc{LoadBalancerSourceRanges: []string{"10.1.2.3/8"}}},
			prefix + `invalid service.loadBalancerSourceRanges[0] "10.1.2.3/8": that is an address within a network (write "10.0.0.0/8" for the network)`,
		},
		{
			"takes IPv6 networks", &spec{Mode: "enabled", Service: svc{LoadBalancerSourceRanges: []string{"2001:db8::/32"}}}, "",
		},
		{
			"refuses load balancer classes that are none", &spec{Mode: "enabled", Service: svc{LoadBalancerClass: "a b"}},
			prefix + `invalid service.loadBalancerClass "a b"`,
		},
		{
			"needs an endpoint without a Service", &spec{Mode: "enabled", Service: service("None", "")},
			prefix + "externalEndpoint must be set when service.type is None",
		},
		{
			"refuses URLs", &spec{Mode: "enabled", ExternalEndpoint: "https://1.2.3.4:5678"},
			prefix + `invalid ExternalEndpoint "https://1.2.3.4:5678": endpoint "https://1.2.3.4:5678" is a URL`,
		},
		{
			"refuses ports that are none", &spec{Mode: "enabled", ExternalEndpoint: "a.example:0"},
			prefix + `invalid ExternalEndpoint "a.example:0": endpoint "a.example:0": port "0" is not a number`,
		},
		{
			"refuses hosts that are none", &spec{Mode: "enabled", ExternalEndpoint: "a_b:1"},
			prefix + `invalid ExternalEndpoint "a_b:1": endpoint "a_b:1": host "a_b" is not a valid DNS name or IP address`,
		},
		{
			"needs a Secret in tls", &spec{Mode: "enabled", TLS: &configv1alpha1.ImpersonationProxyTLSSpec{}},
			prefix + "tls.secretName must be set when tls is set",
		},
		{
			"takes tls without a Secret for a transition to the generated certificate",
			&spec{Mode: "enabled", TLS: &configv1alpha1.ImpersonationProxyTLSSpec{CATransition: "DualTrust"}}, "",
		},
		{
			"refuses Secrets that are none",
			&spec{Mode: "enabled", TLS: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "a/b/c"}},
			prefix + `invalid tls.secretName: "a/b/c" is not NAMESPACE/NAME: "b/c" cannot be the name of a Secret`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := serving.Resolve(
				&configv1alpha1.CredentialIssuer{Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: test.spec}}, "ns",
			)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got %v, want none", err)
			case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)):
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func loadBalancer(ingress ...corev1.LoadBalancerIngress) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lb"},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
	}
}

func clusterIP(ips ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ip"},
		Spec:       corev1.ServiceSpec{ClusterIPs: ips},
	}
}

// sansOf returns these DNS names and IP addresses.
func sansOf(names ...string) (all certs.SANs) {
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			all.IPAddresses = append(all.IPAddresses, ip)
		} else {
			all.DNSNames = append(all.DNSNames, name)
		}
	}
	return all
}

func TestChooseEndpoint(t *testing.T) {
	t.Parallel()
	type ingress = corev1.LoadBalancerIngress
	lb := spec{Service: configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeLoadBalancer}}
	ip := spec{Service: configv1alpha1.ImpersonationProxyServiceSpec{Type: configv1alpha1.ServiceTypeClusterIP}}
	external := func(endpoint string) spec { s := lb; s.ExternalEndpoint = endpoint; return s }
	for _, test := range []struct {
		name    string
		spec    spec
		service *corev1.Service
		url     string
		sans    certs.SANs
		err     string
	}{
		{
			name: "takes the external endpoint before the Service", spec: external("a.example"),
			service: loadBalancer(ingress{IP: "1.2.3.4"}, ingress{Hostname: "LB.example."}),
			url:     "https://a.example",
			sans:    sansOf("a.example", "lb.example", "1.2.3.4"),
		},
		{
			name: "keeps a port", spec: external("a.example:8443"), url: "https://a.example:8443",
			sans: sansOf("a.example"),
		},
		{
			name: "leaves out port 443", spec: external("a.example:443"), url: "https://a.example",
			sans: sansOf("a.example"),
		},
		{
			name: "brackets IPv6", spec: external("fd00::1"), url: "https://[fd00::1]",
			sans: sansOf("fd00::1"),
		},
		{
			name: "brackets IPv6 with a port", spec: external("[fd00::1]:99"), url: "https://[fd00::1]:99",
			sans: sansOf("fd00::1"),
		},
		{
			name: "prefers a hostname anywhere in the ingresses", spec: lb,
			service: loadBalancer(ingress{IP: "1.2.3.4"}, ingress{Hostname: "lb.example"}),
			url:     "https://lb.example",
			sans:    sansOf("lb.example", "1.2.3.4"),
		},
		{
			name: "takes the first valid IP", spec: lb,
			service: loadBalancer(ingress{IP: "x"}, ingress{IP: "fd00::2"}),
			url:     "https://[fd00::2]", sans: sansOf("fd00::2"),
		},
		{
			name: "takes all addresses of a dual-stack load balancer", spec: lb,
			service: loadBalancer(
				ingress{IP: "fd00::2"}, ingress{IP: "1.2.3.4"},
				ingress{IP: "1.2.3.4"},
			),
			url: "https://[fd00::2]", sans: sansOf("fd00::2", "1.2.3.4"),
		},
		{
			name: "has the address that the load balancer is to get", service: loadBalancer(),
			spec: func() spec { s := external("a.example"); s.Service.LoadBalancerIP = "192.0.2.1"; return s }(),
			url:  "https://a.example",
			sans: sansOf("a.example", "192.0.2.1"),
		},
		{
			name: "brackets an IPv6 cluster IP", spec: ip, service: clusterIP("fd00::7"), url: "https://[fd00::7]",
			sans: sansOf("fd00::7"),
		},
		{name: "waits without a Service", spec: lb, err: serving.ErrPending.Error()},
		{name: "waits without an ingress", spec: lb, service: loadBalancer(), err: serving.ErrPending.Error()},
		{
			name: "waits for an empty ingress", spec: lb, service: loadBalancer(ingress{}),
			err: serving.ErrPending.Error(),
		},
		{
			name: "says that no ingress is usable", spec: lb, service: loadBalancer(ingress{IP: "x"}),
			err: "could not find valid IP addresses or hostnames from load balancer ns/lb",
		},
		{
			name: "takes all cluster IPs of a dual-stack Service", spec: ip, service: clusterIP("10.0.0.1", "fd00::1"),
			url: "https://10.0.0.1", sans: sansOf("10.0.0.1", "fd00::1"),
		},
		{name: "waits for a cluster IP", spec: ip, service: clusterIP("None"), err: serving.ErrPending.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			at, err := serving.Desired{ImpersonationProxySpec: test.spec}.Endpoint(test.service)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("got %v, want %s", err, test.err)
				}
				if errors.Is(err, serving.ErrPending) != (test.err == serving.ErrPending.Error()) {
					t.Errorf("%v: pending or not is wrong", err)
				}
				return
			}
			must.Do(t, err)
			if at.URL() != test.url {
				t.Errorf("got URL %s, want %s", at.URL(), test.url)
			}
			if diff := cmp.Diff(test.sans, serving.GeneratedNames(at.Host, test.spec, test.service)); diff != "" {
				t.Errorf("SANs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMergeStrategies(t *testing.T) {
	t.Parallel()
	then, now := metav1.Unix(1000, 0), metav1.Unix(2000, 0)
	want := []configv1alpha1.CredentialIssuerStrategy{clusterSigningOff(), proxyStrategy("Success", "Listening", "m")}

	first, changed := mergeStrategies(nil, want, then)
	if !changed || len(first) != 2 || !first[1].LastUpdateTime.Equal(&then) {
		t.Fatalf("first report: changed %v, %+v", changed, first)
	}
	if again, changed := mergeStrategies(first, want, now); changed || !again[1].LastUpdateTime.Equal(&then) {
		t.Errorf("the same again: changed %v, %+v", changed, again)
	}
	want[1].Message = "other"
	second, changed := mergeStrategies(first, want, now)
	if !changed || !second[1].LastUpdateTime.Equal(&now) || !second[0].LastUpdateTime.Equal(&then) {
		t.Errorf("one changed: changed %v, %+v", changed, second)
	}
	third := append(second, configv1alpha1.CredentialIssuerStrategy{Type: configv1alpha1.StrategyServiceAccountToken})
	if got, changed := mergeStrategies(third, want, now); !changed || len(got) != 2 {
		t.Errorf("one gone: changed %v, %+v", changed, got)
	}
	third[2].Type = "of another writer"
	if got, changed := mergeStrategies(third, want, now); changed {
		t.Errorf("one of another writer: %+v", got)
	}
}

// noNodes is a client without permission to list nodes.
type noNodes struct{ client.Reader }

var errForbidden = errors.New("nodes is forbidden")

func (noNodes) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errForbidden
}

// TestTurnedOff shows that only mode auto lists nodes.
func TestTurnedOff(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Live: noNodes{}, Clock: clock.RealClock{}}
	for mode, want := range map[configv1alpha1.ImpersonationProxyMode]struct {
		off *configv1alpha1.StrategyFinding
		err error
	}{
		configv1alpha1.ImpersonationProxyModeDisabled: {
			off: &configv1alpha1.StrategyFinding{
				Code: configv1alpha1.CodeDisabledBySpec, Severity: "Info", Message: messageDisabled,
			},
		},
		configv1alpha1.ImpersonationProxyModeEnabled: {},
		configv1alpha1.ImpersonationProxyModeAuto:    {err: errForbidden},
	} {
		off, unreadable, err := r.turnedOff(t.Context(), mode, &configv1alpha1.CredentialIssuer{})
		if !cmp.Equal(off, want.off) || unreadable != nil || !errors.Is(err, want.err) {
			t.Errorf("mode %s: got %v, %v and %v, want %v and %v", mode, off, unreadable, err, want.off, want.err)
		}
	}
}

// TestNodesThatCannotBeListed shows that the proxy stays as it was: on this replica, or, at startup, by the status.
func TestNodesThatCannotBeListed(t *testing.T) {
	t.Parallel()
	listening := proxyStrategy(configv1alpha1.StrategySuccess, configv1alpha1.ReasonListening, messageListening)
	listening.Frontend = frontend(serving.Endpoint{Host: "a.example.com", Port: "443"}, nil)
	off := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonDisabled, messageAutoOff)
	failed := proxyStrategy(configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup, "error fetching nodes")
	for _, test := range []struct {
		name   string
		phase  int32
		status []configv1alpha1.CredentialIssuerStrategy
		on     bool
		known  bool
	}{
		{name: "stays on", phase: phaseOn, known: true, on: true},
		{name: "stays off", phase: phaseOff, known: true},
		{name: "starts as the others run", status: []configv1alpha1.CredentialIssuerStrategy{listening}, known: true, on: true},
		{name: "starts off as the others are", status: []configv1alpha1.CredentialIssuerStrategy{off}, known: true},
		{name: "fails while nobody knows", status: []configv1alpha1.CredentialIssuerStrategy{failed}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &Reconciler{Live: noNodes{}, Clock: clock.RealClock{}}
			r.phase.Store(test.phase)
			issuer := &configv1alpha1.CredentialIssuer{}
			issuer.Status.Strategies = test.status
			off, unreadable, err := r.turnedOff(t.Context(), configv1alpha1.ImpersonationProxyModeAuto, issuer)
			if known := err == nil; known != test.known || known && (off == nil) != test.on {
				t.Errorf("got %v, %v", off, err)
			}
			if test.known && (unreadable == nil || unreadable.Code != configv1alpha1.CodeNodesUnreadable ||
				unreadable.Severity != configv1alpha1.FindingWarning) {
				t.Errorf("the status does not tell it: %+v", unreadable)
			}
		})
	}
}

// TestReplicasWithoutNodes runs a proxy in mode auto and then revokes the permission to list nodes: the leader keeps
// serving, a new replica becomes ready, and the status keeps the address.
func TestReplicasWithoutNodes(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	first := startReplica(t, cluster, "default", true)
	must.Do(t, first.live.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}))
	first.create(t, spec{Mode: "auto", ExternalEndpoint: "a.example.com", Service: svc{Type: "None"}})
	first.waitFor(t, "Listening", messageListening)
	first.leading.Store(false)
	second := startReplicaWith(t, cluster, "default", "second", true, func(r *Reconciler) {
		r.Live = noNodes{r.Live}
	})
	strategy := second.waitForCodes(t, "Listening", "nodes is forbidden", configv1alpha1.CodeNodesUnreadable)
	if strategy.Frontend == nil || second.Ready() != nil {
		t.Errorf("ready: %v; the status is %+v", second.Ready(), strategy)
	}
}
