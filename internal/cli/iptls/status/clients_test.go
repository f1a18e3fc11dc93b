package status

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// began is when the Company CA's certificate was activated, and changed is when the next change happened.
var (
	began   = time.Now().Add(-40 * 24 * time.Hour).UTC().Truncate(time.Second)
	changed = time.Now().Add(-4 * time.Hour).UTC().Truncate(time.Second)
)

// recording returns a world in which the agent has published the Company CA since began.
func recording(t *testing.T) *iptlstest.World {
	t.Helper()
	w := iptlstest.NewExternalWorld(t)
	w.RecordSince(t, began)
	return w
}

// renewed writes a certificate of another CA, for these names, into the Secret and serves it.
func renewed(t *testing.T, w *iptlstest.World, names certs.SANs) {
	t.Helper()
	next := iptlstest.NewCA(t, "Next CA")
	pair := iptlstest.Serving(t, next, names)
	w.Cluster.TLSSecret.Data = map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": next.CertPEM()}
	w.Proxy.Serve(t, pair)
	w.Cluster.Report(w.Proxy.URL(), next.CertPEM())
	w.RecordSince(t, changed)
}

// generated makes the agent serve its own certificate.
func generated(t *testing.T, w *iptlstest.World) {
	t.Helper()
	w.Proxy.Serve(t, iptlstest.Serving(t, w.Generated, iptlstest.Loopback()))
	w.Cluster.Report(w.Proxy.URL(), w.Generated.CertPEM())
	w.RecordSince(t, changed)
}

