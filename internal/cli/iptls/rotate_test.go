package iptls

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

const generatedSecret = "pinniped-concierge-impersonation-proxy-tls-serving-certificate"

// rotating is a world in which a certificate of the Company CA is in service and one of the Next CA waits in Secret next-tls.
type rotating struct {
	*world
	next *certs.CA
	// advertised are all CA bundles that were advertised, in their order.
	advertised [][]byte
}

func newRotating(t *testing.T, generated bool) *rotating {
	t.Helper()
	w := &rotating{next: newCA(t, "Next CA")}
	if generated {
		w.world = newWorld(t)
		pair := serving(t, w.generated, loopback())
		w.put(generatedSecret, pair, nil)
		w.proxy.serve(t, pair)
	} else {
		w.world = newExternalWorld(t)
	}
	w.put("next-tls", serving(t, w.next, loopback()), w.next.CertPEM())
	w.obey(t)
	agent := w.cluster.afterApply
	w.note()
	w.cluster.afterApply = func(c *fakeCluster) {
		agent(c)
		w.note()
	}
	return w
}

func (w *rotating) note() { w.advertised = append(w.advertised, previous(w.cluster.issuer).Bundle) }

func (w *rotating) rotate(t *testing.T, change func(*RotateOptions), changed ...string) *run {
	t.Helper()
	return w.rotateIn(t.Context(), change, changed...)
}

func (w *rotating) rotateIn(ctx context.Context, change func(*RotateOptions), changed ...string) *run {
	r := &run{}
	o := &RotateOptions{
		Changing: Changing{Connection: w.connection(r), DryRun: dryRunNone, Wait: true}, Secret: "next-tls", Changed: given(changed...),
	}
	if change != nil {
		change(o)
	}
	return r.do(ctx, o)
}

// want compares what is configured, and that what is advertised verifies what is presented.
func (w *rotating) want(t *testing.T, secret string, bundle []byte) {
	t.Helper()
	spec := w.spec()
	if secret == "" {
		if spec.TLS != nil {
			t.Fatalf("there is a tls block: %+v", spec.TLS)
		}
	} else if spec.TLS == nil || spec.TLS.SecretName != secret {
		t.Fatalf("the tls block is %+v, want Secret %q", spec.TLS, secret)
	}
	now := previous(w.cluster.issuer).Bundle
	if !certs.SameBundle(now, bundle) {
		t.Errorf("advertised is %s, want %s", describePEM(now), describePEM(bundle))
	}
	if !w.accepts(t, now) {
		t.Error("what is advertised does not verify what is presented")
	}
}

// accepts says whether clients with a CA bundle accept what is presented now.
func (w *rotating) accepts(t *testing.T, bundle []byte) bool {
	t.Helper()
	at := endpoint{host: "127.0.0.1", port: strings.TrimPrefix(w.proxy.endpoint(), "127.0.0.1:")}
	seen, _, err := look(t.Context(), RealNetwork{}, at)
	if err != nil {
		t.Fatal(err)
	}
	return len(certs.CheckServed(certs.Expected{Host: at.host, Bundle: bundle, Now: time.Now()}, seen)) == 0
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
			old := previous(w.cluster.issuer).Bundle
			both := certs.UnionBundle(old, w.next.CertPEM())

			w.rotate(t, nil).check(t, 6, "it is not time for step 3 yet", "--after DURATION", "will stop working", "credentialissuer/pinniped-concierge-config waiting")
			w.want(t, oldSecret, both)
			for range 2 { // in a pipeline, again and again
				changes := len(w.cluster.applied)
				w.rotate(t, func(o *RotateOptions) { o.After = time.Hour }).check(t, 6, "1h0m0s to have passed since step 1")
				if len(w.cluster.applied) != changes {
					t.Error("something was changed")
				}
			}
			w.rotate(t, func(o *RotateOptions) {
				o.After = time.Hour
				o.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
			}).check(t, 0, "finished", "stop working now, as a rotation means it")
			w.want(t, "next-tls", w.next.CertPEM())
			for i, bundle := range w.advertised[1:] {
				if !w.accepts(t, bundle) {
					t.Errorf("bundle %d, advertised during the rotation, does not verify the new certificate", i+1)
				}
			}
			changes := len(w.cluster.applied)
			w.rotate(t, nil).check(t, 0, "unchanged", "is done already")
			if len(w.cluster.applied) != changes {
				t.Error("something was changed after the end")
			}
			w.undo(t, nil).check(t, 0, "undone", `"ip-tls rotate"`)
			w.want(t, "next-tls", both)
		})
	}
}

