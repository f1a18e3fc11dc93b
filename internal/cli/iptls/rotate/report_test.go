package rotate

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func TestRotateStatus(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	status := func(o *Options) { o.Status, o.Secret, o.Session.Output = true, "", "json" }
	read := func() Result {
		t.Helper()
		r := w.rotate(t, status)
		r.Check(t, 0)
		var result Result
		if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil || result.Outcome != "shown" {
			t.Fatalf("%v: %s", err, r.Out.String())
		}
		return result
	}
	states := func(got Result) string {
		var all []string
		for _, step := range got.Steps {
			all = append(all, string(step.State))
		}
		return strings.Join(all, ",")
	}
	if got := read(); got.Phase != "" || len(got.Steps) != 0 {
		t.Errorf("before: %+v", got)
	}
	for _, tt := range []struct {
		step, phase, states string
		next                int
	}{
		{"1", "advertised", "done,next,toCome,toCome", 2},
		{"3", "switched", "done,done,done,next", 4},
		{"4", "done", "done,done,done,done", 0},
	} {
		w.rotate(t, func(o *Options) { o.Step, o.Continue = tt.step, true }).Check(t, 0)
		if got := read(); got.Phase != result.Phase(tt.phase) || states(got) != tt.states || got.NextStep != tt.next ||
			*got.NewSecret != (result.ObjectRef{Namespace: "pinniped-concierge", Name: "next-tls"}) ||
			slices.Contains(got.WaitsFor, "") ||
			(tt.step == "1") != (len(got.WaitsFor) > 0) {
			t.Errorf("after step %s: %+v", tt.step, got)
		}
	}
	text := w.rotate(t, func(o *Options) { o.Status = true })
	text.Check(t, 0, "rotation done", `to: Secret "next-tls", CA "Next CA"`)
	if all := text.Out.String() + w.Cluster.Issuer.Annotations[plan.RotationAnnotation]; strings.Contains(all, "PRIVATE") {
		t.Error("a key is shown or kept")
	}
}

func TestRotateReports(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0)
	var prints []string
	for _, ca := range []*certs.CA{w.CA, w.next} {
		prints = append(prints, `{"sha256":"`+certs.Fingerprint(ca.Certificate().Raw)+`"}`)
	}
	both := "[" + strings.Join(prints, ",") + "]"
	fleet := func(bundle, kubeconfigs string) string {
		return `{"apiVersion":"cli.pinniped.dev/v1","kind":"KubeconfigRotation","clusters":[{"server":"` + w.Proxy.URL() +
			`","outcome":"asked","caBundle":` + bundle + `},{"server":"https://other.example.com","outcome":"failed"}],` +
			`"kubeconfigs":[` + kubeconfigs + `]}`
	}
	a := func(entries string) string { return `{"where":"a","outcome":"rotated","entries":[` + entries + `]}` }
	has := `{"kind":"cluster","name":"c","outcome":"rotated","server":"` + w.Proxy.URL() + `/"}`
	lacks := `{"kind":"user","name":"u","outcome":"skipped","code":"ClusterFailed","server":"` + w.Proxy.URL() + `"}`
	const other = `{"kind":"cluster","name":"d","outcome":"skipped","server":"https://other.example.com"}`
	for _, tt := range []struct {
		name, report string
		code         int
		says         string
	}{
		{"nothing", "", 2, "reading the report from stdin"},
		{"something else", `{"a":1}`, 2, `it is  "", not cli.pinniped.dev/v1 "KubeconfigRotation"`},
		{"nothing in it", `{"apiVersion":"cli.pinniped.dev/v1","kind":"KubeconfigRotation"}`, 2, "it names no clusters"},
		{"a dry run", strings.Replace(fleet(both, a(has)), `"clusters"`, `"dryRun":true,"clusters"`, 1), 6, "it is of a dry run"},
		{
			"a fleet of other clusters", fleet(`[]`, a(other)), 6,
			"no kubeconfig in it leads",
		},
		{
			"a fleet that was asked before step 1", fleet("["+prints[0]+"]", a(has)), 6, "lacks the new CA",
		},
		{
			"a fleet with one left", fleet(both, a(has)+`,{"where":"b","outcome":"skipped","entries":[`+lacks+`]}`), 6,
			"1 kubeconfigs have no new CA bundle: b",
		},
		{
			"a fleet that was interrupted", fleet(both, a(has)+`,{"where":"b","outcome":"notDone"}`), 6,
			"1 kubeconfigs have no new CA bundle: b",
		},
		{
			"a fleet in which all have it, and other clusters do not",
			fleet(both, a(has+`,`+other)+`,{"where":"b","outcome":"skipped","entries":[`+other+`]}`), 0,
			"says that 1 kubeconfigs have the new CA",
		},
	} {
		w.rotate(t, func(o *Options) {
			o.Reports, o.Session.In, o.Flags.DryRun = []string{"-"}, strings.NewReader(tt.report), session.DryRunClient
		}).Check(t, tt.code, tt.says)
		if t.Failed() {
			t.Fatalf("with %s", tt.name)
		}
	}
	for _, tt := range []struct {
		name, report string
		code         int
		says         string
	}{
		{"all have it", fleet(both, a(has)+`,{"where":"b","outcome":"current","entries":[`+has+`]}`), 0, "says that 2 kubeconfigs have the new CA"},
	} {
		w.rotate(t, func(o *Options) {
			o.Reports, o.Session.In = []string{"-"}, strings.NewReader(tt.report)
		}).Check(t, tt.code, tt.says)
		if t.Failed() {
			t.Fatalf("with %s", tt.name)
		}
	}
	w.want(t, "next-tls", w.next.CertPEM())
}

// TestStatusTellsOfARotation runs `ip-tls status` between the steps of a rotation.
func TestStatusTellsOfARotation(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	says := func(text string) {
		t.Helper()
		r := runStatus(t.Context(), w.World)
		if all := r.Out.String(); strings.Contains(all, "rotation:") != (text != "") || !strings.Contains(all, text) {
			t.Errorf("want %q in:\n%s%s", text, all, r.ErrOut.String())
		}
	}
	says("")
	w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0)
	says(`to Secret "next-tls", step 1 of 4 is done`)
	w.rotate(t, func(o *Options) { o.Step, o.Continue = "3", true }).Check(t, 0)
	says("step 3 of 4 is done")
	ours := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.DeepCopy()
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "proxy-tls"
	says("somebody else has changed " + plan.FieldSecret)
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = ours
	w.rotate(t, func(o *Options) { o.Flags.DryRun, o.Session.Output = session.DryRunClient, "yaml" }).
		Check(t, 0, "outcome: finished")
	w.rotate(t, nil).Check(t, 0, "finished")
	says("")
	w.Cluster.Issuer.Annotations[plan.RotationAnnotation] = "nonsense"
	r := runStatus(t.Context(), w.World)
	if !strings.Contains(r.Out.String(), plan.RotationAnnotation) {
		t.Errorf("nothing is said about a record that cannot be read:\n%s", r.Out.String())
	}
}
