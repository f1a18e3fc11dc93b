package rotate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// TestRotateInterrupted ends every run right after a change, before it is seen to take effect, until one ends by
// itself.
func TestRotateInterrupted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		flag func(*Options)
		end  string
	}{
		{"forward", func(o *Options) { o.Continue = true }, "next-tls"},
		{"back", func(o *Options) { o.Abort, o.Secret = true, "" }, "proxy-tls"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newRotating(t, false)
			if tt.end == "proxy-tls" {
				w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0)
				w.rotate(t, func(o *Options) { o.Step, o.Continue = "3", true }).Check(t, 0)
			}
			agent := w.Cluster.AfterApply
			for attempt := 1; ; attempt++ {
				ctx, cancel := context.WithCancel(t.Context())
				w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
					agent(c)
					cancel()
				}
				r := w.rotateIn(ctx, tt.flag)
				cancel()
				if ui.ExitCodeOf(r.Err) == 0 {
					break
				}
				r.Check(t, 130)
				if attempt > 5 {
					t.Fatal("it does not end")
				}
			}
			bundle := w.next.CertPEM()
			if tt.end == "proxy-tls" {
				bundle = w.CA.CertPEM()
			}
			w.want(t, tt.end, bundle)
		})
	}
}

func TestRotateComesBackFromAStepThatFails(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	agent := w.Cluster.AfterApply
	stuck := func(*iptlstest.Cluster) {}
	once := func() {
		first := true
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
			if !first {
				agent(c)
			} else {
				first = false
				stuck(c)
			}
		}
	}
	once()
	w.rotate(t, func(o *Options) { o.Session.Timeout = iptlstest.TooShort }).Check(t, 5, "was put back")
	w.want(t, "proxy-tls", w.CA.CertPEM())
	if w.Cluster.Issuer.Annotations[plan.RotationAnnotation] != "" ||
		w.Cluster.Issuer.Annotations[plan.UndoAnnotation] != "" {
		t.Errorf("records stay: %v", w.Cluster.Issuer.Annotations)
	}
	w.Cluster.AfterApply = agent
	w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0)
	once()
	w.rotate(t, func(o *Options) { o.Continue, o.Session.Timeout = true, iptlstest.TooShort }).Check(t, 5, "was put back")
	w.want(t, "proxy-tls", certs.UnionBundle(w.CA.CertPEM(), w.next.CertPEM()))
	w.Cluster.AfterApply = agent
	w.rotate(t, func(o *Options) { o.Continue = true }).Check(t, 0, "finished")
}

func TestRotateRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *rotating)
		flags  func(*Options)
		code   int
		says   []string
	}{
		{
			name: "a Secret that is not there", flags: func(o *Options) { o.Secret = "nowhere" }, code: 3,
			says: []string{"SecretNotFound"},
		},
		{
			name: "an old Secret that is gone", change: func(_ *testing.T, w *rotating) { w.Cluster.TLSSecret = nil }, code: 3,
			says: []string{"SecretNotFound", "proxy-tls"},
		},
		{
			name: "the Secret that is in service", flags: func(o *Options) { o.Secret = "proxy-tls" }, code: 2,
			says: []string{"in service now"},
		},
		{
			name:   "a certificate without a CA",
			change: func(_ *testing.T, w *rotating) { delete(w.Cluster.Others["next-tls"].Data, "ca.crt") }, code: 2,
			says: []string{"--ca-bundle FILE", "--system-roots"},
		},
		{
			name: "a certificate of another CA than the one given", code: 3, says: []string{"BundleDoesNotVerify"},
			change: func(t *testing.T, w *rotating) {
				t.Helper()
				w.Cluster.Others["next-tls"].Data["ca.crt"] = iptlstest.NewCA(t, "Third CA").CertPEM()
			},
		},
		{
			name: "a certificate for other names", code: 3, says: []string{"NameNotCovered", `Secret "next-tls", with both CAs`},
			change: func(t *testing.T, w *rotating) {
				t.Helper()
				w.Put("next-tls", iptlstest.Serving(t, w.next, certs.SANs{DNSNames: []string{"x.example.com"}}), w.next.CertPEM())
			},
		},
		{
			name: "public roots beside ca.crt", flags: func(o *Options) { o.SystemRoots = true }, code: 2,
			says: []string{"has ca.crt"},
		},
		{
			name: "a certificate that is not of the public CAs", flags: func(o *Options) { o.SystemRoots = true }, code: 3,
			change: func(_ *testing.T, w *rotating) {
				delete(
					w.Cluster.Others["next-tls"].Data, "ca.crt",
				)
			}, says: []string{"system roots"},
		},
		{
			name: "what is not advertised", code: 1, says: []string{"does not advertise the impersonation proxy"},
			change: func(_ *testing.T, w *rotating) { w.Cluster.Issuer.Status.Strategies = nil },
		},
		{
			name: "what is configured but not advertised yet", code: 3, says: []string{"does not advertise the CA bundle that " +
				"is configured"},
			change: func(t *testing.T, w *rotating) {
				t.Helper()
				w.Cluster.Report(w.Proxy.URL(), iptlstest.NewCA(t, "Other CA").CertPEM())
			},
		},
		{name: "no destination", flags: func(o *Options) { o.Secret = "" }, code: 2, says: []string{"--secret is missing"}},
		{
			name: "two destinations", flags: func(o *Options) { o.ToGenerated = true }, code: 2,
			says: []string{"exclude each other"},
		},
		{
			name: "two modes", flags: func(o *Options) { o.Abort, o.Status = true, true }, code: 2,
			says: []string{"--status and --undo exclude each other"},
		},
		{
			name: "an unknown step", flags: func(o *Options) { o.Step = "5" }, code: 2,
			says: []string{`invalid value "5" for --step`},
		},
		{name: "a negative time", flags: func(o *Options) { o.After = -1 }, code: 2, says: []string{"--after"}},
		{
			name: "an unknown code", flags: func(o *Options) { o.Allow = []string{"X"} }, code: 2,
			says: []string{"no such code"},
		},
		{
			name: "a record that it does not know", code: 1, says: []string{"its version is 7", "--forget"},
			change: func(_ *testing.T, w *rotating) {
				w.Cluster.Issuer.Annotations = map[string]string{plan.RotationAnnotation: `{"version":7}`}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newRotating(t, false)
			if tt.change != nil {
				tt.change(t, w)
			}
			w.rotate(t, tt.flags).Check(t, tt.code, tt.says...)
			if len(w.Cluster.Applied) > 0 {
				t.Error("something was changed")
			}
		})
	}
}