func TestRotateToGenerated(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	to := func(o *RotateOptions) { o.Secret, o.ToGenerated = "", true }
	w.rotate(t, to).check(t, 6)
	w.want(t, "proxy-tls", certs.UnionBundle(w.ca.CertPEM(), w.generated.CertPEM()))
	w.rotate(t, func(o *RotateOptions) { to(o); o.Continue = true }).check(t, 0, "finished")
	w.want(t, "", w.generated.CertPEM())
	w.rotate(t, to).check(t, 0, "unchanged")
	w.rotate(t, func(o *RotateOptions) { o.Abort, o.Secret = true, "" }).check(t, 3, "the rotation to the agent's generated certificate is done", "--secret proxy-tls")

	unknown := newRotating(t, false)
	unknown.cluster.caSecretErr = &discovery.ForbiddenError{Verb: "get"}
	unknown.rotate(t, to).check(t, 3, "may not be read", "the CA of the agent is not known")
	newRotating(t, true).rotate(t, to).check(t, 2, "nothing to rotate to")
}

func TestRotateStepByStep(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	step := func(step string, more ...func(*RotateOptions)) *run {
		return w.rotate(t, func(o *RotateOptions) {
			o.Step = step
			for _, change := range more {
				change(o)
			}
		})
	}
	step("3").check(t, 3, "step 3 comes after step 1")
	step("2").check(t, 3, "step 2 comes after step 1")
	step("1", func(o *RotateOptions) { o.DryRun = dryRunServer }).check(t, 0, "advertised (server dry run)",
		`+ spec.impersonationProxy.tls.certificateAuthorityData: "Company CA"`)
	if w.cluster.issuer.Annotations[rotationAnnotation] != "" {
		t.Error("the dry run has left a record")
	}
	step("1").check(t, 0, "advertised", "Checked the new certificate")
	step("1").check(t, 0, "unchanged", "Step 1 is done already")
	step("4").check(t, 3, "step 4 comes after step 3")
	step("3").check(t, 6)
	step("2").check(t, 6)
	step("2", func(o *RotateOptions) { o.Continue = true }).check(t, 0, "It is time for step 3")
	w.want(t, "proxy-tls", certs.UnionBundle(w.ca.CertPEM(), w.next.CertPEM()))
	step("3", func(o *RotateOptions) { o.Continue = true }).check(t, 0, "switched")
	w.want(t, "next-tls", certs.UnionBundle(w.ca.CertPEM(), w.next.CertPEM()))
	step("2").check(t, 0, "unchanged")
	step("next").check(t, 0, "finished")
	w.want(t, "next-tls", w.next.CertPEM())
	step("4").check(t, 0, "unchanged")
}

func TestRotateNeedsNoWait(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.put("next-tls", serving(t, w.ca, loopback()), w.ca.CertPEM())
	w.rotate(t, nil).check(t, 0, "finished", "none has to be made anew")
	w.want(t, "next-tls", w.ca.CertPEM())
}

