package iptls

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// newExternalWorld is a cluster in which an external certificate is in service.
func newExternalWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.cluster.issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "proxy-tls"}
	w.proxy.serve(t, w.pair)
	w.cluster.report(w.proxy.url(), w.ca.CertPEM())
	return w
}

func (w *world) unset(t *testing.T, change func(*UnsetOptions)) *run {
	t.Helper()
	r := &run{}
	o := &UnsetOptions{Changing: Changing{Connection: w.connection(r), DryRun: dryRunNone, Wait: true}}
	if change != nil {
		change(o)
	}
	return r.do(t.Context(), o)
}

func TestUnset(t *testing.T) {
	t.Parallel()
	w := newExternalWorld(t)
	w.obey(t)
	w.unset(t, nil).check(t, 0, "credentialissuer/pinniped-concierge-config unset", `OldClientsBreak: kubeconfigs that trust "Company CA"`,
		"stop working", "presents the certificate at 1 of 1 addresses", "tls.secretName", "CA bundle: \""+generatedCAName)
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": "2"},
		"spec":     map[string]any{"impersonationProxy": map[string]any{"tls": nil}},
	}}
	if diff := cmp.Diff(want, w.cluster.withoutRecords()); diff != "" {
		t.Errorf("patched (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]discovery.ApplyOptions{{FieldManager: "pinniped-cli"}}, w.cluster.options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	second := w.unset(t, nil)
	second.check(t, 0, "credentialissuer/pinniped-concierge-config unchanged")
	if len(w.cluster.applied) != 1 || strings.Contains(second.errOut.String(), "OldClientsBreak") {
		t.Errorf("the second run patched %d times:\n%s", len(w.cluster.applied)-1, second.errOut.String())
	}
}

func TestUnsetJSON(t *testing.T) {
	t.Parallel()
	w := newExternalWorld(t)
	w.obey(t)
	r := w.unset(t, func(o *UnsetOptions) { o.Output = "json" })
	r.check(t, 0)
	var result Result
	if err := json.Unmarshal(r.out.Bytes(), &result); err != nil {
		t.Fatalf("%v in %s", err, r.out.String())
	}
	if result.Action != "unset" || result.Secret.Name != "proxy-tls" || len(result.Addresses) != 1 || result.Addresses[0].SHA256 == "" ||
		!result.Certificate.Has(certs.OldClientsBreak) || !strings.Contains(result.CABundle, generatedCAName) {
		t.Errorf("got %+v", result)
	}
	if strings.Contains(r.out.String()+r.errOut.String(), "PRIVATE KEY") {
		t.Error("a private key is printed")
	}
}

func TestUnsetOldClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*world)
		says   string // empty: nobody is locked out
	}{
		{name: "names the CA that is no longer advertised", change: func(*world) {}, says: `kubeconfigs that trust "Company CA"`},
		{name: "is silent when the agent's CA was advertised as well", change: func(w *world) {
			w.cluster.report(w.proxy.url(), append(w.ca.CertPEM(), w.generated.CertPEM()...))
		}},
		{name: "is silent when the agent's own was served all the time", change: func(w *world) {
			w.cluster.report(w.proxy.url(), w.generated.CertPEM())
		}},
		{name: "is silent when nothing was advertised", change: func(w *world) { w.cluster.issuer.Status.Strategies = nil }},
		{name: "names the system roots", change: func(w *world) { w.cluster.report(w.proxy.url(), nil) }, says: "which use their system roots, stop working"},
		{name: "says that the CA will be a new one", change: func(w *world) { w.cluster.caSecret = nil }, says: "of a CA that the agent makes itself"},
		{name: "says so when it may not be read", change: func(w *world) {
			w.cluster.caSecretErr = &discovery.ForbiddenError{Verb: "get"}
		}, says: "may not be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newExternalWorld(t)
			tt.change(w)
			r := w.unset(t, func(o *UnsetOptions) { o.DryRun, o.Diff = dryRunClient, true })
			r.check(t, 0, "unset (client dry run)", "- spec.impersonationProxy.tls.secretName: proxy-tls\n+ spec.impersonationProxy.tls.secretName: (none)", tt.says)
			if tt.says == "" && strings.Contains(r.errOut.String(), "OldClientsBreak") {
				t.Errorf("somebody is said to be locked out: %s", r.errOut.String())
			}
			if len(w.cluster.options) > 0 {
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
		agent func(*testing.T, *world, *fakeCluster)
		code  int
		says  string
	}{
		{
			name: "ends when a CA that was not known before verifies what is presented", says: "unset",
			agent: func(t *testing.T, w *world, c *fakeCluster) {
				t.Helper()
				fresh := newCA(t, generatedCAName)
				w.proxy.serve(t, serving(t, fresh, loopback()))
				c.report(w.proxy.url(), fresh.CertPEM())
			},
		},
		{
			name: "goes back when the old bundle stays", known: true, code: 5, says: "still advertises another CA bundle",
			agent: func(*testing.T, *world, *fakeCluster) {},
		},
		{
			name: "goes back when the old bundle stays and no other is known", code: 5, says: "still advertises another CA bundle",
			agent: func(*testing.T, *world, *fakeCluster) {},
		},
		{
			name: "goes back when nothing is advertised that it could verify with", code: 5, says: "does not advertise its own CA yet",
			agent: func(_ *testing.T, w *world, c *fakeCluster) { c.report(w.proxy.url(), nil) },
		},
		{
			name: "goes back when the old certificate is still presented", known: true, code: 5, says: "presents a certificate, but the advertised CA bundle does not verify it",
			agent: func(_ *testing.T, w *world, c *fakeCluster) { c.report(w.proxy.url(), w.generated.CertPEM()) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newExternalWorld(t)
			if !tt.known {
				w.cluster.caSecret = nil
			}
			w.cluster.afterApply = func(c *fakeCluster) {
				if len(c.applied) == 1 {
					tt.agent(t, w, c)
				}
			}
			r := w.unset(t, func(o *UnsetOptions) {
				if tt.code != 0 {
					o.Timeout = tooShort
				}
			})
			r.check(t, tt.code, tt.says)
			tls := w.cluster.issuer.Spec.ImpersonationProxy.TLS
			if (tls != nil) != (tt.code != 0) || tls != nil && tls.SecretName != "proxy-tls" {
				t.Errorf("the configuration is %+v", tls)
			}
		})
	}
}

func TestUnsetNoticesChanges(t *testing.T) {
	t.Parallel()
	w := newExternalWorld(t)
	w.obey(t)
	times := 0
	w.cluster.beforeApply = func(c *fakeCluster) {
		if times++; times == 1 {
			c.issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
			c.bump()
		}
	}
	w.unset(t, nil).check(t, 0, "has changed meanwhile", "theirs")
	if len(w.cluster.applied) != 1 || times != 2 {
		t.Errorf("%d of %d attempts were stored", len(w.cluster.applied), times)
	}
}

func TestUnsetErrors(t *testing.T) {
	t.Parallel()
	w := newExternalWorld(t)
	w.cluster.applyErr = &discovery.ForbiddenError{Verb: "patch"}
	w.unset(t, nil).check(t, 4, "not permitted to patch")
	w.unset(t, func(o *UnsetOptions) { o.DryRun = "maybe" }).check(t, 2, `invalid value "maybe" for --dry-run`)
	w.unset(t, func(o *UnsetOptions) { o.Output = "junit" }).check(t, 2, `invalid value "junit" for --output`)
	w.cluster.issuer.Spec.ImpersonationProxy = nil
	w.unset(t, nil).check(t, 1, "has no spec.impersonationProxy")
}