func TestRotateNoticesOthers(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0)
	w.rotate(t, func(o *Options) {
		o.CABundle, o.Session.In = "-", strings.NewReader(string(w.CA.CertPEM()))
	}, "ca-bundle").Check(t, 3, "was begun with another --ca-bundle")
	runUnset(t.Context(), w.World).Check(t, 3, `a rotation to Secret "next-tls" is under way`, "rotate --undo")
	runUndo(t.Context(), w.World).Check(t, 3, "is under way")
	runSet(t.Context(), w.World, "next-tls").Check(t, 3, "is under way")

	ours := specOf(w.World).TLS
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
	w.Cluster.Bump()
	for _, flags := range []func(*Options){
		func(o *Options) { o.Continue = true }, func(o *Options) { o.Abort, o.Secret = true, "" },
	} {
		w.rotate(t, flags).
			Check(
				t, 3, "somebody else has changed CredentialIssuer", plan.FieldSecret, `step 1 has left Secret "proxy-tls"`,
				"--forget",
			)
	}
	w.rotate(t, func(o *Options) { o.Status, o.Secret = true, "" }).
		Check(t, 0, "rotation advertised", "somebody else has changed")
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = ours
	// not ours
	w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = strings.Replace(
		w.Proxy.Endpoint(),
		"127.0.0.1",
		"[::ffff:127.0.0.1]",
		1,
	)
	w.Cluster.Bump()
	w.rotate(t, func(o *Options) { o.Continue, o.Step = true, "3" }).Check(t, 0, "switched")

	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
	w.Cluster.Bump()
	theirs := specOf(w.World)
	w.rotate(t, func(o *Options) { o.Forget, o.Secret = true, "" }).Check(t, 0, "forgotten")
	w.rotate(t, func(o *Options) { o.Forget, o.Secret = true, "" }).Check(t, 0, "unchanged")
	if got := specOf(
		w.World,
	); got.TLS.SecretName != theirs.TLS.SecretName ||
		w.Cluster.Issuer.Annotations[plan.RotationAnnotation] != "" {
		t.Errorf("it is %+v, %v", got, w.Cluster.Issuer.Annotations)
	}
}

func TestRotateNoticesAnotherRun(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	once := true
	w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
		if once { // another pipeline was quicker
			once = false
			r := rotation.Record{
				Version:   1,
				Phase:     rotation.PhaseAdvertised,
				Started:   time.Unix(1, 0),
				From:      c.Issuer.Spec.ImpersonationProxy.TLS.DeepCopy(),
				To:        &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "next-tls"},
				OldSecret: "proxy-tls",
			}
			text, _, err := plan.EncodeRecord(r)
			if err != nil {
				t.Error(err)
			}
			c.Issuer.Annotations = map[string]string{plan.RotationAnnotation: text}
			c.Bump()
		}
	}
	w.rotate(t, nil).Check(t, 1, "somebody else has gone on with the rotation meanwhile", "run the command again")
}

// TestRotateWhileARenewalWaits does not begin where the first step would put a renewed certificate in service that
// locks clients out, with which the agent waits.
func TestRotateWhileARenewalWaits(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.Remember(t, time.Now().Add(-time.Hour))
	fewer := iptlstest.Loopback()
	fewer.DNSNames = nil
	renewed := iptlstest.Serving(t, w.CA, fewer)
	w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = renewed.CertPEM, renewed.KeyPEM
	r := w.rotate(t, func(*Options) {})
	r.Check(t, 3, "OldClientsBreak", "NameNotCovered")
	if w.Cluster.Issuer.Annotations[plan.RotationAnnotation] != "" {
		t.Error("a rotation is under way")
	}
	w.want(t, "proxy-tls", w.CA.CertPEM())
}
