package rotate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/rotation"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session/sessiontest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const generatedSecret = "pinniped-concierge-impersonation-proxy-tls-serving-certificate"

// rotating is a world in which a certificate of the Company CA is in service and one of the Next CA waits in Secret
// next-tls.
type rotating struct {
	*iptlstest.World
	next *certs.CA
	// advertised are all CA bundles that were advertised, in their order.
	advertised [][]byte
}

func newRotating(t *testing.T, generated bool) *rotating {
	t.Helper()
	w := &rotating{next: iptlstest.NewCA(t, "Next CA")}
	if generated {
		w.World = iptlstest.New(t)
		pair := iptlstest.Serving(t, w.Generated, iptlstest.Loopback())
		w.Put(generatedSecret, pair, nil)
		w.Proxy.Serve(t, pair)
	} else {
		w.World = iptlstest.NewExternalWorld(t)
	}
	w.Put("next-tls", iptlstest.Serving(t, w.next, iptlstest.Loopback()), w.next.CertPEM())
	w.Obey(t)
	agent := w.Cluster.AfterApply
	w.note()
	w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
		agent(c)
		w.note()
	}
	return w
}

func (w *rotating) note() {
	w.advertised = append(w.advertised, plan.Previous(w.Cluster.Issuer).Bundle)
}

func (w *rotating) rotate(t *testing.T, adapt func(*Options), changed ...string) *iptlstest.Run {
	t.Helper()
	return w.rotateIn(t.Context(), adapt, changed...)
}

func (w *rotating) rotateIn(ctx context.Context, adapt func(*Options), changed ...string) *iptlstest.Run {
	r := &iptlstest.Run{}
	o := &Options{
		Session: sessiontest.New(
			w.World,
			r,
		),
		Flags:   change.Flags{DryRun: session.DryRunNone, Wait: true},
		Secret:  "next-tls",
		Changed: iptlstest.Given(changed...),
	}
	if adapt != nil {
		adapt(o)
	}
	return r.Do(ctx, o)
}

// want compares what is configured, and that what is advertised verifies what is presented.
func (w *rotating) want(t *testing.T, secret string, bundle []byte) {
	t.Helper()
	spec := specOf(w.World)
	if secret == "" {
		if spec.TLS != nil {
			t.Fatalf("there is a tls block: %+v", spec.TLS)
		}
	} else if spec.TLS == nil || spec.TLS.SecretName != secret {
		t.Fatalf("the tls block is %+v, want Secret %q", spec.TLS, secret)
	}
	now := plan.Previous(w.Cluster.Issuer).Bundle
	if !certs.SameBundle(now, bundle) {
		t.Errorf("advertised is %s, want %s", plan.DescribePEM(now), plan.DescribePEM(bundle))
	}
	if !w.accepts(t, now) {
		t.Error("what is advertised does not verify what is presented")
	}
}

// accepts says whether clients with a CA bundle accept what is presented now.
func (w *rotating) accepts(t *testing.T, bundle []byte) bool {
	t.Helper()
	at := plan.Endpoint{Host: "127.0.0.1", Port: strings.TrimPrefix(w.Proxy.Endpoint(), "127.0.0.1:")}
	seen, _, err := session.Probe(t.Context(), session.RealNetwork{}, at)
	if err != nil {
		t.Fatal(err)
	}
	return len(certs.CheckServed(certs.Expected{Host: at.Host, Bundle: bundle, Now: time.Now()}, seen)) == 0
}

func TestRotate(t *testing.T) {
	t.Parallel()
	for _, generated := range []bool{false, true} {
		name, oldSecret := "from an external certificate", "proxy-tls"
		if generated {
			name, oldSecret = "from the generated certificate", generatedSecret
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRotating(t, generated)
			old := plan.Previous(w.Cluster.Issuer).Bundle
			both := certs.UnionBundle(old, w.next.CertPEM())

			w.rotate(t, nil).
				Check(
					t, 6, "it is not time for step 3 yet", "--after DURATION", "will stop working",
					"credentialissuer/pinniped-concierge-config waiting",
				)
			w.want(t, oldSecret, both)
			for range 2 { // in a pipeline, again and again
				changes := len(w.Cluster.Applied)
				w.rotate(t, func(o *Options) { o.After = time.Hour }).Check(t, 6, "1h0m0s to have passed since step 1")
				if len(w.Cluster.Applied) != changes {
					t.Error("something was changed")
				}
			}
			w.rotate(t, func(o *Options) {
				o.After = time.Hour
				o.Session.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
			}).Check(t, 0, "finished", "stop working now, as a rotation means it")
			w.want(t, "next-tls", w.next.CertPEM())
			for i, bundle := range w.advertised[1:] {
				if !w.accepts(t, bundle) {
					t.Errorf("bundle %d, advertised during the rotation, does not verify the new certificate", i+1)
				}
			}
			changes := len(w.Cluster.Applied)
			w.rotate(t, nil).Check(t, 0, "unchanged", "is done already")
			if len(w.Cluster.Applied) != changes {
				t.Error("something was changed after the end")
			}
			runUndo(t.Context(), w.World).Check(t, 0, "undone", `"ip-tls rotate"`)
			w.want(t, "next-tls", both)
		})
	}
}

