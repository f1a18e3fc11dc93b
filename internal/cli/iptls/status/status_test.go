package status

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
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
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/pkg/kubeconfig"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

// kubeconfigOf returns a kubeconfig for server, with a context for each CA bundle, named by its key.
func kubeconfigOf(server string, bundles map[string][]byte) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	for name, bundle := range bundles {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: bundle}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{}
	}
	return config
}

// currentOf returns the user's own kubeconfig, with a context for server.
func currentOf(server, context string, bundle []byte) *factory.Cluster {
	raw := kubeconfigOf(server, map[string][]byte{context: bundle})
	return &factory.Cluster{Raw: raw, Source: &kubeconfig.Source{Cluster: raw.Clusters[context]}}
}

// runStatus runs the command. Its current kubeconfig is an old one for the endpoint, which trusts the generated CA.
func runStatus(ctx context.Context, w *iptlstest.World, change func(*Options)) *iptlstest.Run {
	r := &iptlstest.Run{}
	o := &Options{Session: sessiontest.New(w, r)}
	o.Current = func(factory.ClusterFlags) (*factory.Cluster, error) {
		return currentOf(w.Proxy.URL(), "mine", w.Generated.CertPEM()), nil
	}
	if change != nil {
		change(o)
	}
	return r.Do(ctx, o)
}

func statusOf(t *testing.T, r *iptlstest.Run) result.Status {
	t.Helper()
	var status result.Status
	if err := json.Unmarshal(r.Out.Bytes(), &status); err != nil {
		t.Fatalf("%v in %s", err, r.Out.String())
	}
	return status
}

func asJSON(o *Options) { o.Session.Output = "json" }

