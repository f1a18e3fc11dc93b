package change

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

func runUnset(t *testing.T, w *iptlstest.World, change func(*UnsetOptions)) *iptlstest.Run {
	t.Helper()
	r := &iptlstest.Run{}
	o := &UnsetOptions{
		Session: sessiontest.New(w, r), Flags: Flags{DryRun: session.DryRunNone, Wait: true},
		Allow: []string{"OldClientsBreak"},
	}
	if change != nil {
		change(o)
	}
	return r.Do(t.Context(), o)
}

func TestUnset(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Obey(t)
	runUnset(t, w, nil).
		Check(t, 0, "credentialissuer/pinniped-concierge-config unset", `OldClientsBreak: every kubeconfig in use stops working`,
			`trust "Company CA"`, "presents the certificate at 1 of 1 addresses", "tls.secretName", "CA bundle: \""+plan.GeneratedCAName)
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": "2"},
		"spec":     map[string]any{"impersonationProxy": map[string]any{"tls": nil}},
	}}
	same.Values(t, "patched", want, w.Cluster.WithoutRecords())
	same.Values(t, "options", []discovery.ApplyOptions{{FieldManager: "pinniped-cli"}}, w.Cluster.Options)
	second := runUnset(t, w, nil)
	second.Check(t, 0, "credentialissuer/pinniped-concierge-config unchanged")
	if len(w.Cluster.Applied) != 1 || strings.Contains(second.ErrOut.String(), "OldClientsBreak") {
		t.Errorf("the second run patched %d times:\n%s", len(w.Cluster.Applied)-1, second.ErrOut.String())
	}
}

func TestUnsetJSON(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Obey(t)
	r := runUnset(t, w, func(o *UnsetOptions) { o.Session.Output = "json" })
	r.Check(t, 0)
	var result Result
	if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil {
		t.Fatalf("%v in %s", err, r.Out.String())
	}
	if result.Outcome != "unset" || result.Secret.Name != "proxy-tls" || len(result.Addresses) != 1 ||
		result.Addresses[0].SHA256 == "" ||
		!result.Certificate.Has(certs.OldClientsBreak) || !strings.Contains(result.CABundle.String(), plan.GeneratedCAName) {
		t.Errorf("got %+v", result)
	}
	if strings.Contains(r.Out.String()+r.ErrOut.String(), "PRIVATE KEY") {
		t.Error("a private key is printed")
	}
}

func TestUnsetOldClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*iptlstest.World)
		says   string // empty: no client breaks
	}{
		{name: "names the CA that is no longer published", change: func(*iptlstest.World) {}, says: `trust "Company CA"`},
		{name: "is silent when the agent's CA was published as well", change: func(w *iptlstest.World) {
			w.Cluster.Report(w.Proxy.URL(), append(w.CA.CertPEM(), w.Generated.CertPEM()...))
		}},
		{name: "is silent when the agent's own was served all the time", change: func(w *iptlstest.World) {
			w.Cluster.Report(w.Proxy.URL(), w.Generated.CertPEM())
		}},
		{
			name:   "is silent when nothing was published",
			change: func(w *iptlstest.World) { w.Cluster.Issuer.Status.Strategies = nil },
		},
		{
			name: "names the system roots", change: func(w *iptlstest.World) { w.Cluster.Report(w.Proxy.URL(), nil) },
			says: "have no CA bundle, and the system roots do not verify",
		},
		{
			name: "says that the CA will be a new one", change: func(w *iptlstest.World) { w.Cluster.CASecret = nil },
			says: "the agent's CA is not known yet",
		},
		{name: "says so when it may not be read", change: func(w *iptlstest.World) {
			w.Cluster.CASecretErr = &discovery.ForbiddenError{Verb: "get"}
		}, says: "cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.NewExternalWorld(t)
			tt.change(w)
			strict := runUnset(t, w, func(o *UnsetOptions) { o.Flags.DryRun, o.Allow = session.DryRunClient, nil })
			if refused := ui.ExitCodeOf(strict.Err) == ui.ExitRefused; refused != (tt.says != "") {
				t.Errorf("without --allow, it ended with %v", strict.Err)
			}
			r := runUnset(t, w, func(o *UnsetOptions) { o.Flags.DryRun, o.Flags.Diff = session.DryRunClient, true })
			r.Check(t, 0, "unset (client dry run)",
				"- spec.impersonationProxy.tls.secretName: proxy-tls\n+ spec.impersonationProxy.tls.secretName: (none)", tt.says)
			if tt.says == "" && strings.Contains(r.ErrOut.String(), "OldClientsBreak") {
				t.Errorf("somebody is said to be broken: %s", r.ErrOut.String())
			}
			if len(w.Cluster.Options) > 0 {
				t.Error("the API server was asked to change something")
			}
		})
	}
}

func TestUnsetWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		known bool
		agent func(*testing.T, *iptlstest.World, *iptlstest.Cluster)
		code  int
		says  string
	}{
		{
			name: "ends when a CA that was not known before verifies what is presented", says: "unset",
			agent: func(t *testing.T, w *iptlstest.World, c *iptlstest.Cluster) {
				t.Helper()
				fresh := iptlstest.NewCA(t, plan.GeneratedCAName)
				w.Proxy.Serve(t, iptlstest.Serving(t, fresh, iptlstest.Loopback()))
				c.Report(w.Proxy.URL(), fresh.CertPEM())
			},
		},
		{
			name: "goes back when the old bundle stays", known: true, code: 5, says: "still publishes another CA bundle",
			agent: func(*testing.T, *iptlstest.World, *iptlstest.Cluster) {},
		},
		{
			name: "goes back when the old bundle stays and no other is known", code: 5, says: "still publishes another CA " +
				"bundle",
			agent: func(*testing.T, *iptlstest.World, *iptlstest.Cluster) {},
		},
		{
			name: "goes back when nothing is published that it could verify with", code: 5, says: "does not publish its " +
				"own CA yet",
			agent: func(_ *testing.T, w *iptlstest.World, c *iptlstest.Cluster) { c.Report(w.Proxy.URL(), nil) },
		},
		{
			name: "goes back when the old certificate is still presented", known: true, code: 5, says: "presents a " +
				"certificate, but the published CA bundle does not verify it",
			agent: func(_ *testing.T, w *iptlstest.World, c *iptlstest.Cluster) {
				c.Report(w.Proxy.URL(), w.Generated.CertPEM())
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.NewExternalWorld(t)
			if !tt.known {
				w.Cluster.CASecret = nil
			}
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
				if len(c.Applied) == 1 {
					tt.agent(t, w, c)
				}
			}
			r := runUnset(t, w, func(o *UnsetOptions) {
				if tt.code != 0 {
					o.Session.Timeout = iptlstest.TooShort
				}
			})
			r.Check(t, tt.code, tt.says)
			tls := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS
			if (tls != nil) != (tt.code != 0) || tls != nil && tls.SecretName != "proxy-tls" {
				t.Errorf("the configuration is %+v", tls)
			}
		})
	}
}

func TestUnsetNoticesChanges(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Obey(t)
	times := 0
	w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
		if times++; times == 1 {
			c.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
			c.Bump()
		}
	}
	runUnset(t, w, nil).Check(t, 3, "was changed in the meantime", "tls.secretName from proxy-tls to theirs",
		"run the same command again to overwrite that change")
	if SpecOf(w).TLS == nil {
		t.Error("their change was overwritten")
	}
	runUnset(t, w, nil).Check(t, 0, "unset", "theirs")
	if len(w.Cluster.Applied) != 1 || times != 2 {
		t.Errorf("%d of %d attempts were stored", len(w.Cluster.Applied), times)
	}
}

func TestUnsetErrors(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Cluster.ApplyErr = &discovery.ForbiddenError{Verb: "patch"}
	runUnset(t, w, nil).Check(t, 4, "not permitted to patch")
	runUnset(t, w, func(o *UnsetOptions) { o.Flags.DryRun = "maybe" }).Check(t, 2, `invalid value "maybe" for --dry-run`)
	runUnset(t, w, func(o *UnsetOptions) { o.Session.Output = "junit" }).Check(t, 2, `invalid value "junit" for --output`)
	w.Cluster.Issuer.Spec.ImpersonationProxy = nil
	runUnset(t, w, nil).Check(t, 1, "has no spec.impersonationProxy")
}

func runStatus(ctx context.Context, w *iptlstest.World, network session.Network) *iptlstest.Run {
	return sessiontest.Run(ctx, w, func(s *session.Session) factory.Command {
		s.Network = network
		return &status.Options{
			Session: s,
			Current: func(factory.ClusterFlags) (*factory.Cluster, error) {
				return &factory.Cluster{Raw: clientcmdapi.NewConfig()}, nil
			},
		}
	})
}