func TestRotateToGenerated(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	to := func(o *Options) { o.Secret, o.ToGenerated = "", true }
	w.rotate(t, to).Check(t, 6)
	w.want(t, "proxy-tls", certs.UnionBundle(w.CA.CertPEM(), w.Generated.CertPEM()))
	w.rotate(t, func(o *Options) { to(o); o.Continue = true }).Check(t, 0, "finished")
	w.want(t, "", w.Generated.CertPEM())
	w.rotate(t, to).Check(t, 0, "unchanged")
	w.rotate(t, func(o *Options) { o.Abort, o.Secret = true, "" }).
		Check(t, 3, "the rotation to the agent's generated certificate is done", "--secret proxy-tls")

	unknown := newRotating(t, false)
	unknown.Cluster.CASecretErr = &discovery.ForbiddenError{Verb: "get"}
	unknown.rotate(t, to).Check(t, 3, "may not be read", "the CA of the agent is not known")
	newRotating(t, true).rotate(t, to).Check(t, 2, "nothing to rotate to")
}

func TestRotateStepByStep(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	step := func(step string, more ...func(*Options)) *iptlstest.Run {
		return w.rotate(t, func(o *Options) {
			o.Step = step
			for _, change := range more {
				change(o)
			}
		})
	}
	step("3").Check(t, 3, "step 3 comes after step 1")
	step("2").Check(t, 3, "step 2 comes after step 1")
	step("1", func(o *Options) { o.Flags.DryRun = session.DryRunServer }).Check(t, 0, "advertised (server dry run)",
		`+ spec.impersonationProxy.tls.certificateAuthorityData: "Company CA"`)
	if w.Cluster.Issuer.Annotations[plan.RotationAnnotation] != "" {
		t.Error("the dry run has left a record")
	}
	step("1").Check(t, 0, "advertised", "Checked the new certificate")
	step("1").Check(t, 0, "unchanged", "Step 1 is done already")
	step("4").Check(t, 3, "step 4 comes after step 3")
	step("3").Check(t, 6)
	step("2").Check(t, 6)
	step("2", func(o *Options) { o.Continue = true }).Check(t, 0, "It is time for step 3")
	w.want(t, "proxy-tls", certs.UnionBundle(w.CA.CertPEM(), w.next.CertPEM()))
	step("3", func(o *Options) { o.Continue = true }).Check(t, 0, "switched")
	w.want(t, "next-tls", certs.UnionBundle(w.CA.CertPEM(), w.next.CertPEM()))
	step("2").Check(t, 0, "unchanged")
	step("next").Check(t, 0, "finished")
	w.want(t, "next-tls", w.next.CertPEM())
	step("4").Check(t, 0, "unchanged")
}

func TestRotateNeedsNoWait(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.Put("next-tls", iptlstest.Serving(t, w.CA, iptlstest.Loopback()), w.CA.CertPEM())
	w.rotate(t, nil).Check(t, 0, "finished", "none has to be made anew")
	w.want(t, "next-tls", w.CA.CertPEM())
}

