package status

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// inService configures the Secret and serves it.
func inService(t *testing.T, w *iptlstest.World) {
	t.Helper()
	w.Obey(t)
	runSet(t.Context(), w, nil).Check(t, 0)
}

// lastKnownGood makes the agent report that it refuses the configuration and serves the last known good certificate.
func lastKnownGood(w *iptlstest.World, code, message string) {
	strategy := &w.Cluster.Issuer.Status.Strategies[0]
	strategy.Status, strategy.Reason = configv1alpha1.StrategyError, configv1alpha1.ReasonErrorDuringSetup
	strategy.Message = message + "; the certificate stays in service until this is fixed"
	strategy.Findings = []configv1alpha1.StrategyFinding{
		{Code: code, Severity: configv1alpha1.FindingError, Message: message},
		{Code: configv1alpha1.CodeLastKnownGoodCertificateServed, Severity: configv1alpha1.FindingInfo, Message: "it stays"},
	}
}

// TestUsers checks the first line for the person who is paged: whether users can connect, the cause, and the next
// commands.
func TestUsers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                   string
		world                  func(*testing.T, *iptlstest.World)
		adapt                  func(*Options)
		exit                   int
		state                  result.UsersState
		code, says, next, hint string
		problems               []string // codes
	}{
		{
			name: "are not affected while all is well", state: result.UsersNotAffected,
			says: "not affected; the certificate in service is good until ", world: inService, adapt: withoutKubeconfig,
		},
		{
			name: "are all refused when the certificate has expired, which is told once", exit: 5,
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				pair := must.Get(w.CA.IssueServing(iptlstest.Loopback(), time.Now().Add(-2*time.Hour), time.Hour))(t)
				inService(t, w)
				w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
				w.Proxy.Serve(t, pair)
				lastKnownGood(w, "Expired", "the serving certificate expired")
			},
			state: result.UsersAllRefused, code: "Expired", says: "all refused since 20",
			next: "pinniped ip-tls set --secret proxy-tls --cert FILE --key FILE", problems: []string{"Expired"},
		},
		{
			name: "go on while the agent is gone, which its status does not tell", exit: 5, adapt: withoutKubeconfig,
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				inService(t, w)
				w.Cluster.Leases = []discovery.ReplicaLease{{Renewed: time.Now().Add(-time.Minute), Lasts: 40 * time.Second}}
			},
			state: result.UsersNotAffected, says: "not affected; ", next: "kubectl get pods --namespace=pinniped-concierge",
			problems: []string{"AgentNotRunning"},
		},
		{
			name: "are all refused since the agent is gone", exit: 5, adapt: withoutKubeconfig,
			world: func(_ *testing.T, w *iptlstest.World) {
				w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = "127.0.0.1:1"
				w.Cluster.Report("https://127.0.0.1:1", w.Generated.CertPEM())
				w.Cluster.Leases = []discovery.ReplicaLease{{
					Renewed: time.Date(2026, 1, 2, 4, 1, 22, 0, time.UTC), Lasts: 40 * time.Second,
				}}
			},
			state: result.UsersAllRefused, code: "AgentNotRunning",
			says: "all refused since 2026-01-02T04:01:22Z (the agent is not running)",
			next: "kubectl get pods --namespace=pinniped-concierge", problems: []string{"AgentNotRunning"},
		},
		{
			name: "go on when the renewal is of another CA, and the old bundle was used", exit: 5, adapt: withoutKubeconfig,
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				inService(t, w)
				w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData = base64.StdEncoding.EncodeToString(
					w.CA.CertPEM())
				next := iptlstest.NewCA(t, "Next CA")
				pair := iptlstest.Serving(t, next, iptlstest.Loopback())
				w.Cluster.TLSSecret.Data = map[string][]byte{
					"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM, "ca.crt": next.CertPEM(),
				}
				lastKnownGood(w, "BundleDoesNotVerify", "the CA bundle does not verify it")
				leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
				w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
					Source: configv1alpha1.ServingCertificateSecret, SHA256: certs.Fingerprint(leaf[0].Raw),
					Replicas: 1, ServingReplicas: 1,
				}
			},
			state: result.UsersNotAffected, says: "not affected; the last known good certificate is served until ",
			next:     "pinniped ip-tls set --secret proxy-tls --cert FILE --key FILE",
			problems: []string{"BundleDoesNotVerify"},
		},
		{
			name: "are not known where there is no route to the endpoint", state: result.UsersNotKnown, next: "pinniped ip-tls check",
			says: "there is no route from here to any address", adapt: func(o *Options) {
				at := netip.MustParseAddr("2001:db8::1")
				o.Session.Network = iptlstest.Network{Addresses: []netip.Addr{at}, Errs: map[string]error{
					fmt.Sprintf("[%s]:443", at): syscall.ENETUNREACH,
				}}
			},
			world: func(_ *testing.T, w *iptlstest.World) {
				w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = "proxy.example.com"
				w.Cluster.Report("https://proxy.example.com", w.Generated.CertPEM())
			},
		},
		{
			name: "are refused with kubeconfigs from before", world: inService, exit: 8, state: result.UsersSomeRefused,
			code: "OldClientsBreak", says: "users of 1 of the 1 contexts", next: "pinniped kubeconfig rotate FILE",
		},
		{
			name: "cannot connect when the proxy is switched off", state: result.UsersSwitchedOff,
			says: "the impersonation proxy is off",
			world: func(_ *testing.T, w *iptlstest.World) {
				w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
					iptlstest.FailedReport(configv1alpha1.ReasonDisabled, "switched off"),
				}
			},
			next: "pinniped ip-tls check",
		},
		{
			name: "are looked at without the cluster", exit: 1, state: result.UsersNotAffected, says: "not affected",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				w.Cluster.NamespaceErr = discovery.ErrUnreachable
			},
			adapt: withEndpoint,
		},
		{
			name: "are not known without the cluster where nothing tells what clients trust", exit: 1,
			world: func(_ *testing.T, w *iptlstest.World) { w.Cluster.NamespaceErr = discovery.ErrUnreachable },
			adapt: func(o *Options) {
				withEndpoint(o)
				named := o.Current
				o.Current = func(flags factory.ClusterFlags) (*factory.Cluster, error) {
					_, err := named(flags)
					return currentOf("https://elsewhere.example.com", "x", nil), err
				}
			},
			state: result.UsersNotKnown, says: "no CA bundle is known for", next: "pinniped ip-tls status --endpoint PROXY --kubeconfigs ~/.kube",
		},
		{
			name: "are looked at when the kubeconfig itself leads through the broken proxy", exit: 1,
			state: result.UsersAllRefused, code: "Expired", says: "all refused since 20",
			world: func(t *testing.T, w *iptlstest.World) {
				t.Helper()
				pair := must.Get(w.CA.IssueServing(iptlstest.Loopback(), time.Now().Add(-2*time.Hour), time.Hour))(t)
				w.Proxy.Serve(t, pair)
				w.Cluster.NamespaceErr = discovery.ErrPluginFailed
			},
			adapt: withEndpoint, hint: "pass a --kubeconfig that bypasses the proxy",
		},
		{
			name: "are not known when another credential plugin fails, which says why itself", exit: 1,
			world: func(_ *testing.T, w *iptlstest.World) { w.Cluster.NamespaceErr = discovery.ErrPluginFailed },
			says:  discovery.ErrPluginFailed.Error(), adapt: withoutKubeconfig,
		},
		{
			name: "are not known without the cluster and an endpoint", exit: 1,
			world: func(_ *testing.T, w *iptlstest.World) { w.Cluster.NamespaceErr = discovery.ErrUnreachable },
			state: result.UsersNotKnown, says: "not known: the cluster does not respond",
			next: "pinniped ip-tls status --endpoint HOST:PORT",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			tt.world(t, w)
			run := func(format string) *iptlstest.Run {
				return runStatus(context.WithoutCancel(t.Context()), w, func(o *Options) {
					o.Session.Output = format
					if tt.adapt != nil {
						tt.adapt(o)
					}
				})
			}
			text := run("text")
			text.Check(t, tt.exit, tt.says)
			if hint := ui.HintOf(text.Err); !strings.Contains(hint, tt.hint) {
				t.Errorf("the hint is %q, want %q in it", hint, tt.hint)
			}
			if tt.state == "" {
				return
			}
			first, _, _ := strings.Cut(text.Out.String(), "\n")
			if !strings.HasPrefix(first, "USERS: ") || !strings.Contains(first, tt.says) {
				t.Errorf("the first line is %q, want %q in it", first, tt.says)
			}
			asJSON := run("json")
			asJSON.Check(t, tt.exit)
			status := statusOf(t, asJSON)
			var codes []string
			for _, problem := range status.Problems {
				codes = append(codes, problem.Code)
				if all := text.Out.String() + text.ErrOut.String() + text.Err.Error(); strings.Count(all, problem.Message) != 1 {
					t.Errorf("%q is printed %d times:\n%s", problem.Message, strings.Count(all, problem.Message), all)
				}
			}
			if status.Users.State != tt.state || status.Users.Code != tt.code ||
				strings.Join(codes, " ") != strings.Join(tt.problems, " ") {
				t.Errorf("users %+v, problems %+v", status.Users, status.Problems)
			}
			want := strings.Replace(tt.next, "PROXY", w.Proxy.Endpoint(), 1)
			if next := append(status.Users.Next, ""); next[0] != want {
				t.Errorf("next is %q, want %q", next, want)
			}
			if tt.exit == 5 && strings.Contains(text.Out.String(), "agent:       Success, Listening: ") {
				t.Errorf("the agent is shown as if all were well:\n%s", text.Out.String())
			}
		})
	}
}

// withEndpoint sets --endpoint to that of the administrator's own kubeconfig.
func withEndpoint(o *Options) {
	current := o.Current
	o.Current = func(flags factory.ClusterFlags) (*factory.Cluster, error) {
		cluster, err := current(flags)
		o.Endpoint = strings.TrimPrefix(cluster.Raw.Clusters["mine"].Server, "https://")
		return cluster, err
	}
}

// withoutKubeconfig removes the administrator's old kubeconfig.
func withoutKubeconfig(o *Options) {
	o.Current = func(factory.ClusterFlags) (*factory.Cluster, error) {
		return currentOf("https://elsewhere.example.com", "x", nil), nil
	}
}
