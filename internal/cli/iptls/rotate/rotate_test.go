package rotate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pinniped-toolkit/pinniped/internal/cli/factory"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/change"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session/sessiontest"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
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
	w.advertised = append(w.advertised, bundleOf(w.Cluster.Issuer))
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
	now := bundleOf(w.Cluster.Issuer)
	if !certs.SameBundle(now, bundle) {
		t.Errorf("advertised is %s, want %s", serving.Describe(now), serving.Describe(bundle))
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
			old := bundleOf(w.Cluster.Issuer)
			both := certs.UnionBundle(old, w.next.CertPEM())

			w.rotate(t, nil).
				Check(
					t, 6, "it is not time for step 3 yet", "--after DURATION", "will stop working",
					"credentialissuer/pinniped-concierge-config waiting",
				)
			w.want(t, oldSecret, both)
			for range 2 { // in a pipeline, again and again
				changes := len(w.Cluster.Applied)
				w.rotate(t, func(o *Options) { o.After = time.Hour }).
					Check(t, 6, "1h0m0s to have passed since the last kubeconfig was handed out that would stop working")
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
			back := "pinniped ip-tls rotate --secret proxy-tls"
			if generated {
				oldSecret, back = "", "pinniped ip-tls rotate --to-generated"
			}
			sessiontest.Run(t.Context(), w.World, func(s *session.Session) factory.Command {
				return &change.UndoOptions{Session: s, Flags: flags()}
			}).Check(t, 3, "OldClientsBreak", back)
			w.want(t, "next-tls", w.next.CertPEM())
			runUndo(t.Context(), w.World).Check(t, 0, "undone", `"ip-tls rotate"`, "all of which is taken back")
			w.want(t, oldSecret, old)
			w.rotate(t, func(o *Options) { o.Status = true; o.Secret = "" }).Check(t, 0, "no rotation")
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

	// Of a program that nobody knows, it is not known what it trusts.
	script, err := clientcmd.LoadFromFile(filepath.Join(directory, "good"))
	if err != nil {
		t.Fatal(err)
	}
	script.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		Exec: &clientcmdapi.ExecConfig{Command: "./team-login.sh", APIVersion: "client.authentication.k8s.io/v1"},
	}
	script.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	if err := clientcmd.WriteToFile(*script, filepath.Join(directory, "script")); err != nil {
		t.Fatal(err)
	}
	run().Check(t, 6, "1 of 3 kubeconfigs of which it is not known", "team-login.sh")
	if err := os.Remove(filepath.Join(directory, "script")); err != nil {
		t.Fatal(err)
	}
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
				before, old := specOf(w.World), bundleOf(w.Cluster.Issuer)
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
	w.rotate(t, abort).Check(t, 3, "is done", "OldClientsBreak", "rotate --secret proxy-tls")
	w.rotate(t, func(o *Options) {
		o.Secret, o.Continue, o.CABundle = "proxy-tls", true, "-"
		o.Session.In = strings.NewReader(string(w.CA.CertPEM()))
	}, "ca-bundle").
		Check(t, 0, "finished")
	w.want(t, "proxy-tls", w.CA.CertPEM())
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

// bundleOf returns the CA bundle that is advertised.
func bundleOf(issuer *configv1alpha1.CredentialIssuer) []byte {
	bundle, _ := plan.Advertised(issuer)
	return bundle
}
