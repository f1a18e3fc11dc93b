package iptls

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// planned runs a dry run of set and returns what it printed.
func (w *world) planned(t *testing.T, change func(*SetOptions), changed ...string) string {
	t.Helper()
	r := w.set(t.Context(), func(o *SetOptions) {
		o.DryRun, o.Diff, o.Output = dryRunServer, true, "yaml"
		if change != nil {
			change(o)
		}
	}, changed...)
	r.check(t, 0)
	if len(w.cluster.applied) > 0 {
		t.Fatal("the dry run has stored something")
	}
	return r.out.String()
}

// apply applies a plan from stdin.
func (w *world) apply(t *testing.T, plan string, change func(*ApplyOptions)) *run {
	t.Helper()
	r := &run{}
	o := &ApplyOptions{Changing: Changing{Connection: w.connection(r), DryRun: dryRunNone, Wait: true}, Filename: "-"}
	o.In = strings.NewReader(plan)
	if change != nil {
		change(o)
	}
	return r.do(t.Context(), o)
}

func TestApply(t *testing.T) {
	t.Parallel()
	t.Run("does what set would have done, and then nothing more", func(t *testing.T) {
		t.Parallel()
		one, other := newWorld(t), newWorld(t)
		bundle := filepath.Join(t.TempDir(), "ca.pem")
		for _, w := range []*world{one, other} {
			w.obey(t)
			w.cluster.issuer.Spec.ImpersonationProxy.ExternalEndpoint = ""
			w.cluster.bump()
		}
		if err := os.WriteFile(bundle, one.ca.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		flags := func(o *SetOptions) { o.CABundle, o.ExternalEndpoint = bundle, one.proxy.endpoint() }
		plan := one.planned(t, flags, "ca-bundle", "external-endpoint")
		if strings.Contains(plan, "PRIVATE KEY") || !strings.Contains(plan, "BEGIN CERTIFICATE") {
			t.Errorf("the plan is %s", plan)
		}
		path := filepath.Join(t.TempDir(), "plan.yaml")
		if err := os.WriteFile(path, []byte(plan), 0o600); err != nil {
			t.Fatal(err)
		}
		one.apply(t, "", func(o *ApplyOptions) { o.Filename = path }).check(t, 0, "configured", `the plan of "ip-tls set"`, "presents the certificate at 1 of 1 addresses")

		r := &run{}
		o := other.options(r, "ca-bundle", "external-endpoint")
		flags(o)
		o.Wait = false
		other.cluster.secret = one.cluster.secret
		r.do(t.Context(), o).check(t, 0, "configured")
		if diff := cmp.Diff(other.cluster.withoutRecords(), one.cluster.withoutRecords()); diff != "" {
			t.Errorf("stored by set (-) and by apply (+):\n%s", diff)
		}
		one.apply(t, plan, nil).check(t, 0, "unchanged")
		one.undo(t, nil).check(t, 0, "undone", `"ip-tls apply"`)
		if got := one.spec(); got.TLS != nil || got.ExternalEndpoint != "" {
			t.Errorf("after undo: %+v", got)
		}
	})
	t.Run("does what unset would have done", func(t *testing.T) {
		t.Parallel()
		w := newExternalWorld(t)
		w.obey(t)
		r := w.unset(t, func(o *UnsetOptions) { o.DryRun, o.Output = dryRunClient, "json" })
		r.check(t, 0)
		w.apply(t, r.out.String(), nil).check(t, 0, "unset")
		if w.spec().TLS != nil {
			t.Errorf("the configuration is %+v", w.spec())
		}
	})
	t.Run("changes nothing in a dry run of its own", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.apply(t, w.planned(t, nil), func(o *ApplyOptions) { o.DryRun = dryRunServer }).check(t, 0, "configured (server dry run)")
		if len(w.cluster.applied) > 0 {
			t.Error("something was stored")
		}
	})
	t.Run("goes back when it does not take effect", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.apply(t, w.planned(t, nil), func(o *ApplyOptions) { o.Timeout = tooShort }).check(t, 5, "was put back")
		if w.spec().TLS != nil || len(w.cluster.issuer.Annotations) > 0 {
			t.Errorf("it is %+v, %v", w.spec(), w.cluster.issuer.Annotations)
		}
	})
}