func TestRotateKubeconfigs(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	directory := t.TempDir()
	write := func(name, server string, bundle []byte, exec ...string) string {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: bundle}
		if len(exec) > 0 {
			config.AuthInfos["u"] = &clientcmdapi.AuthInfo{
				Exec: &clientcmdapi.ExecConfig{Command: "pinniped", APIVersion: "client.authentication.k8s.io/v1", Args: exec},
			}
		}
		path := filepath.Join(directory, name)
		if err := clientcmd.WriteToFile(*config, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	both := certs.UnionBundle(w.CA.CertPEM(), w.next.CertPEM())
	run := func() *iptlstest.Run {
		return w.rotate(t, func(o *Options) { o.Kubeconfigs, o.Session.Output = []string{directory}, "json" })
	}
	if err := os.WriteFile(filepath.Join(directory, "README"), []byte("not a kubeconfig: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	write("elsewhere", "https://elsewhere.example.com", w.CA.CertPEM())
	run().Check(t, 6, "there is none in what --kubeconfigs names")
	write("good", w.Proxy.URL(), both)
	old := write("old", w.Proxy.URL()+"/", w.CA.CertPEM())
	run().Check(t, 6, "1 of 2 kubeconfigs to be made anew", old, "which does not verify the new certificate")
	write(
		"old",
		w.Proxy.URL(),
		both,
		"login",
		"static",
		"--concierge-endpoint="+w.Proxy.URL(),
		"--concierge-ca-bundle-data="+base64.StdEncoding.EncodeToString(w.CA.CertPEM()),
	)
	run().Check(t, 6, `user \"u\"`)
	write(
		"old",
		w.Proxy.URL(),
		both,
		"login",
		"static",
		"--concierge-endpoint",
		w.Proxy.URL(),
		"--concierge-ca-bundle-data",
		base64.StdEncoding.EncodeToString(both),
	)

	// A kubeconfig that cannot be read keeps the rotation from its last step, and so does one that goes to another name
	// of the proxy.
	damaged := filepath.Join(directory, "damaged")
	if err := os.WriteFile(damaged, []byte("<<<<<<< HEAD\nclusters: []\nusers: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run().Check(t, 6, "1 of 3 kubeconfigs", damaged, "looks like a kubeconfig, but cannot be read")
	if err := os.Remove(damaged); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(w.Proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	served, err := w.Cluster.Secret(t.Context(), "pinniped-concierge", "proxy-tls")
	if err != nil {
		t.Fatal(err)
	}
	chain, _ := certs.ParseBundle(served.Data["tls.crt"])
	w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
		DNSNames: []string{"proxy.example.com"}, SHA256: certs.Fingerprint(chain[0].Raw), Replicas: 1, ServingReplicas: 1,
	}
	other := write("other-name", "https://proxy.example.com:"+at.Port(), w.CA.CertPEM())
	run().Check(t, 6, "1 of 3 kubeconfigs", other, "which does not verify the new certificate")
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	w.Cluster.Issuer.Status.ServingCertificate = nil
	r := run()
	r.Check(t, 0, "All 2 kubeconfigs")
	var result Result
	if err := json.Unmarshal(
		r.Out.Bytes(),
		&result,
	); err != nil || result.Outcome != "finished" || len(result.Kubeconfigs) != 3 ||
		len(result.Changes) != 2 {
		t.Errorf("result %+v, %v", result, err)
	}
	w.rotate(t, func(o *Options) { o.Kubeconfigs, o.Secret = []string{"/nowhere"}, "proxy-tls" }).
		Check(t, 2, "no such file")
	w.want(t, "next-tls", w.next.CertPEM())
}

func TestRotateAborts(t *testing.T) {
	t.Parallel()
	abort := func(o *Options) { o.Abort, o.Secret = true, "" }
	for _, generated := range []bool{false, true} {
		for _, after := range []string{"1", "3"} {
			name := "an external certificate after step " + after
			if generated {
				name = "the generated certificate after step " + after
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newRotating(t, generated)
				before, old := specOf(w.World), plan.Previous(w.Cluster.Issuer).Bundle
				w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0)
				if after == "3" {
					w.rotate(t, func(o *Options) { o.Step, o.Continue = "3", true }).Check(t, 0)
				}
				agent := w.Cluster.AfterApply
				w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
					agent(c)
					if !w.accepts(t, certs.UnionBundle(old, w.next.CertPEM())) {
						t.Error("a kubeconfig with both CAs stops working")
					}
				}
				w.rotate(t, abort).Check(t, 0, "aborted")
				secret := ""
				if before.TLS != nil {
					secret = before.TLS.SecretName
				}
				w.want(t, secret, old)
				w.rotate(t, abort).Check(t, 0, "unchanged")
				w.rotate(t, func(o *Options) { o.Step = "1" }).Check(t, 0, "advertised")
			})
		}
	}
	w := newRotating(t, false)
	w.rotate(t, abort).Check(t, 1, "there is no rotation to abort")
	w.rotate(t, func(o *Options) { o.Continue = true }).Check(t, 0, "finished")
	w.rotate(t, abort).Check(t, 3, "is done", "which going back would break", "rotate --secret proxy-tls")
	w.rotate(t, func(o *Options) {
		o.Secret, o.Continue, o.CABundle = "proxy-tls", true, "-"
		o.Session.In = strings.NewReader(string(w.CA.CertPEM()))
	}, "ca-bundle").
		Check(t, 0, "finished")
	w.want(t, "proxy-tls", w.CA.CertPEM())
}

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
			says: []string{"--abort and --status exclude each other"},
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
	runUnset(t.Context(), w.World).Check(t, 3, `a rotation to Secret "next-tls" is under way`, "rotate --abort")
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
	report := func(endpoint string, prints []string, more string) string {
		return `{"apiVersion":"cli.pinniped.dev/v1","kind":"KubeconfigRotation","endpoint":"` + endpoint + `","caBundle":[` + strings.Join(
			prints,
			",",
		) + `],` + more + `}`
	}
	const good = `"files":[{"path":"a","outcome":"rotated"},{"path":"b","outcome":"current"},{"path":"c","outcome":"unrelated"}]`
	for _, tt := range []struct {
		name, report string
		code         int
		says         string
	}{
		{"nothing", "", 2, "reading the report from stdin"},
		{"something else", `{"a":1}`, 2, `it is  "", not cli.pinniped.dev/v1 "KubeconfigRotation"`},
		{"nothing in it", report("", nil, `"files":[]`), 2, "it names no endpoint"},
		{"a dry run", report(w.Proxy.URL(), prints, `"dryRun":true,`+good), 6, "it is of a dry run"},
		{"another endpoint", report("https://elsewhere.example.com", prints, good), 6, "it is about " +
			"https://elsewhere.example.com"},
		{"a bundle from before", report(w.Proxy.URL(), prints[:1], good), 6, "lacks the new CA"},
		{
			"one that failed",
			report(w.Proxy.URL(), prints, `"files":[{"path":"a","outcome":"rotated"},{"path":"b","outcome":"failed"}]`), 6,
			"1 kubeconfigs have no new CA bundle: b",
		},
		{
			"one that was skipped",
			report(w.Proxy.URL(), prints, `"files":[{"path":"a","outcome":"rotated"},{"path":"b","outcome":"skipped"}]`), 6,
			"no new CA bundle: b",
		},
		{
			"none that leads there", report(w.Proxy.URL(), prints, `"files":[{"path":"c","outcome":"unrelated"}]`), 6,
			"no kubeconfig in it leads to the endpoint",
		},
		{"all have it", report(w.Proxy.URL()+"/", prints, good), 0, "says that 2 kubeconfigs have the new CA"},
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
	runApply(
		t.Context(),
		w.World,
		w.rotate(t, func(o *Options) { o.Flags.DryRun, o.Session.Output = session.DryRunClient, "yaml" }).Out.String(),
	).Check(t, 2, `it is of kind "Rotation", not "Plan"`)
	w.rotate(t, nil).Check(t, 0, "finished")
	says("")
	w.Cluster.Issuer.Annotations[plan.RotationAnnotation] = "nonsense"
	r := runStatus(t.Context(), w.World)
	if !strings.Contains(r.Out.String(), plan.RotationAnnotation) {
		t.Errorf("nothing is said about a record that cannot be read:\n%s", r.Out.String())
	}
}

func TestRotateToAnotherNamespace(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	shared := func(o *Options) { o.Secret = "shared/next-tls" }
	w.rotate(t, shared).Check(t, 3, "SecretNotPermitted")
	w.Share("next-tls", "pinniped-concierge")
	w.rotate(t, shared).Check(t, 6, "it is not time for step 3 yet")
	permitted := w.Cluster.Delegated
	w.Cluster.Delegated, w.Cluster.SecretsRead = nil, nil
	w.rotate(t, shared).Check(t, 3, "SecretNotPermitted")
	if w.HasRead("shared/next-tls") {
		t.Error("the Secret was read without permission")
	}
	w.Cluster.Delegated = permitted
	w.rotate(t, func(o *Options) { o.Secret, o.Continue = "shared/next-tls", true }).Check(t, 0)
	if got := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName; got != "shared/next-tls" {
		t.Errorf("the Secret is %q", got)
	}
}
