package change

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session/sessiontest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
)

// planned runs a dry run of set and returns what it printed.
func planOf(t *testing.T, w *iptlstest.World, change func(*SetOptions), changed ...string) string {
	t.Helper()
	r := runSet(t.Context(), w, func(o *SetOptions) {
		o.Flags.DryRun, o.Flags.Diff, o.Session.Output = session.DryRunServer, true, "yaml"
		if change != nil {
			change(o)
		}
	}, changed...)
	r.Check(t, 0)
	if len(w.Cluster.Applied) > 0 {
		t.Fatal("the dry run has stored something")
	}
	return r.Out.String()
}

// apply applies a plan from stdin.
func runApply(t *testing.T, w *iptlstest.World, plan string, change func(*ApplyOptions)) *iptlstest.Run {
	t.Helper()
	r := &iptlstest.Run{}
	o := &ApplyOptions{Session: sessiontest.New(w, r), Flags: Flags{DryRun: session.DryRunNone, Wait: true}, Filename: "-"}
	o.Session.In = strings.NewReader(plan)
	if change != nil {
		change(o)
	}
	return r.Do(t.Context(), o)
}

func TestApply(t *testing.T) {
	t.Parallel()
	t.Run("does what set would have done, and then nothing more", func(t *testing.T) {
		t.Parallel()
		one, other := iptlstest.New(t), iptlstest.New(t)
		bundle := filepath.Join(t.TempDir(), "ca.pem")
		for _, w := range []*iptlstest.World{one, other} {
			w.Obey(t)
			w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = ""
			w.Cluster.Bump()
		}
		if err := os.WriteFile(bundle, one.CA.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		flags := func(o *SetOptions) {
			o.Certificate.CABundle, o.Certificate.ExternalEndpoint = bundle, one.Proxy.Endpoint()
		}
		plan := planOf(t, one, flags, "ca-bundle", "external-endpoint")
		if strings.Contains(plan, "PRIVATE KEY") || !strings.Contains(plan, "BEGIN CERTIFICATE") {
			t.Errorf("the plan is %s", plan)
		}
		path := filepath.Join(t.TempDir(), "plan.yaml")
		if err := os.WriteFile(path, []byte(plan), 0o600); err != nil {
			t.Fatal(err)
		}
		runApply(
			t,
			one,
			"",
			func(o *ApplyOptions) { o.Filename = path },
		).Check(t, 0, "configured", `the plan of "ip-tls set"`, "presents the certificate at 1 of 1 addresses")

		r := &iptlstest.Run{}
		o := optionsFor(other, r, "ca-bundle", "external-endpoint")
		flags(o)
		o.Flags.Wait = false
		other.Cluster.TLSSecret = one.Cluster.TLSSecret
		r.Do(t.Context(), o).Check(t, 0, "configured")
		if diff := cmp.Diff(other.Cluster.WithoutRecords(), one.Cluster.WithoutRecords()); diff != "" {
			t.Errorf("stored by set (-) and by apply (+):\n%s", diff)
		}
		runApply(t, one, plan, nil).Check(t, 0, "unchanged")
		runUndo(t, one, nil).Check(t, 0, "undone", `"ip-tls apply"`)
		if got := SpecOf(one); got.TLS != nil || got.ExternalEndpoint != "" {
			t.Errorf("after undo: %+v", got)
		}
	})
	t.Run("does what unset would have done", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Obey(t)
		r := runUnset(t, w, func(o *UnsetOptions) { o.Flags.DryRun, o.Session.Output = session.DryRunClient, "json" })
		r.Check(t, 0)
		runApply(t, w, r.Out.String(), nil).Check(t, 0, "unset")
		if SpecOf(w).TLS != nil {
			t.Errorf("the configuration is %+v", SpecOf(w))
		}
	})
	t.Run("changes nothing in a dry run of its own", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runApply(
			t,
			w,
			planOf(t, w, nil),
			func(o *ApplyOptions) { o.Flags.DryRun = session.DryRunServer },
		).Check(t, 0, "configured (server dry run)")
		if len(w.Cluster.Applied) > 0 {
			t.Error("something was stored")
		}
	})
	t.Run("goes back when it does not take effect", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runApply(
			t,
			w,
			planOf(t, w, nil),
			func(o *ApplyOptions) { o.Session.Timeout = iptlstest.TooShort },
		).Check(t, 5, "was put back")
		history, err := plan.ReadHistory(w.Cluster.Issuer)
		if SpecOf(w).TLS != nil || w.Cluster.Issuer.Annotations[plan.UndoAnnotation] != "" || err != nil ||
			history.Newest().Outcome != result.ChangePutBack {
			t.Errorf("it is %+v, %v", SpecOf(w), w.Cluster.Issuer.Annotations)
		}
	})
}