func TestStatus(t *testing.T) {
	t.Parallel()
	t.Run("of a generated certificate", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		r := runStatus(t.Context(), w, nil)
		r.Check(t, 0, "credentialissuer/pinniped-concierge-config: in effect", "a certificate that the agent generates",
			"renewed by:  the agent itself", w.Proxy.URL(), "89 days left (99%)", "as expected",
			"(current)    mine      ✓ works")
		if strings.Contains(r.Out.String(), "▕") || strings.Contains(r.Out.String(), "\x1b") {
			t.Errorf("drawn although this is no terminal:\n%s", r.Out.String())
		}
	})
	t.Run("of a Secret that cert-manager fills", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		next := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
		w.Cluster.TLSSecret.Annotations = map[string]string{
			"cert-manager.io/certificate-name": "proxy",
			"cert-manager.io/issuer-name":      "old",
		}
		w.Cluster.CertManager = &discovery.Certificate{Issuer: "ClusterIssuer my-ca", RenewalTime: next, Ready: true}
		runStatus(t.Context(), w, nil).Check(t, 8, "in effect", "Secret pinniped-concierge/proxy-tls, verification Enforce",
			`cert-manager, Certificate "proxy", from ClusterIssuer my-ca, next at 2027-01-02T03:04:05Z`,
			"✗ broken: it trusts \""+plan.GeneratedCAName)
		result := statusOf(t, runStatus(t.Context(), w, asJSON))
		leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
		if !result.InEffect || result.Certificate.SHA256 != certs.Fingerprint(leaf[0].Raw) ||
			result.Certificate.Source != "secret" || len(result.Addresses) != 1 ||
			result.Addresses[0].SHA256 != result.Certificate.SHA256 || !result.RenewedBy.RenewalTime.Equal(next) {
			t.Errorf("got %+v", result)
		}
		w.Cluster.CertManager.Ready, w.Cluster.CertManager.Message = false, "the order failed"
		runStatus(t.Context(), w, nil).Check(t, 8, "the order failed")
		w.Cluster.CertManager = nil
		runStatus(t.Context(), w, nil).Check(t, 8, "that Certificate no longer exists")
		w.Cluster.TLSSecret.Annotations = nil
		runStatus(t.Context(), w, nil).Check(t, 8, "unknown; write the next certificate")
	})
	t.Run("of a change that is not in effect yet, and of kubeconfigs that it will break", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runSet(t.Context(), w, func(o *change.SetOptions) { o.Flags.Wait = false }).Check(t, 0)
		r := runStatus(t.Context(), w, nil)
		r.Check(t, 5, "not in effect", "still publishes another CA bundle", "presents another certificate",
			"✗ will break: it trusts", "run: pinniped ip-tls check\n")
	})
	t.Run("of an endpoint that does not respond", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = "127.0.0.1:1"
		w.Cluster.Report("https://127.0.0.1:1", w.Generated.CertPEM())
		runStatus(t.Context(), w, nil).Check(t, 5, "127.0.0.1:1 cannot be checked",
			"127.0.0.1:1   (none)     -       ✗ EndpointUnreachable", "connection refused")
	})
	t.Run("of an agent that reports an error", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
			iptlstest.FailedReport(configv1alpha1.ReasonErrorDuringSetup, "disk full"),
		}
		runStatus(t.Context(), w, nil).Check(t, 5, "the agent reports ErrorDuringSetup: disk full")
	})
	t.Run("of an agent that has not reported", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer.Status.Strategies = nil
		runStatus(t.Context(), w, nil).Check(t, 5, "has not reported anything")
	})
	t.Run("of a proxy that is switched off", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
			iptlstest.FailedReport(configv1alpha1.ReasonDisabled, "switched off"),
		}
		runStatus(t.Context(), w, nil).Check(t, 0, "Disabled: switched off")
	})
	t.Run("of replicas that serve something else", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
			Source: configv1alpha1.ServingCertificateGenerated, Replicas: 3, ServingReplicas: 2,
			OtherReplicas: []configv1alpha1.OtherReplica{{Name: "agent-x", Message: "KeyMismatch: no"}},
		}
		r := runStatus(t.Context(), w, nil)
		r.Check(t, 5, "2 of 3 replicas", "replicas:    2 of 3 serve this certificate", "✗ agent-x: KeyMismatch: no")
	})
	t.Run("of replicas that serve the last known good certificate", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
			Source: configv1alpha1.ServingCertificateSecret, SHA256: "00ff", Replicas: 2, ServingReplicas: 2,
		}
		r := runStatus(t.Context(), w, nil)
		if text := r.Out.String(); !strings.Contains(text, "2 of 2 serve another certificate, SHA-256 00ff\n") {
			t.Errorf("got\n%s", text)
		}
	})
	t.Run("with partial permissions", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		w.Cluster.ReadErr = &discovery.ForbiddenError{Verb: "get", Name: "proxy-tls"}
		r := runStatus(t.Context(), w, nil)
		r.Check(t, 8, "in effect", "not known:\n", "the certificate in Secret \"pinniped-concierge/proxy-tls\", and who "+
			"renews it: not permitted to get")
		if result := statusOf(t, runStatus(t.Context(), w, asJSON)); result.Certificate == nil ||
			result.Certificate.Source != "endpoint" {
			t.Errorf("what is presented is not shown: %+v", result.Certificate)
		}
	})
	t.Run("without a Secret", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		w.Cluster.TLSSecret = nil
		runStatus(t.Context(), w, nil).Check(t, 5, `there is no Secret "pinniped-concierge/proxy-tls"`)
	})
	t.Run("without a cluster", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer = nil
		runStatus(t.Context(), w, nil).Check(t, 1, "no CredentialIssuer in the cluster")
	})
}