func TestApplyRefusesWhatHasMoved(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *world)
		says   string
	}{
		{"a status that changed", func(_ *testing.T, w *world) { w.cluster.bump() }, "only its status or its metadata has changed"},
		{"a configuration that changed", func(_ *testing.T, w *world) {
			w.cluster.issuer.Spec.ImpersonationProxy.ExternalEndpoint = "else.example.com"
			w.cluster.issuer.Generation++
			w.cluster.bump()
		}, "its configuration has changed"},
		{"a CredentialIssuer that was made anew", func(_ *testing.T, w *world) { w.cluster.issuer.UID = "another" }, "is another object"},
		{"a certificate that was renewed", func(t *testing.T, w *world) {
			t.Helper()
			pair := serving(t, w.ca, loopback())
			w.cluster.secret.Data["tls.crt"], w.cluster.secret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "its certificate has SHA-256"},
		{"a Secret's CA that changed", func(_ *testing.T, w *world) { w.cluster.secret.Data["ca.crt"] = w.generated.CertPEM() }, "its chain or ca.crt is another one"},
		{"a Secret that was emptied", func(_ *testing.T, w *world) { w.cluster.secret.Data["tls.crt"] = nil }, "there is no certificate in it"},
		{"a Secret that is gone", func(_ *testing.T, w *world) { w.cluster.secret = nil }, "SecretNotFound"},
		{"a CredentialIssuer that changes at the last moment", func(_ *testing.T, w *world) {
			w.cluster.beforeApply = (*fakeCluster).bump
		}, "only its status"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			plan := w.planned(t, nil)
			tt.change(t, w)
			before := w.spec()
			r := w.apply(t, plan, func(o *ApplyOptions) { o.Output = "json" })
			r.check(t, 3, tt.says, "nothing was changed")
			var result Result
			if err := json.Unmarshal(r.out.Bytes(), &result); err != nil || result.Action != "refused" {
				t.Errorf("result %+v, %v", result, err)
			}
			if diff := cmp.Diff(before, w.spec()); diff != "" || len(w.cluster.applied) > 0 {
				t.Errorf("something was changed (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a renewal after it was applied", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		plan := w.planned(t, nil)
		w.apply(t, plan, nil).check(t, 0)
		pair := serving(t, w.ca, loopback())
		w.cluster.secret.Data["tls.crt"], w.cluster.secret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		w.apply(t, plan, nil).check(t, 3, "the plan is out of date", "plan again")
	})
	t.Run("what time has made bad", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		plan := w.planned(t, nil)
		w.apply(t, plan, func(o *ApplyOptions) {
			o.Now = func() time.Time { return time.Now().Add(100 * 24 * time.Hour) }
		}).check(t, 3, "Expired")
	})
}

func TestPlanFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plan := w.planned(t, nil)
	refused := w.set(t.Context(), func(o *SetOptions) { o.DryRun, o.Output, o.Secret = dryRunServer, "yaml", "nowhere" })
	refused.check(t, 3)
	replaced := func(old, text string) string {
		if !strings.Contains(plan, old) {
			t.Fatalf("there is no %q in %s", old, plan)
		}
		return strings.Replace(plan, old, text, 1)
	}
	for _, tt := range []struct {
		name, plan, says string
	}{
		{"nothing", "", "it is empty"},
		{"no YAML", "a: [", "yaml"},
		{"no mapping", "- a", "reading the plan"},
		{"another kind", "apiVersion: v1\nkind: Secret\n", `it is of kind "Secret", not "Plan"`},
		{"another version", replaced("/v1alpha1\n", "/v2\n"), `it has apiVersion "ip-tls.pinniped.dev/v2", and this program knows "ip-tls.pinniped.dev/v1alpha1"`},
		{"an unknown field", replaced("plan:\n", "plan:\n  more: true\n"), `unknown field`},
		{"a field twice", plan + "kind: Plan\n", "already set"},
		{"no plan in it", "apiVersion: ip-tls.pinniped.dev/v1alpha1\nkind: Plan\n", "it has no plan"},
		{"no resourceVersion", replaced("    resourceVersion:", "    uid:"), "already set"},
		{"half a plan", "apiVersion: ip-tls.pinniped.dev/v1alpha1\nkind: Plan\nplan: {namespace: x}\n", "does not name the CredentialIssuer"},
		{"another Secret", replaced("secretName: proxy-tls", "secretName: other"), `does not say what is in Secret "other"`},
		{"a plan that was refused", refused.out.String(), "SecretNotFound"},
		{"a result that is no plan", "action: configured\n", `it is of kind ""`},
		{"too much", plan + strings.Repeat("#", maxPlan), "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := w.apply(t, tt.plan, nil)
			code := 2
			if tt.plan == refused.out.String() {
				code = 3
			}
			r.check(t, code, "reading the plan from stdin", tt.says)
		})
	}
	w.apply(t, plan, func(o *ApplyOptions) { o.Filename = "" }).check(t, 2, "--filename is missing")
	w.apply(t, plan, func(o *ApplyOptions) { o.Filename = "/nowhere/plan.yaml" }).check(t, 2, "no such file")
	w.apply(t, plan, func(o *ApplyOptions) { o.CredentialIssuer = "other" }).check(t, 2, "not for")
	w.apply(t, plan, func(o *ApplyOptions) { o.Namespace = "other" }).check(t, 2, `the agent's namespace is "other"`)
}
