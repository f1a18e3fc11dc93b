package manifest

import (
	stdcmp "cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func run(t *testing.T, w *iptlstest.World, change func(*Options)) *iptlstest.Run {
	t.Helper()
	r := &iptlstest.Run{}
	o := &Options{Session: sessiontest.New(w, r), For: forCertManager, KeyAlgorithm: algorithmECDSA}
	o.Session.Output = "yaml"
	change(o)
	return r.Do(t.Context(), o)
}

const certificateOfNames = `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: proxy-tls, namespace: pinniped-concierge}
spec:
  secretName: proxy-tls
  dnsNames: [xn--mnchen-3ya.example.com]
  duration: 2160h
  renewBefore: 720h
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  usages: [digital signature, server auth]
  issuerRef: {group: cert-manager.io, kind: ClusterIssuer, name: company-ca}
`

const certificateOfAddresses = `
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: wildcard, namespace: shared}
spec:
  secretName: wildcard
  dnsNames: [lb.example.com]
  ipAddresses: [192.0.2.1, "2001:db8::1"]
  duration: 2160h
  renewBefore: 720h
  privateKey: {algorithm: RSA, size: 3072, rotationPolicy: Always}
  usages: [digital signature, key encipherment, server auth]
  issuerRef: {group: awspca.cert-manager.io, kind: AWSPCAClusterIssuer, name: pca}
`

const routeByContour = `
apiVersion: projectcontour.io/v1
kind: HTTPProxy
metadata: {name: impersonation-proxy, namespace: pinniped-concierge}
spec:
  virtualhost: {fqdn: proxy.example.com, tls: {passthrough: true}}
  tcpproxy:
    services: [{name: the-cluster-ip, port: 443}]
`

const routeByGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: impersonation-proxy, namespace: pinniped-concierge}
spec:
  parentRefs: [{name: public, namespace: gateways}]
  hostnames: [proxy.example.com]
  rules:
  - backendRefs: [{name: the-cluster-ip, port: 443}]
`

const routeByNginx = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: impersonation-proxy
  namespace: pinniped-concierge
  annotations:
    nginx.ingress.kubernetes.io/ssl-passthrough: "true"
    nginx.ingress.kubernetes.io/backend-protocol: HTTPS
spec:
  ingressClassName: nginx
  rules:
  - host: proxy.example.com
    http:
      paths:
      - path: /
        pathType: Prefix
        backend: {service: {name: the-cluster-ip, port: {number: 443}}}
`