// TestUsersOfEveryRevision checks that the first line and the exit code match the clients of all revisions.
func TestUsersOfEveryRevision(t *testing.T) {
	t.Parallel()
	at := changed.Format("2006-01-02 15:04:05Z")
	for _, tt := range []struct {
		name                    string
		world                   func(*testing.T, *iptlstest.World)
		exit                    int
		state                   result.UsersState
		code, says, next, lacks string
	}{
		{
			name: "are not affected", world: func(*testing.T, *iptlstest.World) {},
			state: result.UsersNotAffected, says: "not affected; the certificate in service is good until ", lacks: "CLIENTS",
		},
		{
			name:  "are refused since a renewal by another CA, with what they were told before",
			world: func(t *testing.T, w *iptlstest.World) { t.Helper(); renewed(t, w, iptlstest.Loopback()) },
			exit:  8, state: result.UsersSomeRefused, code: "BundleDoesNotVerify",
			says: "users with kubeconfigs made before " + at + " have been refused since then (they trust \"Company CA\"",
			next: "pinniped kubeconfig rotate FILE",
		},
		{
			name: "are refused since then also while a replica lags behind",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				renewed(t, w, iptlstest.Loopback())
				leaf, _ := certs.ParseBundle(w.Cluster.TLSSecret.Data["tls.crt"])
				w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
					Source: configv1alpha1.ServingCertificateSecret, SHA256: certs.Fingerprint(leaf[0].Raw),
					Replicas: 2, ServingReplicas: 1,
				}
			},
			exit: 5, state: result.UsersSomeRefused, code: "BundleDoesNotVerify",
			says: "users with kubeconfigs made before " + at + " have been refused since then", next: "pinniped kubeconfig rotate FILE",
		},
		{
			name: "are refused since the spec lost its Secret",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = nil
				generated(t, w)
			},
			exit: 8, state: result.UsersSomeRefused, code: "BundleDoesNotVerify",
			says: "users with kubeconfigs made before " + at + " have been refused since then", next: "pinniped ip-tls undo --allow OldClientsBreak",
		},
		{
			name: "are refused since a delegation was revoked",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "shared/proxy-tls"
				generated(t, w)
				strategy := &w.Cluster.Issuer.Status.Strategies[0]
				strategy.Status, strategy.Reason = configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup
				strategy.Findings = []configv1alpha1.StrategyFinding{
					{Code: configv1alpha1.CodePermissionWithdrawn, Severity: configv1alpha1.FindingError, Message: "withdrawn"},
					{Code: configv1alpha1.CodeGeneratedCertificateServed, Severity: configv1alpha1.FindingInfo, Message: "served"},
				}
			},
			exit: 5, state: result.UsersSomeRefused, code: "BundleDoesNotVerify",
			says: "users with kubeconfigs made before " + at + " have been refused since then",
			next: "pinniped ip-tls delegate shared/proxy-tls",
		},
		{
			name: "are refused by a name that the certificate does not cover any more",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				names := iptlstest.Loopback()
				names.DNSNames = nil
				pair := iptlstest.Serving(t, w.CA, names)
				w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
				w.Proxy.Serve(t, pair)
				w.RecordSince(t, changed)
			},
			exit: 8, state: result.UsersSomeRefused, code: "NameNotCovered",
			says: "users who reach the proxy as proxy.example.com have been refused since " + at, next: "pinniped ip-tls manifest --issuer ClusterIssuer/NAME --secret proxy-tls",
		},
		{
			name: "are not affected by a renewal that waits, and it says until when",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				next := iptlstest.NewCA(t, "Next CA")
				pair := iptlstest.Serving(t, next, iptlstest.Loopback())
				w.Cluster.TLSSecret.Data = map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": next.CertPEM()}
				w.Cluster.Report(w.Proxy.URL(), append(w.CA.CertPEM(), next.CertPEM()...))
				until := metav1.NewTime(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC))
				w.Cluster.Issuer.Status.Transition = &configv1alpha1.TransitionStatus{
					Phase: configv1alpha1.TransitionPrepared, Since: until, Until: &until, SecretName: "proxy-tls",
					WaitsFor: []string{"1234567890"},
				}
				w.Cluster.TLSSecret.Annotations = map[string]string{
					"cert-manager.io/certificate-name": "proxy-tls", "cert-manager.io/issuer-name": "wrong",
				}
				leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
				w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
					Source: configv1alpha1.ServingCertificateSecret, SecretName: "proxy-tls", SHA256: certs.Fingerprint(leaf[0].Raw),
					Replicas: 1, ServingReplicas: 1,
				}
				w.RecordSince(t, changed)
			},
			state: result.UsersNotAffected, says: "; the certificate in Secret proxy-tls waits for clients of revision " +
				"1234567890, until 2027-01-02T03:04:05Z at the latest; if Issuer wrong is the wrong issuer, correct it in " +
				"the Certificate",
			next: "pinniped ip-tls history",
		},
		{
			name: "are not affected by what nobody has used",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				history := must.Get(serving.Read(w.Cluster.Revisions.Data))(t)
				for i := range history.Revisions {
					history.Revisions[i].FirstUsed, history.Revisions[i].LastUsed = time.Time{}, time.Time{}
				}
				w.Cluster.Revisions.Data[serving.RevisionsKey] = string(history.Encode())
				renewed(t, w, iptlstest.Loopback())
			},
			state: result.UsersNotAffected, says: "not affected; the certificate in service is good until ",
		},
		{
			name: "are refused that use an endpoint which does not respond any more",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				moved := strings.Replace(w.Cluster.Revisions.Data[serving.RevisionsKey], w.Proxy.URL(), "https://127.0.0.1:1", 1)
				w.Cluster.Revisions.Data[serving.RevisionsKey] = moved
				w.RecordSince(t, changed)
			},
			exit: 8, state: result.UsersSomeRefused, code: "EndpointUnreachable",
			says: "they use https://127.0.0.1:1, which does not respond; EndpointUnreachable); others work",
			next: "pinniped get kubeconfig",
		},
		{
			name:  "get no answer while the API server stands still",
			world: func(_ *testing.T, w *iptlstest.World) { w.Proxy.Answer(0) },
			exit:  5, state: result.UsersAllRefused, code: codeNoResponse, says: "no user gets a response (127.0.0.1:",
			next: "kubectl get --raw=/readyz",
		},
		{
			name:  "get no answer while the proxy does not reach the API server",
			world: func(_ *testing.T, w *iptlstest.World) { w.Proxy.Answer(http.StatusServiceUnavailable) },
			exit:  5, state: result.UsersAllRefused, code: codeNoResponse, says: "responds to a request with 503 Service Unavailable)",
			next: "kubectl get --raw=/readyz",
		},
		{
			name: "are not affected where a request needs credentials", state: result.UsersNotAffected, says: "not affected; ",
			world: func(_ *testing.T, w *iptlstest.World) { w.Proxy.Answer(http.StatusUnauthorized) },
		},
		{
			name: "are asked about at the endpoint of the spec when the status has none", exit: 5,
			world: func(_ *testing.T, w *iptlstest.World) {
				w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
					iptlstest.FailedReport(configv1alpha1.ReasonErrorDuringSetup, "disk full"),
				}
			},
			state: result.UsersNotAffected, says: "not affected; ", next: "pinniped ip-tls check",
		},
		{
			name: "are not known where nothing was ever published", exit: 5,
			world: func(_ *testing.T, w *iptlstest.World) {
				w.Cluster.Revisions.Data = nil
				w.Cluster.Issuer.Status.Strategies, w.Cluster.Issuer.Status.Revisions = nil, nil
			},
			state: result.UsersNotKnown, says: "not known: no published CA bundle", next: "pinniped ip-tls check",
		},
		{
			name: "count no state that is retired",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				before := statusOf(t, runStatus(t.Context(), w, asJSON)).Clients
				renewed(t, w, iptlstest.Loopback())
				history := must.Get(serving.Read(w.Cluster.Revisions.Data))(t)
				key, value := history.Find(before[0].ID).Retirement(time.Now())
				w.Cluster.Revisions.Data[key] = value
			},
			state: result.UsersNotAffected, says: "not affected; ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := recording(t)
			tt.world(t, w)
			started := time.Now()
			text := runStatus(t.Context(), w, withoutKubeconfig)
			text.Check(t, tt.exit, tt.says)
			if took := time.Since(started); tt.code == codeNoResponse && took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			first, _, _ := strings.Cut(text.Out.String(), "\n")
			if !strings.Contains(first, tt.says) {
				t.Errorf("the first line is %q, want %q in it", first, tt.says)
			}
			if tt.lacks != "" {
				text.Lacks(t, tt.lacks)
			}
			got := runStatus(t.Context(), w, func(o *Options) { withoutKubeconfig(o); asJSON(o) })
			got.Check(t, tt.exit)
			status := statusOf(t, got)
			if status.Users.State != tt.state || status.Users.Code != tt.code {
				t.Errorf("users %+v", status.Users)
			}
			if next := append(status.Users.Next, ""); next[0] != tt.next {
				t.Errorf("next is %q, want %q", next, tt.next)
			}
		})
	}
}