func TestApplyRefusesWhatHasMoved(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *iptlstest.World)
		says   string
	}{
		{"a configuration that changed", func(_ *testing.T, w *iptlstest.World) {
			w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = "else.example.com"
			w.Cluster.Issuer.Generation++
			w.Cluster.Bump()
		}, "the configuration in CredentialIssuer \"pinniped-concierge-config\" has changed: it is at generation 1"},
		{
			"a CredentialIssuer that was made anew", func(_ *testing.T, w *iptlstest.World) { w.Cluster.Issuer.UID = "another" },
			"is another object",
		},
		{"a certificate that was renewed", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			pair := iptlstest.Serving(t, w.CA, iptlstest.Loopback())
			w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "its certificate has SHA-256"},
		{
			"a Secret's CA that changed",
			func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret.Data["ca.crt"] = w.Generated.CertPEM() },
			"its chain or ca.crt is another one",
		},
		{
			"a Secret that was emptied", func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret.Data["tls.crt"] = nil },
			"there is no certificate in it",
		},
		{"a Secret that is gone", func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret = nil }, "SecretNotFound"},
		{"a configuration that changes at the last moment", func(_ *testing.T, w *iptlstest.World) {
			w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
				c.Issuer.Generation++
				c.Bump()
			}
		}, "it is at generation 1, the plan is for 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			plan := planOf(t, w, nil)
			tt.change(t, w)
			before := SpecOf(w)
			r := runApply(t, w, plan, func(o *ApplyOptions) { o.Session.Output = "json" })
			r.Check(t, 3, tt.says, "nothing was changed")
			var result Result
			if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil || result.Outcome != "refused" {
				t.Errorf("result %+v, %v", result, err)
			}
			if diff := cmp.Diff(before, SpecOf(w)); diff != "" || len(w.Cluster.Applied) > 0 {
				t.Errorf("something was changed (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("not a status or metadata that changed, also at the last moment", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		plan := planOf(t, w, nil)
		w.Cluster.Bump()
		times := 0
		w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
			if times++; times == 1 {
				c.Bump()
			}
		}
		runApply(t, w, plan, nil).Check(t, 0, "configured", "has changed meanwhile: looking again")
	})
	t.Run("a renewal after it was applied", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		plan := planOf(t, w, nil)
		runApply(t, w, plan, nil).Check(t, 0)
		pair := iptlstest.Serving(t, w.CA, iptlstest.Loopback())
		w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		runApply(t, w, plan, nil).Check(t, 3, "the plan is out of date", "plan again")
	})
	t.Run("what time has made bad", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		plan := planOf(t, w, nil)
		runApply(t, w, plan, func(o *ApplyOptions) {
			o.Session.Now = func() time.Time { return time.Now().Add(100 * 24 * time.Hour) }
		}).Check(t, 3, "Expired")
	})
}

func TestPlanFiles(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	plan := planOf(t, w, nil)
	refused := runSet(t.Context(), w, func(o *SetOptions) {
		o.Flags.DryRun, o.Session.Output, o.Certificate.Secret = session.DryRunServer, "yaml", "nowhere"
	})
	refused.Check(t, 3)
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
		{
			"another version", replaced("/v1\n", "/v2\n"),
			`it has apiVersion "cli.pinniped.dev/v2", and this program knows "cli.pinniped.dev/v1"`,
		},
		{"an unknown field", replaced("plan:\n", "plan:\n  more: true\n"), `unknown field`},
		{"a field twice", plan + "kind: Plan\n", "already set"},
		{"no plan in it", "apiVersion: cli.pinniped.dev/v1\nkind: Plan\n", "it has no plan"},
		{"no resourceVersion", replaced("    resourceVersion:", "    uid:"), "already set"},
		{"half a plan", "apiVersion: cli.pinniped.dev/v1\nkind: Plan\nplan: {namespace: x}\n", "does not name the " +
			"CredentialIssuer"},
		{"another Secret", replaced("secretName: proxy-tls", "secretName: other"), `does not say what is in Secret "other"`},
		{"a plan that was refused", refused.Out.String(), "SecretNotFound"},
		{"a result that is no plan", "action: configured\n", `it is of kind ""`},
		{"too much", plan + strings.Repeat("#", maxPlan), "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := runApply(t, w, tt.plan, nil)
			code := 2
			if tt.plan == refused.Out.String() {
				code = 3
			}
			r.Check(t, code, "reading the plan from stdin", tt.says)
		})
	}
	runApply(t, w, plan, func(o *ApplyOptions) { o.Filename = "" }).Check(t, 2, "--filename is missing")
	runApply(t, w, plan, func(o *ApplyOptions) { o.Filename = "/nowhere/plan.yaml" }).Check(t, 2, "no such file")
	runApply(t, w, plan, func(o *ApplyOptions) { o.Session.CredentialIssuer = "other" }).Check(t, 2, "not for")
	runApply(
		t,
		w,
		plan,
		func(o *ApplyOptions) { o.Session.Namespace = "other" },
	).Check(t, 2, `the agent's namespace is "other"`)
}

// TestPlanThatCannotBeApplied shows that a dry run with files says at once that a plan does not hold them.
func TestPlanThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.TLSSecret = nil
	r := setFromFiles(t, w, w.Pair, func(o *SetOptions) {
		o.Flags.DryRun, o.Session.Output = session.DryRunServer, "json"
	})
	const reason = `it writes the files of --cert and --key into Secret`
	r.Check(t, 0, `"ip-tls apply" cannot carry out this plan: `+reason, "cannotApply")
	runApply(t, w, r.Out.String(), nil).Check(t, 2, reason, "run the command itself, without --dry-run")
}