func TestStatusKubeconfigs(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	old, next := iptlstest.NewCA(t, "Old CA"), iptlstest.NewCA(t, "Next CA")
	bundle := append(append([]byte{}, w.CA.CertPEM()...), next.CertPEM()...)
	path := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(path, bundle, 0o600))
	runSet(t.Context(), w, func(o *change.SetOptions) { o.Certificate.CABundle = path }, "ca-bundle").Check(t, 0)

	dir := t.TempDir()
	config := kubeconfigOf(w.Proxy.URL(), map[string][]byte{
		"1-same": bundle,
		"2-part": w.CA.CertPEM(),
		"3-more": append(append([]byte{}, bundle...), old.CertPEM()...),
		"4-old":  old.CertPEM(),
		"5-none": nil,
	})
	config.Clusters["6-insecure"] = &clientcmdapi.Cluster{Server: w.Proxy.URL(), InsecureSkipTLSVerify: true}
	config.Clusters["7-other"] = &clientcmdapi.Cluster{
		Server:                   "https://api.example.com:6443",
		CertificateAuthorityData: old.CertPEM(),
	}
	config.Clusters["8-plugin"] = &clientcmdapi.Cluster{Server: w.Proxy.URL(), CertificateAuthorityData: bundle}
	config.Clusters["9-file"] = &clientcmdapi.Cluster{Server: w.Proxy.URL(), CertificateAuthority: "missing.pem"}
	config.Clusters["8-script"] = config.Clusters["8-plugin"]
	config.AuthInfos["8-script"] = &clientcmdapi.AuthInfo{
		Exec: &clientcmdapi.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: "./team-login.sh", InteractiveMode: "Never",
		},
	}
	for _, name := range []string{"6-insecure", "7-other", "8-plugin", "8-script", "9-file"} {
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	config.AuthInfos["8-plugin"] = &clientcmdapi.AuthInfo{
		Exec: &clientcmdapi.ExecConfig{
			APIVersion:      "client.authentication.k8s.io/v1",
			Command:         "/does/not/run",
			InteractiveMode: "Never",
			Args: []string{
				"login", "static", "--concierge-endpoint=" + w.Proxy.URL(),
				"--concierge-ca-bundle-data=" + base64.StdEncoding.EncodeToString(old.CertPEM()),
			},
		},
	}
	for _, sub := range []string{"a.yaml", filepath.Join("deeper", "b.yaml")} {
		must.Do(t, clientcmd.WriteToFile(*config, filepath.Join(dir, sub)))
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("not a kubeconfig: {"), 0o600))
	at := must.Get(url.Parse(w.Proxy.URL()))(t)
	w.Cluster.Issuer.Status.ServingCertificate = &configv1alpha1.ServingCertificateStatus{
		DNSNames: []string{"proxy.example.com"},
	}
	more := t.TempDir()
	other := clientcmdapi.NewConfig()
	other.Clusters["name"] = &clientcmdapi.Cluster{
		Server:                   "https://proxy.example.com:" + at.Port(),
		CertificateAuthorityData: old.CertPEM(),
	}
	other.Contexts["name"] = &clientcmdapi.Context{Cluster: "name"}
	must.Do(t, clientcmd.WriteToFile(*other, filepath.Join(more, "other-name")))
	must.Do(t, os.WriteFile(filepath.Join(more, "damaged"), []byte("<<<<<<< HEAD\nclusters: []\nusers: []\n"), 0o600))
	found := map[string]result.FileOutcome{}
	runStatus(t.Context(), w, func(o *Options) { o.KubeconfigsFrom = []string{more} }).
		Check(t, 8, "1 of 2 kubeconfigs are broken or will break, and 1 cannot be read")
	unread := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(unread, "damaged"), []byte("<<<<<<< A\nclusters: []\nusers: []\n"), 0o600))
	runStatus(t.Context(), w, func(o *Options) { o.KubeconfigsFrom = []string{unread} }).
		Check(t, 8, "1 of 1 kubeconfigs cannot be read")
	for _, one := range statusOf(
		t, runStatus(t.Context(), w, func(o *Options) { o.Session.Output, o.KubeconfigsFrom = "json", []string{more} }),
	).Kubeconfigs {
		found[filepath.Base(one.Path)] = one.Outcome
	}
	same.Values(t, "another name of the proxy, and a file that cannot be read",
		map[string]result.FileOutcome{"other-name": "broken", "damaged": "notKnown"}, found)

	r := runStatus(t.Context(), w, func(o *Options) { o.Session.Output, o.KubeconfigsFrom = "json", []string{dir} })
	r.Check(t, 8, "2 of 2 kubeconfigs are broken or will break")
	status := statusOf(t, r)
	got := map[string]result.FileOutcome{}
	for _, one := range status.Kubeconfigs[0].Entries {
		got[one.Name] = one.Outcome
	}
	want := map[string]result.FileOutcome{
		"1-same": "works", "2-part": "outdated", "3-more": "outdated", "4-old": "broken", "5-none": "broken",
		"6-insecure": "works", "8-plugin": "broken", "8-script": "notKnown", "9-file": "broken",
	}
	same.Values(t, "verdicts", want, got)
	if first := status.Kubeconfigs[0]; first.Path != filepath.Join(dir, "a.yaml") || first.Outcome != "broken" {
		t.Errorf("the file is %+v", first)
	}
	const unknown = "2 contexts in the kubeconfigs, because they use other endpoints"
	if len(status.Kubeconfigs) != 2 || len(status.Kubeconfigs[1].Entries) != len(want) ||
		!strings.Contains(strings.Join(status.NotKnown, "\n"), unknown) {
		t.Errorf("%d files, not known %q", len(status.Kubeconfigs), status.NotKnown)
	}
	for name, says := range map[string]string{
		"2-part": `lacks "Next CA"`, "3-more": `has "Old CA"`, "5-none": "system roots", "6-insecure": "verifies nothing", "8-plugin": "--concierge-ca-bundle-data",
		"8-script": "whose trusted CAs are unknown",
	} {
		reason := ""
		for _, one := range status.Kubeconfigs[0].Entries {
			if one.Name == name {
				reason = one.Reason
			}
		}
		if !strings.Contains(reason, says) {
			t.Errorf("%s: %q does not say %q", name, reason, says)
		}
	}
	t.Run("from a file that is none", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{filepath.Join(dir, "notes.txt"), filepath.Join(dir, "nowhere")} {
			runStatus(t.Context(), w, func(o *Options) { o.KubeconfigsFrom = []string{path} }).Check(t, 2, "reading")
		}
	})
}