// TestNamesOfKubeconfigs checks a kubeconfig with a name that the certificate no longer covers.
func TestNamesOfKubeconfigs(t *testing.T) {
	t.Parallel()
	w := recording(t)
	names := iptlstest.Loopback()
	names.DNSNames = nil
	pair := iptlstest.Serving(t, w.CA, names)
	w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	w.Proxy.Serve(t, pair)
	r := runStatus(t.Context(), w, func(o *Options) {
		current := currentOf(w.Proxy.URL(), "mine", w.CA.CertPEM())
		current.Raw.Clusters["mine"].TLSServerName = "proxy.example.com"
		o.Current = func(factory.ClusterFlags) (*factory.Cluster, error) { return current, nil }
	})
	r.Check(t, 8, `✗ broken: it reaches the proxy as "proxy.example.com", which the presented certificate does not cover`,
		"run: pinniped ip-tls manifest --issuer ClusterIssuer/NAME --secret proxy-tls")
}

// TestAnAPIServerThatStandsStill checks a cluster that accepts requests and does not respond.
func TestAnAPIServerThatStandsStill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer int // status of the proxy's response
		direct bool
		exit   int
		says   string
	}{
		{name: "says within three seconds what users get", exit: 1, says: "USERS: no user gets a response (127.0.0.1:"},
		{
			name: "says so when the proxy knows", answer: http.StatusServiceUnavailable, direct: true, exit: 1,
			says: "responds to a request with 503 Service Unavailable)",
		},
		{
			name: "does not guess when the proxy alone has answered", answer: http.StatusUnauthorized, direct: true, exit: 124,
			says: "USERS: not known: the certificate in service is good, but the API server does not respond",
		},
		{name: "trusts the answer of another API server", answer: http.StatusOK, exit: 124, says: "USERS: not affected; "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Cluster.Still = true
			w.Proxy.Answer(tt.answer)
			started := time.Now()
			r := runStatus(t.Context(), w, func(o *Options) {
				withEndpoint(o)
				if tt.direct {
					named := o.Current
					o.Current = func(flags factory.ClusterFlags) (*factory.Cluster, error) {
						cluster, err := named(flags)
						cluster.Source.Cluster = &clientcmdapi.Cluster{Server: "https://api.example.com:6443"}
						return cluster, err
					}
				}
				if tt.exit == 124 {
					o.Session.Timeout = time.Second // time for the cluster to respond
				}
			})
			r.Check(t, tt.exit, tt.says, "only the endpoint was checked")
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