func TestManifest(t *testing.T) {
	t.Parallel()
	spec := func(w *iptlstest.World) *configv1alpha1.ImpersonationProxySpec {
		return w.Cluster.Issuer.Spec.ImpersonationProxy
	}
	behindIngress := func(w *iptlstest.World) {
		spec(w).ExternalEndpoint, spec(w).Service.Type = "proxy.example.com", configv1alpha1.ServiceTypeClusterIP
		w.Cluster.Issuer.Status.Objects = &configv1alpha1.ObjectNames{
			Namespace: "pinniped-concierge", ClusterIPService: "the-cluster-ip",
		}
	}
	balanced := func(w *iptlstest.World, external string) {
		spec(w).ExternalEndpoint, spec(w).Service.Type = external, configv1alpha1.ServiceTypeLoadBalancer
		w.Cluster.Issuer.Status.Strategies = nil
		w.Cluster.PutService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "pinniped-concierge-impersonation-proxy-load-balancer"},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{Hostname: "lb.example.com"}, {IP: "192.0.2.1"}, {IP: "2001:db8::1"},
			}}},
		})
	}
	for _, tt := range []struct {
		name   string
		world  func(*iptlstest.World)
		change func(*Options)
		want   string
		says   []string
	}{
		{
			name:  "a Certificate has the external endpoint in the form of the wire, and not the load balancer behind it",
			world: func(w *iptlstest.World) { balanced(w, "") },
			change: func(o *Options) {
				o.Issuer, o.ExternalEndpoint = "clusterissuer/company-ca", "münchen.example.com:8443"
			},
			want: certificateOfNames, says: []string{"Omitted lb.example.com", "münchen.example.com:8443"},
		},
		{
			name:  "a Certificate has every address of the load balancer that clients use",
			world: func(w *iptlstest.World) { balanced(w, "") },
			change: func(o *Options) {
				o.Issuer, o.Secret, o.KeyAlgorithm = "AWSPCAClusterIssuer.awspca.cert-manager.io/pca", "shared/wildcard", algorithmRSA
			},
			want: certificateOfAddresses,
		},
		{name: "a route by Contour", world: behindIngress, change: func(o *Options) { o.For = forContour }, want: routeByContour},
		{
			name: "a route by the Gateway API", world: behindIngress,
			change: func(o *Options) { o.For, o.Gateway = forGatewayAPI, "gateways/public" }, want: routeByGateway,
		},
		{name: "a route by ingress-nginx", world: behindIngress, change: func(o *Options) { o.For = forIngressNginx }, want: routeByNginx},
		{
			name: "a route says that its Service is still missing",
			world: func(w *iptlstest.World) {
				behindIngress(w)
				spec(w).Service.Type = configv1alpha1.ServiceTypeNone
			},
			change: func(o *Options) { o.For = forContour }, want: routeByContour,
			says: []string{"is None", "pinniped ip-tls set --service-type ClusterIP"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			spec(w).TLS = nil
			tt.world(w)
			r := run(t, w, tt.change)
			r.Check(t, 0, tt.says...)
			var got, want map[string]any
			if err := yaml.Unmarshal(r.Out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if len(w.Cluster.SecretsRead) > 0 {
				t.Errorf("it has read Secrets: %q", w.Cluster.SecretsRead)
			}
		})
	}
}