func TestValidity(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	for _, tt := range []struct {
		name         string
		from, to     time.Duration
		bar, remains string
	}{
		{"half over", -50 * day, 50 * day, "▕████████████░░░░░░░░░░░░▏", "50 days left (50%)"},
		{"new", 0, 90 * day, "▕░░░░░░░░░░░░░░░░░░░░░░░░▏", "90 days left (100%)"},
		{"nearly over", -99 * day, 90 * time.Minute, "▕███████████████████████░▏", "90 minutes left (0%)"},
		{"over", -90 * day, -3 * time.Hour, "▕████████████████████████▏", "expired 3 hours ago"},
		{"not begun", time.Minute, day, "▕░░░░░░░░░░░░░░░░░░░░░░░░▏", "not valid yet, in 60 seconds"},
		{"without a lifetime", 0, 0, "▕░░░░░░░░░░░░░░░░░░░░░░░░▏", "expired 0 seconds ago"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := &result.CertificateStatus{NotBefore: at.Add(tt.from), NotAfter: at.Add(tt.to)}
			want := fmt.Sprintf("%s to %s  %s, %s", c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339), tt.bar,
				tt.remains)
			if got := (&Options{Terminal: true}).validity(c, at); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			coloured := Options{Terminal: true, Style: ui.Style{Colour: true}}
			if got := coloured.validity(c, at); !strings.Contains(got, "\x1b[") {
				t.Errorf("without colour: %q", got)
			}
		})
	}
}