func TestRotateKubeconfigs(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	directory := t.TempDir()
	write := func(name, server string, bundle []byte, exec ...string) string {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: bundle}
		if len(exec) > 0 {
			config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "pinniped", APIVersion: "client.authentication.k8s.io/v1", Args: exec}}
		}
		path := filepath.Join(directory, name)
		if err := clientcmd.WriteToFile(*config, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	both := certs.UnionBundle(w.ca.CertPEM(), w.next.CertPEM())
	run := func() *run {
		return w.rotate(t, func(o *RotateOptions) { o.Kubeconfigs, o.Output = []string{directory}, "json" })
	}
	if err := os.WriteFile(filepath.Join(directory, "README"), []byte("not a kubeconfig: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	write("elsewhere", "https://elsewhere.example.com", w.ca.CertPEM())
	run().check(t, 6, "there is none in what --kubeconfigs names")
	write("good", w.proxy.url(), both)
	old := write("old", w.proxy.url()+"/", w.ca.CertPEM())
	run().check(t, 6, "1 of 2 kubeconfigs to be made anew", old, "which does not verify the new certificate")
	write("old", w.proxy.url(), both, "login", "static", "--concierge-endpoint="+w.proxy.url(), "--concierge-ca-bundle-data="+base64.StdEncoding.EncodeToString(w.ca.CertPEM()))
	run().check(t, 6, `user \"u\"`)
	write("old", w.proxy.url(), both, "login", "static", "--concierge-endpoint", w.proxy.url(), "--concierge-ca-bundle-data", base64.StdEncoding.EncodeToString(both))
	r := run()
	r.check(t, 0, "All 2 kubeconfigs")
	var result RotateResult
	if err := json.Unmarshal(r.out.Bytes(), &result); err != nil || result.Action != "finished" || len(result.Kubeconfigs) != 3 || len(result.Changes) != 2 {
		t.Errorf("result %+v, %v", result, err)
	}
	w.rotate(t, func(o *RotateOptions) { o.Kubeconfigs, o.Secret = []string{"/nowhere"}, "proxy-tls" }).check(t, 2, "no such file")
	w.want(t, "next-tls", w.next.CertPEM())
}

func TestRotateAborts(t *testing.T) {
	t.Parallel()
	abort := func(o *RotateOptions) { o.Abort, o.Secret = true, "" }
	for _, generated := range []bool{false, true} {
		for _, after := range []string{"1", "3"} {
			name := "an external certificate after step " + after
			if generated {
				name = "the generated certificate after step " + after
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newRotating(t, generated)
				before, old := w.spec(), previous(w.cluster.issuer).Bundle
				w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0)
				if after == "3" {
					w.rotate(t, func(o *RotateOptions) { o.Step, o.Continue = "3", true }).check(t, 0)
				}
				agent := w.cluster.afterApply
				w.cluster.afterApply = func(c *fakeCluster) {
					agent(c)
					if !w.accepts(t, certs.UnionBundle(old, w.next.CertPEM())) {
						t.Error("a kubeconfig with both CAs stops working")
					}
				}
				w.rotate(t, abort).check(t, 0, "aborted")
				secret := ""
				if before.TLS != nil {
					secret = before.TLS.SecretName
				}
				w.want(t, secret, old)
				w.rotate(t, abort).check(t, 0, "unchanged")
				w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0, "advertised")
			})
		}
	}
	w := newRotating(t, false)
	w.rotate(t, abort).check(t, 1, "there is no rotation to abort")
	w.rotate(t, func(o *RotateOptions) { o.Continue = true }).check(t, 0, "finished")
	w.rotate(t, abort).check(t, 3, "is done", "which going back would break", "rotate --secret proxy-tls")
	w.rotate(t, func(o *RotateOptions) {
		o.Secret, o.Continue, o.CABundle = "proxy-tls", true, "-"
		o.In = strings.NewReader(string(w.ca.CertPEM()))
	}, "ca-bundle").
		check(t, 0, "finished")
	w.want(t, "proxy-tls", w.ca.CertPEM())
}

// TestRotateInterrupted ends every run right after a change, before it is seen to take effect, until one ends by itself.
func TestRotateInterrupted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		flag func(*RotateOptions)
		end  string
	}{
		{"forward", func(o *RotateOptions) { o.Continue = true }, "next-tls"},
		{"back", func(o *RotateOptions) { o.Abort, o.Secret = true, "" }, "proxy-tls"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newRotating(t, false)
			if tt.end == "proxy-tls" {
				w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0)
				w.rotate(t, func(o *RotateOptions) { o.Step, o.Continue = "3", true }).check(t, 0)
			}
			agent := w.cluster.afterApply
			for attempt := 1; ; attempt++ {
				ctx, cancel := context.WithCancel(t.Context())
				w.cluster.afterApply = func(c *fakeCluster) {
					agent(c)
					cancel()
				}
				r := w.rotateIn(ctx, tt.flag)
				cancel()
				if ui.ExitCodeOf(r.err) == 0 {
					break
				}
				r.check(t, 130)
				if attempt > 5 {
					t.Fatal("it does not end")
				}
			}
			bundle := w.next.CertPEM()
			if tt.end == "proxy-tls" {
				bundle = w.ca.CertPEM()
			}
			w.want(t, tt.end, bundle)
		})
	}
}

