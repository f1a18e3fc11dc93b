package plan

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

type (
	proxySpec   = configv1alpha1.ImpersonationProxySpec
	serviceSpec = configv1alpha1.ImpersonationProxyServiceSpec
	tlsSpec     = configv1alpha1.ImpersonationProxyTLSSpec
)

func issuerWith(spec proxySpec) *configv1alpha1.CredentialIssuer {
	return &configv1alpha1.CredentialIssuer{
		ObjectMeta: metav1.ObjectMeta{Name: "pinniped-concierge-config", ResourceVersion: "7"},
		Spec:       configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &spec},
	}
}

func TestClientNames(t *testing.T) {
	t.Parallel()
	balancer := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lb"},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "203.0.113.1"}, {Hostname: "lb.example.com", IP: "203.0.113.2"},
		}}},
	}
	cluster := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ip"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.0.0.1", "fd00::1"}},
	}
	headless := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{corev1.ClusterIPNone}}}
	for _, tt := range []struct {
		name    string
		spec    proxySpec
		change  func(*proxySpec)
		service *corev1.Service
		want    []string
	}{
		{
			name: "takes every ingress of the load balancer", spec: proxySpec{}, service: balancer,
			want: []string{"203.0.113.1", "lb.example.com", "203.0.113.2"},
		},
		{
			name: "takes the ingress also next to an external endpoint", spec: proxySpec{
				ExternalEndpoint: "a.example.com",
			}, service: balancer,
			want: []string{"203.0.113.1", "lb.example.com", "203.0.113.2"},
		},
		{
			name: "takes the wanted load balancer IP", spec: proxySpec{Service: serviceSpec{LoadBalancerIP: "203.0.113.9"}},
			want: []string{"203.0.113.9"},
		},
		{
			name: "leaves out the ingress that a new load balancer IP replaces", spec: proxySpec{}, service: balancer,
			change: func(s *proxySpec) { s.Service.LoadBalancerIP = "203.0.113.9" }, want: []string{"203.0.113.9"},
		},
		{
			name: "takes the cluster IPs", spec: proxySpec{Service: serviceSpec{Type: "ClusterIP"}}, service: cluster,
			want: []string{"10.0.0.1", "fd00::1"},
		},
		{
			name: "leaves out cluster IPs next to an external endpoint",
			spec: proxySpec{ExternalEndpoint: "a.example.com", Service: serviceSpec{Type: "ClusterIP"}}, service: cluster,
		},
		{name: "knows headless Services", spec: proxySpec{Service: serviceSpec{Type: "ClusterIP"}}, service: headless},
		{
			name: "takes a load balancer IP whatever the type is",
			spec: proxySpec{Service: serviceSpec{Type: "None", LoadBalancerIP: "203.0.113.9"}}, want: []string{"203.0.113.9"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wanted := tt.spec
			if tt.change != nil {
				tt.change(&wanted)
			}
			var got []string
			st := &Snapshot{Issuer: issuerWith(tt.spec), Service: tt.service}
			for _, name := range serving.ClientNames(wanted, st.serviceFor(&wanted)) {
				got = append(got, name.Value)
				if name.Source == "" {
					t.Errorf("%s has no source", name.Value)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
}

func ptr[T any](value T) *T { return &value }

func TestDecideBundle(t *testing.T) {
	t.Parallel()
	flag, inSpec, inSecret := iptlstest.NewCA(t, "flag").
		CertPEM(),
		iptlstest.NewCA(t, "spec").
			CertPEM(),
		iptlstest.NewCA(t, "secret").
			CertPEM()
	encoded := base64.StdEncoding.EncodeToString(inSpec)
	for _, tt := range []struct {
		name   string
		req    Request
		spec   *tlsSpec
		secret []byte
		want   []byte
		stored string
	}{
		{
			name: "takes the flag first", req: Request{Bundle: flag, BundleGiven: true},
			spec: &tlsSpec{CertificateAuthorityData: encoded}, secret: inSecret, want: flag,
			stored: base64.StdEncoding.EncodeToString(flag),
		},
		{
			name: "keeps what the spec has", spec: &tlsSpec{CertificateAuthorityData: encoded}, secret: inSecret, want: inSpec,
			stored: encoded,
		},
		{name: "takes the Secret's", secret: inSecret, want: inSecret},
		{name: "takes none", want: nil},
		{
			name: "takes the Secret's before the spec's when told so", req: Request{BundleFromSecret: true},
			spec: &tlsSpec{CertificateAuthorityData: encoded}, secret: inSecret, want: inSecret,
		},
		{
			name: "does not rewrite the same bundle",
			req:  Request{Bundle: append([]byte("# x\n"), inSpec...), BundleGiven: true},
			spec: &tlsSpec{CertificateAuthorityData: encoded}, want: inSpec, stored: encoded,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			secret := &corev1.Secret{Data: map[string][]byte{}}
			if tt.secret != nil {
				secret.Data["ca.crt"] = tt.secret
			}
			tt.req.Secret = "proxy-tls"
			issuer := issuerWith(proxySpec{Mode: "enabled", TLS: tt.spec})
			st := &Snapshot{Issuer: issuer, Secret: secret, Now: time.Now()}
			p := Evaluate(tt.req, st, tt.req.On(issuer.Spec.ImpersonationProxy))
			if string(p.Bundle) != string(tt.want) {
				t.Errorf("published: %s", p.Bundle)
			}
			if p.Wanted.TLS.CertificateAuthorityData != tt.stored {
				t.Errorf("stored: %s", p.Wanted.TLS.CertificateAuthorityData)
			}
		})
	}
}

func TestReadStatus(t *testing.T) {
	t.Parallel()
	bundle := iptlstest.NewCA(t, "CA").CertPEM()
	warned := iptlstest.ProxyReport("https://a.example.com", bundle)
	warned.Message += ", but: ExpiresSoon: tomorrow"
	warned.Findings = []configv1alpha1.StrategyFinding{
		{Code: "ExpiresSoon", Severity: configv1alpha1.FindingWarning, Message: "tomorrow"},
	}
	unlisted := warned
	unlisted.Findings = nil
	for _, tt := range []struct {
		name     string
		strategy *configv1alpha1.CredentialIssuerStrategy
		external string
		pinniped bool // an agent without names and findings
		want     AgentView
	}{
		{name: "waits for the first report", want: AgentView{Problem: "the agent has not reported anything about the " +
			"impersonation proxy yet"}},
		{
			name: "tells what is wrong", strategy: ptr(iptlstest.FailedReport("Pending", "wait")),
			want: AgentView{Problem: "the agent reports Pending: wait"},
		},
		{
			name: "knows a proxy that is off", strategy: ptr(iptlstest.FailedReport("Disabled", "off")),
			want: AgentView{Disabled: true, Problem: "off"},
		},
		{
			name: "takes a success", strategy: ptr(iptlstest.ProxyReport("https://a.example.com", bundle)),
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}},
		},
		{
			name: "takes the external endpoint in another form", external: "A.example.com:443", strategy: ptr(
				iptlstest.ProxyReport("https://a.example.com", bundle),
			),
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}},
		},
		{
			name: "takes IPv6", external: "[2001:db8::7]:8443", strategy: ptr(
				iptlstest.ProxyReport("https://[2001:db8:0::7]:8443", bundle),
			),
			want: AgentView{At: Endpoint{"https://[2001:db8:0::7]:8443", "2001:db8:0::7", "8443"}},
		},
		{
			name: "wants the port", external: "a.example.com:8443", strategy: ptr(
				iptlstest.ProxyReport("https://a.example.com", bundle),
			),
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}, Problem: "the agent still " +
				"publishes the endpoint https://a.example.com"},
		},
		{
			name: "wants the bundle", strategy: ptr(iptlstest.ProxyReport("https://a.example.com", nil)),
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}, Problem: "the agent still " +
				"publishes another CA bundle: (none)"},
		},
		{
			name: "passes findings on", strategy: &warned,
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}, Findings: warned.Findings},
		},
		{
			name: "passes the whole message on of an agent that lists no findings", strategy: &unlisted, pinniped: true,
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}, Message: unlisted.Message},
		},
		{
			name: "takes no findings for none where the agent lists them", strategy: &unlisted,
			want: AgentView{At: Endpoint{"https://a.example.com", "a.example.com", "443"}},
		},
		{
			name: "refuses what is no URL", strategy: ptr(iptlstest.ProxyReport("a.example.com", bundle)),
			want: AgentView{Problem: `the published endpoint "a.example.com" is not an https URL`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			issuer := issuerWith(proxySpec{})
			if !tt.pinniped {
				issuer.Status.Objects = &configv1alpha1.ObjectNames{}
			}
			if tt.strategy != nil {
				issuer.Status.Strategies = append(issuer.Status.Strategies, *tt.strategy)
			}
			got := ReadStatus(issuer, proxySpec{ExternalEndpoint: tt.external}, bundle)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(AgentView{}, Endpoint{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOtherManagers(t *testing.T) {
	t.Parallel()
	fields := func(json string) *metav1.FieldsV1 { return metav1.NewFieldsV1(json) }
	endpointFields := fields(`{"f:spec":{"f:impersonationProxy":{"f:externalEndpoint":{}}}}`)
	issuer := issuerWith(proxySpec{})
	issuer.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: endpointFields},
		{Manager: "argocd-controller", Operation: metav1.ManagedFieldsOperationApply, FieldsV1: endpointFields},
		{Manager: "kubectl-edit", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: endpointFields},
		{
			Manager:   "helm",
			Operation: metav1.ManagedFieldsOperationUpdate,
			FieldsV1:  fields(`{"f:spec":{"f:impersonationProxy":{"f:mode":{}}}}`),
		},
		{Manager: "agent", Operation: metav1.ManagedFieldsOperationApply, Subresource: "status", FieldsV1: endpointFields},
		{Manager: "broken", Operation: metav1.ManagedFieldsOperationApply, FieldsV1: fields("{")},
	}
	if got := OtherManagers(
		issuer,
		[]FieldChange{{Field: fieldEndpoint}},
	); !cmp.Equal(
		got,
		[]string{"argocd-controller"},
	) {
		t.Errorf("for the endpoint: %q", got)
	}
	if got := OtherManagers(issuer, []FieldChange{{Field: FieldSecret}}); len(got) > 0 {
		t.Errorf("for the Secret: %q", got)
	}
	if !ownsField(issuer, fieldEndpoint) || ownsField(issuer, fieldLoadBalancerIP) {
		t.Error("what we own is read wrongly")
	}
}