// TestManifestLeavesTheSecretInService checks that the manifest uses another Secret than the one in service, unless
// --secret names that.
func TestManifestLeavesTheSecretInService(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ inService, named, want, says string }{
		{"", "", "proxy-tls", ""},
		{"by-hand", "", "proxy-tls", `goes to Secret "proxy-tls". Secret "by-hand" stays in service`},
		{"proxy-tls", "", "proxy-tls-2", "pinniped ip-tls set --secret proxy-tls-2"},
		{"proxy-tls-9", "", "proxy-tls-10", "proxy-tls-9"},
		{"proxy-tls-new", "", "proxy-tls", "proxy-tls-new"},
		{"proxy-tls", "proxy-tls", "proxy-tls", `proxy-tls" is in service. As soon as you apply the manifest, cert-manager will replace its certificate`},
		{"proxy-tls", "other", "other", ""},
	} {
		w := iptlstest.New(t)
		proxy := w.Cluster.Issuer.Spec.ImpersonationProxy
		if proxy.TLS = nil; tt.inService != "" {
			proxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: tt.inService}
		}
		r := run(t, w, func(o *Options) {
			o.Issuer, o.Secret, o.ExternalEndpoint = "ClusterIssuer/ca", tt.named, "proxy.example.com"
		})
		if r.Check(t, 0, tt.says); tt.says == "" && strings.Contains(r.ErrOut.String(), "in service:") {
			t.Errorf("%+v: it says %s", tt, r.ErrOut.String())
		}
		var got struct {
			Spec struct {
				SecretName string `json:"secretName"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(r.Out.Bytes(), &got); err != nil || got.Spec.SecretName != tt.want {
			t.Errorf("%+v: got %q, %v", tt, got.Spec.SecretName, err)
		}
	}
}

// TestManifestOfACertificateInService checks that no name in service is dropped, and that a warning is printed before
// the Secret in service is overwritten.
func TestManifestOfACertificateInService(t *testing.T) {
	t.Parallel()
	const overwrites = `Secret "pinniped-concierge/proxy-tls" is in service. As soon as you apply the manifest, cert-manager will replace its certificate`
	serving := &configv1alpha1.ServingCertificateStatus{
		Source: configv1alpha1.ServingCertificateSecret, SecretName: "proxy-tls",
		DNSNames: []string{"proxy.example.com", "old.example.com"}, IPAddresses: []string{"127.0.0.1", "192.0.2.9"},
	}
	from := func(issuer string) map[string]string {
		return map[string]string{
			"cert-manager.io/certificate-name": "proxy-tls", "cert-manager.io/issuer-name": issuer,
			"cert-manager.io/issuer-kind": "ClusterIssuer",
		}
	}
	for _, tt := range []struct {
		name       string
		world      func(*iptlstest.World)
		secret     string
		overwrites bool
	}{
		{name: "a Secret that somebody has filled", world: func(*iptlstest.World) {}, overwrites: true},
		{name: "another Secret", world: func(*iptlstest.World) {}, secret: "next-tls"},
		{
			name:  "a Secret of this Certificate",
			world: func(w *iptlstest.World) { w.Cluster.TLSSecret.Annotations = from("company-ca") },
		},
		{
			name:  "a Secret of a Certificate by another issuer",
			world: func(w *iptlstest.World) { w.Cluster.TLSSecret.Annotations = from("other-ca") }, overwrites: true,
		},
		{
			name:  "a Secret that may not be read",
			world: func(w *iptlstest.World) { w.Cluster.ReadErr = discovery.ErrForbidden }, overwrites: true,
		},
		{name: "a Secret that is not there", world: func(w *iptlstest.World) { w.Cluster.TLSSecret = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.NewExternalWorld(t)
			w.Cluster.Issuer.Status.ServingCertificate = serving
			w.Cluster.Issuer.Status.Revisions = []configv1alpha1.RevisionStatus{
				{ID: "1", Endpoint: "https://first.example.com", Names: []string{"first.example.com", "127.0.0.1"}},
			}
			tt.world(w)
			r := run(t, w, func(o *Options) {
				o.Issuer, o.Secret, o.ExternalEndpoint = "ClusterIssuer/company-ca", stdcmp.Or(
					tt.secret,
					"proxy-tls",
				), "new.example.com"
			})
			r.Check(t, 0, "Added old.example.com (the certificate in service covers it)")
			var got struct {
				Spec struct{ DNSNames, IPAddresses []string }
			}
			if err := yaml.Unmarshal(r.Out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			want := []string{
				"new.example.com", "proxy.example.com", "old.example.com", "first.example.com", "127.0.0.1", "192.0.2.9",
			}
			have := slices.Concat(got.Spec.DNSNames, got.Spec.IPAddresses)
			if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(have)), want) {
				t.Errorf("names %q, want %q", have, want)
			}
			if said := strings.Contains(r.ErrOut.String(), overwrites); said != tt.overwrites {
				t.Errorf("it says %q", r.ErrOut.String())
			}
		})
	}
}

func TestManifestRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*Options)
		code   int
		says   []string
	}{
		{name: "no issuer", change: func(*Options) {}, code: 2, says: []string{"--issuer is missing", "kubectl get issuers,clusterissuers"}},
		{name: "an issuer without a kind", change: func(o *Options) { o.Issuer = "company-ca" }, code: 2, says: []string{"Issuer/NAME"}},
		{name: "an unknown kind", change: func(o *Options) { o.Issuer = "CA/x" }, code: 2, says: []string{`no kind "CA"`, "CA.GROUP/x"}},
		{name: "an unknown target", change: func(o *Options) { o.For = "traefik" }, code: 2, says: []string{"--for", "contour"}},
		{name: "an issuer of a route", change: func(o *Options) { o.For, o.Issuer = forContour, "Issuer/x" }, code: 2, says: []string{"--issuer"}},
		{name: "no Gateway", change: func(o *Options) { o.For = forGatewayAPI }, code: 2, says: []string{"--gateway is missing"}},
		{name: "a Gateway of Contour", change: func(o *Options) { o.For, o.Gateway = forContour, "x" }, code: 2, says: []string{"--gateway"}},
		{
			name: "a URL as endpoint", change: func(o *Options) { o.For, o.ExternalEndpoint = forContour, "https://x" }, code: 2,
			says: []string{"--external-endpoint"},
		},
		{name: "a route without a name", change: func(o *Options) { o.For = forContour }, code: 1, says: []string{"--external-endpoint proxy"}},
		{
			name: "a route for an address", change: func(o *Options) { o.For, o.ExternalEndpoint = forContour, "192.0.2.1" }, code: 1,
			says: []string{"is an IP address"},
		},
		{name: "a Certificate without names", change: func(o *Options) { o.Issuer = "Issuer/x" }, code: 1, says: []string{"has no name that clients could use"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			proxy := w.Cluster.Issuer.Spec.ImpersonationProxy
			proxy.TLS, proxy.ExternalEndpoint, proxy.Service.Type = nil, "", configv1alpha1.ServiceTypeNone
			w.Cluster.Issuer.Status.Strategies = nil
			r := run(t, w, tt.change)
			r.Check(t, tt.code, tt.says...)
			if r.Out.Len() > 0 {
				t.Errorf("it has printed %q", r.Out.String())
			}
		})
	}
}

// TestManifestHasNoUnusedPrivateAddress checks that a ClusterIP that the agent published only briefly is left out,
// because no public CA would issue for it. An address in use stays, with a warning about ACME issuers.
func TestManifestHasNoUnusedPrivateAddress(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		w := iptlstest.New(t)
		revision := configv1alpha1.RevisionStatus{ID: "a", Names: []string{"10.0.0.23"}}
		if used {
			revision.LastUsed = &metav1.Time{Time: time.Now()}
		}
		w.Cluster.Issuer.Status.Strategies, w.Cluster.Issuer.Status.Revisions = nil, []configv1alpha1.RevisionStatus{revision}
		r := run(t, w, func(o *Options) { o.Issuer, o.ExternalEndpoint = "Issuer/acme", "proxy.example.com" })
		r.Check(t, 0)
		if strings.Contains(r.Out.String(), "10.0.0.23") != used ||
			strings.Contains(r.ErrOut.String(), "10.0.0.23 is a private address, so an ACME issuer") != used {
			t.Errorf("used: %v\n%s%s", used, r.Out.String(), r.ErrOut.String())
		}
	}
}

// TestManifestHasNamesOfUsedRevisions checks that names of a past revision without clients are left out.
func TestManifestHasNamesOfUsedRevisions(t *testing.T) {
	t.Parallel()
	at := &metav1.Time{Time: time.Now()}
	w := iptlstest.New(t)
	w.Cluster.Issuer.Status.Strategies = nil
	w.Cluster.Issuer.Status.Revisions = []configv1alpha1.RevisionStatus{
		{ID: "a", Names: []string{"unused.example.com"}, Until: at},
		{ID: "b", Names: []string{"used.example.com"}, Until: at, LastUsed: at},
	}
	r := run(t, w, func(o *Options) { o.Issuer, o.ExternalEndpoint = "Issuer/acme", "proxy.example.com" })
	r.Check(t, 0, "Added used.example.com")
	if strings.Contains(r.Out.String(), "unused.example.com") {
		t.Error(r.Out.String())
	}
}

func TestForeignText(t *testing.T) {
	t.Parallel()
	for _, target := range []string{forCertManager, forContour} {
		w := iptlstest.New(t)
		w.Cluster.Issuer.Status.Strategies = append(w.Cluster.Issuer.Status.Strategies,
			iptlstest.FailedReport(iptlstest.Hostile, iptlstest.Hostile))
		w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = iptlstest.Hostile
		run(t, w, func(o *Options) {
			o.For = target
			if target == forCertManager {
				o.Issuer = "ClusterIssuer/a"
			}
		}).Forges(t)
	}
}