func TestRotateComesBackFromAStepThatFails(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	agent := w.cluster.afterApply
	stuck := func(*fakeCluster) {}
	once := func() {
		first := true
		w.cluster.afterApply = func(c *fakeCluster) {
			if !first {
				agent(c)
			} else {
				first = false
				stuck(c)
			}
		}
	}
	once()
	w.rotate(t, func(o *RotateOptions) { o.Timeout = tooShort }).check(t, 5, "was put back")
	w.want(t, "proxy-tls", w.ca.CertPEM())
	if w.cluster.issuer.Annotations[rotationAnnotation] != "" || w.cluster.issuer.Annotations[undoAnnotation] != "" {
		t.Errorf("records stay: %v", w.cluster.issuer.Annotations)
	}
	w.cluster.afterApply = agent
	w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0)
	once()
	w.rotate(t, func(o *RotateOptions) { o.Continue, o.Timeout = true, tooShort }).check(t, 5, "was put back")
	w.want(t, "proxy-tls", certs.UnionBundle(w.ca.CertPEM(), w.next.CertPEM()))
	w.cluster.afterApply = agent
	w.rotate(t, func(o *RotateOptions) { o.Continue = true }).check(t, 0, "finished")
}

func TestRotateRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *rotating)
		flags  func(*RotateOptions)
		code   int
		says   []string
	}{
		{name: "a Secret that is not there", flags: func(o *RotateOptions) { o.Secret = "nowhere" }, code: 3, says: []string{"SecretNotFound"}},
		{name: "an old Secret that is gone", change: func(_ *testing.T, w *rotating) { w.cluster.secret = nil }, code: 3, says: []string{"SecretNotFound", "proxy-tls"}},
		{name: "the Secret that is in service", flags: func(o *RotateOptions) { o.Secret = "proxy-tls" }, code: 2, says: []string{"in service now"}},
		{name: "a certificate without a CA", change: func(_ *testing.T, w *rotating) { delete(w.cluster.others["next-tls"].Data, "ca.crt") }, code: 2, says: []string{"--ca-bundle FILE", "--system-roots"}},
		{
			name: "a certificate of another CA than the one given", code: 3, says: []string{"BundleDoesNotVerify"},
			change: func(t *testing.T, w *rotating) {
				t.Helper()
				w.cluster.others["next-tls"].Data["ca.crt"] = newCA(t, "Third CA").CertPEM()
			},
		},
		{
			name: "a certificate for other names", code: 3, says: []string{"NameNotCovered", `Secret "next-tls", with both CAs`},
			change: func(t *testing.T, w *rotating) {
				t.Helper()
				w.put("next-tls", serving(t, w.next, certs.SANs{DNSNames: []string{"x.example.com"}}), w.next.CertPEM())
			},
		},
		{name: "public roots beside ca.crt", flags: func(o *RotateOptions) { o.SystemRoots = true }, code: 2, says: []string{"has ca.crt"}},
		{
			name: "a certificate that is not of the public CAs", flags: func(o *RotateOptions) { o.SystemRoots = true }, code: 3,
			change: func(_ *testing.T, w *rotating) { delete(w.cluster.others["next-tls"].Data, "ca.crt") }, says: []string{"system roots"},
		},
		{
			name: "what is not advertised", code: 1, says: []string{"does not advertise the impersonation proxy"},
			change: func(_ *testing.T, w *rotating) { w.cluster.issuer.Status.Strategies = nil },
		},
		{
			name: "what is configured but not advertised yet", code: 3, says: []string{"does not advertise the CA bundle that is configured"},
			change: func(t *testing.T, w *rotating) {
				t.Helper()
				w.cluster.report(w.proxy.url(), newCA(t, "Other CA").CertPEM())
			},
		},
		{name: "no destination", flags: func(o *RotateOptions) { o.Secret = "" }, code: 2, says: []string{"--secret is missing"}},
		{name: "two destinations", flags: func(o *RotateOptions) { o.ToGenerated = true }, code: 2, says: []string{"exclude each other"}},
		{name: "two modes", flags: func(o *RotateOptions) { o.Abort, o.Status = true, true }, code: 2, says: []string{"--abort and --status exclude each other"}},
		{name: "an unknown step", flags: func(o *RotateOptions) { o.Step = "5" }, code: 2, says: []string{`invalid value "5" for --step`}},
		{name: "a negative time", flags: func(o *RotateOptions) { o.After = -1 }, code: 2, says: []string{"--after"}},
		{name: "an unknown code", flags: func(o *RotateOptions) { o.Allow = []string{"X"} }, code: 2, says: []string{"no such code"}},
		{
			name: "a record that it does not know", code: 1, says: []string{"its version is 7", "--forget"},
			change: func(_ *testing.T, w *rotating) {
				w.cluster.issuer.Annotations = map[string]string{rotationAnnotation: `{"version":7}`}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newRotating(t, false)
			if tt.change != nil {
				tt.change(t, w)
			}
			w.rotate(t, tt.flags).check(t, tt.code, tt.says...)
			if len(w.cluster.applied) > 0 {
				t.Error("something was changed")
			}
		})
	}
}

func TestRotateNoticesOthers(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0)
	w.rotate(t, func(o *RotateOptions) { o.CABundle, o.In = "-", strings.NewReader(string(w.ca.CertPEM())) }, "ca-bundle").check(t, 3, "was begun with another --ca-bundle")
	w.unset(t, nil).check(t, 3, `a rotation to Secret "next-tls" is under way`, "rotate --abort")
	w.undo(t, nil).check(t, 3, "is under way")
	w.set(t.Context(), func(o *SetOptions) { o.Secret = "next-tls" }).check(t, 3, "is under way")

	ours := w.spec().TLS
	w.cluster.issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
	w.cluster.bump()
	for _, flags := range []func(*RotateOptions){
		func(o *RotateOptions) { o.Continue = true }, func(o *RotateOptions) { o.Abort, o.Secret = true, "" },
	} {
		w.rotate(t, flags).check(t, 3, "somebody else has changed CredentialIssuer", fieldSecret, `step 1 has left Secret "proxy-tls"`, "--forget")
	}
	w.rotate(t, func(o *RotateOptions) { o.Status, o.Secret = true, "" }).check(t, 0, "rotation advertised", "somebody else has changed")
	w.cluster.issuer.Spec.ImpersonationProxy.TLS = ours
	w.cluster.issuer.Spec.ImpersonationProxy.ExternalEndpoint = strings.Replace(w.proxy.endpoint(), "127.0.0.1", "[::ffff:127.0.0.1]", 1) // not ours
	w.cluster.bump()
	w.rotate(t, func(o *RotateOptions) { o.Continue, o.Step = true, "3" }).check(t, 0, "switched")

	w.cluster.issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
	w.cluster.bump()
	theirs := w.spec()
	w.rotate(t, func(o *RotateOptions) { o.Forget, o.Secret = true, "" }).check(t, 0, "forgotten")
	w.rotate(t, func(o *RotateOptions) { o.Forget, o.Secret = true, "" }).check(t, 0, "unchanged")
	if got := w.spec(); got.TLS.SecretName != theirs.TLS.SecretName || w.cluster.issuer.Annotations[rotationAnnotation] != "" {
		t.Errorf("it is %+v, %v", got, w.cluster.issuer.Annotations)
	}
}

func TestRotateNoticesAnotherRun(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	once := true
	w.cluster.beforeApply = func(c *fakeCluster) {
		if once { // another pipeline was quicker
			once = false
			r := rotation{
				Version: 1, Phase: phaseAdvertised, Started: time.Unix(1, 0), From: c.issuer.Spec.ImpersonationProxy.TLS.DeepCopy(),
				To: &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "next-tls"}, OldSecret: "proxy-tls",
			}
			text, _, err := encodeRecord(r)
			if err != nil {
				t.Error(err)
			}
			c.issuer.Annotations = map[string]string{rotationAnnotation: text}
			c.bump()
		}
	}
	w.rotate(t, nil).check(t, 1, "somebody else has gone on with the rotation meanwhile", "run the command again")
}

func TestRotateStatus(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	status := func(o *RotateOptions) { o.Status, o.Secret, o.Output = true, "", "json" }
	read := func() RotateResult {
		t.Helper()
		r := w.rotate(t, status)
		r.check(t, 0)
		var result RotateResult
		if err := json.Unmarshal(r.out.Bytes(), &result); err != nil || result.Action != "status" {
			t.Fatalf("%v: %s", err, r.out.String())
		}
		return result
	}
	states := func(result RotateResult) string {
		var all []string
		for _, step := range result.Steps {
			all = append(all, step.State)
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
		{"1", "advertised", "done,next,to come,to come", 2},
		{"3", "switched", "done,done,done,next", 4},
		{"4", "done", "done,done,done,done", 0},
	} {
		w.rotate(t, func(o *RotateOptions) { o.Step, o.Continue = tt.step, true }).check(t, 0)
		if got := read(); got.Phase != tt.phase || states(got) != tt.states || got.NextStep != tt.next || got.NewSecret != "next-tls" ||
			slices.Contains(got.WaitsFor, "") || (tt.step == "1") != (len(got.WaitsFor) > 0) {
			t.Errorf("after step %s: %+v", tt.step, got)
		}
	}
	text := w.rotate(t, func(o *RotateOptions) { o.Status = true })
	text.check(t, 0, "rotation done", `to: Secret "next-tls", CA "Next CA"`)
	if all := text.out.String() + w.cluster.issuer.Annotations[rotationAnnotation]; strings.Contains(all, "PRIVATE") {
		t.Error("a key is shown or kept")
	}
}

func TestRotateReports(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0)
	var prints []string
	for _, ca := range []*certs.CA{w.ca, w.next} {
		prints = append(prints, `"`+certs.Fingerprint(ca.Certificate().Raw)+`"`)
	}
	report := func(endpoint string, prints []string, more string) string {
		return `{"endpoint":"` + endpoint + `","caBundle":[` + strings.Join(prints, ",") + `],` + more + `}`
	}
	const good = `"files":[{"path":"a","outcome":"rotated"},{"path":"b","outcome":"current"},{"path":"c","outcome":"unrelated"}]`
	for _, tt := range []struct {
		name, report string
		code         int
		says         string
	}{
		{"nothing", "", 2, "reading the report from stdin"},
		{"something else", `{"a":1}`, 2, "it names no endpoint"},
		{"a dry run", report(w.proxy.url(), prints, `"dryRun":true,`+good), 6, "it is of a dry run"},
		{"another endpoint", report("https://elsewhere.example.com", prints, good), 6, "it is about https://elsewhere.example.com"},
		{"a bundle from before", report(w.proxy.url(), prints[:1], good), 6, "lacks the new CA"},
		{"one that failed", report(w.proxy.url(), prints, `"files":[{"path":"a","outcome":"rotated"},{"path":"b","outcome":"failed"}]`), 6, "1 kubeconfigs have no new CA bundle: b"},
		{"one that was skipped", report(w.proxy.url(), prints, `"files":[{"path":"a","outcome":"rotated"},{"path":"b","outcome":"skipped"}]`), 6, "no new CA bundle: b"},
		{"none that leads there", report(w.proxy.url(), prints, `"files":[{"path":"c","outcome":"unrelated"}]`), 6, "no kubeconfig in it leads to the endpoint"},
		{"all have it", report(w.proxy.url()+"/", prints, good), 0, "says that 2 kubeconfigs have the new CA"},
	} {
		w.rotate(t, func(o *RotateOptions) { o.Reports, o.In = []string{"-"}, strings.NewReader(tt.report) }).check(t, tt.code, tt.says)
		if t.Failed() {
			t.Fatalf("with %s", tt.name)
		}
	}
	w.want(t, "next-tls", w.next.CertPEM())
}

// TestStatusTellsOfARotation looks at `ip-tls status` in the middle of one.
func TestStatusTellsOfARotation(t *testing.T) {
	t.Parallel()
	w := newRotating(t, false)
	says := func(text string) {
		t.Helper()
		r := w.status(t.Context(), nil)
		if all := r.out.String(); strings.Contains(all, "rotation:") != (text != "") || !strings.Contains(all, text) {
			t.Errorf("want %q in:\n%s%s", text, all, r.errOut.String())
		}
	}
	says("")
	w.rotate(t, func(o *RotateOptions) { o.Step = "1" }).check(t, 0)
	says(`to Secret "next-tls", step 1 of 4 is done`)
	w.rotate(t, func(o *RotateOptions) { o.Step, o.Continue = "3", true }).check(t, 0)
	says("step 3 of 4 is done")
	ours := w.cluster.issuer.Spec.ImpersonationProxy.TLS.DeepCopy()
	w.cluster.issuer.Spec.ImpersonationProxy.TLS.SecretName = "proxy-tls"
	says("somebody else has changed " + fieldSecret)
	w.cluster.issuer.Spec.ImpersonationProxy.TLS = ours
	w.rotate(t, func(o *RotateOptions) { o.DryRun, o.Output = dryRunClient, "yaml" }).check(t, 0, "action: finished")
	w.apply(t, w.rotate(t, func(o *RotateOptions) { o.DryRun, o.Output = dryRunClient, "yaml" }).out.String(), nil).check(t, 2, `it is of kind "", not "Plan"`)
	w.rotate(t, nil).check(t, 0, "finished")
	says("")
	w.cluster.issuer.Annotations[rotationAnnotation] = "nonsense"
	r := w.status(t.Context(), nil)
	if !strings.Contains(r.out.String(), rotationAnnotation) {
		t.Errorf("nothing is said about a record that cannot be read:\n%s", r.out.String())
	}
}
