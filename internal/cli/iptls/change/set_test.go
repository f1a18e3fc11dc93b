package change

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

func TestSet(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	first := runSet(t.Context(), w, nil)
	first.Check(t, 0, "credentialissuer/pinniped-concierge-config configured", "OldClientsBreak",
		"presents the certificate at 1 of 1 addresses", "tls.secretName", w.Proxy.URL())
	want := []map[string]any{
		{
			"metadata": map[string]any{"resourceVersion": "1"},
			"spec": map[string]any{
				"impersonationProxy": map[string]any{"tls": map[string]any{
					"secretName": "proxy-tls", "verification": "Enforce", "caTransition": "Immediate",
				}},
			},
		},
		{
			"metadata": map[string]any{"resourceVersion": "3"},
			"spec": map[string]any{"impersonationProxy": map[string]any{"tls": map[string]any{
				"secretName": "proxy-tls", "verification": "Enforce", "caTransition": "DualTrust",
			}}},
		},
	}
	same.Values(t, "applied", want, w.Cluster.WithoutRecords())
	same.Values(t, "options",
		[]discovery.ApplyOptions{{FieldManager: "pinniped-cli", Force: true}, {FieldManager: "pinniped-cli"}},
		w.Cluster.Options)

	second := runSet(t.Context(), w, nil)
	second.Check(t, 0, "credentialissuer/pinniped-concierge-config unchanged")
	if len(w.Cluster.Applied) != 2 || strings.Contains(second.ErrOut.String(), "OldClientsBreak") {
		t.Errorf("the second run applied %d times:\n%s", len(w.Cluster.Applied)-2, second.ErrOut.String())
	}
}

func TestSetJSON(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(bundle, w.CA.CertPEM(), 0o600))
	r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Output, o.Certificate.CABundle = "json", bundle },
		"ca-bundle")
	r.Check(t, 0)
	var result Result
	if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil {
		t.Fatalf("%v in %s", err, r.Out.String())
	}
	leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
	if result.Outcome != "configured" || result.Certificate.SHA256 != certs.Fingerprint(leaf[0].Raw) ||
		len(result.Changes) != 4 || len(result.Addresses) != 1 ||
		result.Addresses[0].Problem != "" || !strings.Contains(result.CABundle.String(), "Company CA") {
		t.Errorf("got %+v", result)
	}
	if strings.Contains(r.Out.String()+r.ErrOut.String(), "PRIVATE KEY") {
		t.Error("a private key is printed")
	}
}

// TestSetInAnotherNamespace checks that no Secret is read in a namespace without an agent.
func TestSetInAnotherNamespace(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.Issuer.Status.Objects = &configv1alpha1.ObjectNames{Namespace: "pinniped-concierge"}
	r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Namespace = "elsewhere" })
	r.Check(t, 2, `invalid value "elsewhere" for --namespace: the agent of CredentialIssuer `,
		`in namespace "pinniped-concierge"`)
	r.Lacks(t, "kubectl create")
}

func TestSetBundleFromStdin(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	delete(w.Cluster.TLSSecret.Data, "ca.crt")
	r := runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.CABundle, o.Session.In = "-", strings.NewReader(string(w.CA.CertPEM()))
	}, "ca-bundle")
	r.Check(t, 0, "configured")
	got := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData
	if !plan.SameBase64(got, w.CA.CertPEM()) {
		t.Errorf("certificateAuthorityData is %q", got)
	}
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	other := func(t *testing.T, w *iptlstest.World) *certs.KeyPair {
		t.Helper()
		return renewal(t, w)
	}
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *iptlstest.World)
		code   string
	}{
		{
			"a Secret that does not exist", func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret = nil },
			"SecretNotFound",
		},
		{
			"a half-made Secret", func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret.Data["tls.crt"] = nil },
			"SecretIncomplete",
		},
		{
			"a Secret of another type",
			func(_ *testing.T, w *iptlstest.World) { w.Cluster.TLSSecret.Type = "example.com/other" }, "SecretIncomplete",
		},
		{"another certificate's key", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			w.Cluster.TLSSecret.Data["tls.key"] = other(t, w).KeyPEM
		}, "KeyMismatch"},
		{"a wrong name", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			pair := iptlstest.Serving(t, w.CA, certs.SANs{DNSNames: []string{"other.example.com"}})
			w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "NameNotCovered"},
		{"an expired certificate", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			pair := must.Get(w.CA.IssueServing(iptlstest.Loopback(), time.Now().Add(-time.Hour), time.Minute))(t)
			w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "Expired"},
		{"a certificate that is not valid yet", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			pair := must.Get(w.CA.IssueServing(iptlstest.Loopback(), time.Now().Add(time.Hour), time.Hour))(t)
			w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "NotYetValid"},
		{"a CA that does not verify it", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			w.Cluster.TLSSecret.Data["ca.crt"] = iptlstest.NewCA(t, "Other CA").CertPEM()
		}, "BundleDoesNotVerify"},
		{"a private key in the CA bundle", func(_ *testing.T, w *iptlstest.World) {
			w.Cluster.TLSSecret.Data["ca.crt"] = append(w.Cluster.TLSSecret.Data["ca.crt"], w.Pair.KeyPEM...)
		}, "NotACertificate"},
		{"a bundle in the spec that is not base64", func(_ *testing.T, w *iptlstest.World) {
			w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
				SecretName: "x", CertificateAuthorityData: "*",
			}
		}, "NotACertificate"},
		{"breaking old clients of an external certificate", func(t *testing.T, w *iptlstest.World) {
			t.Helper()
			w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "old"}
			w.Cluster.Report(w.Proxy.URL(), iptlstest.NewCA(t, "Old CA").CertPEM())
		}, "OldClientsBreak"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			tt.change(t, w)
			r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Output, o.Certificate.Allow = "json", nil })
			r.Check(t, 3, tt.code+":", "nothing was changed")
			var result Result
			if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil || result.Outcome != "refused" ||
				!result.Certificate.Has(certs.Code(tt.code)) {
				t.Errorf("result %+v, %v", result, err)
			}
			if len(w.Cluster.Options) > 0 {
				t.Error("something was applied")
			}
			if strings.Contains(r.Out.String()+r.ErrOut.String(), "PRIVATE KEY-----") {
				t.Error("a private key is printed")
			}
		})
	}
}

func TestSetAllow(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	pair := iptlstest.Serving(t, w.CA, certs.SANs{DNSNames: []string{"other.example.com"}})
	w.Cluster.TLSSecret.Data["tls.crt"], w.Cluster.TLSSecret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	r := runSet(t.Context(), w,
		func(o *SetOptions) { o.Certificate.Allow = []string{"NameNotCovered", "OldClientsBreak"} })
	r.Check(t, 0, "configured", "allowed: NameNotCovered")
	if got := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.Verification; got != configv1alpha1.VerificationWarn {
		t.Errorf("verification is %q, so the agent would refuse what was allowed", got)
	}
}

func TestSetDryRun(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"client", "server"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			r := runSet(t.Context(), w, func(o *SetOptions) { o.Flags.DryRun, o.Flags.Diff = kind, true })
			r.Check(t, 0, "configured ("+kind+" dry run)",
				"- spec.impersonationProxy.tls.secretName: (none)\n+ spec.impersonationProxy.tls.secretName: proxy-tls")
			if len(w.Cluster.Applied) > 0 {
				t.Error("something was stored")
			}
			if got := len(w.Cluster.Options); kind == "client" && got != 0 ||
				kind == "server" && (got != 1 || !w.Cluster.Options[0].DryRun) {
				t.Errorf("asked the API server %d times: %+v", got, w.Cluster.Options)
			}
		})
	}
}

func TestSetNoticesChanges(t *testing.T) {
	t.Parallel()
	t.Run("checks again when the CredentialIssuer changes between reading and applying", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.BeforeApply = once(func(c *iptlstest.Cluster) {
			c.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = "elsewhere.example.com"
			c.Bump()
		})
		runSet(t.Context(), w, nil).Check(t, 3, "has changed in the meantime", "NameNotCovered", "elsewhere.example.com")
	})
	t.Run("goes on when only the status has changed", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		times := 0
		w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
			if times++; times < 4 {
				c.Bump()
			}
		}
		runSet(t.Context(), w, nil).Check(t, 0, "configured")
	})
	t.Run("gives up when it changes all the time", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.BeforeApply = (*iptlstest.Cluster).Bump
		runSet(t.Context(), w, nil).Check(t, 1, "changing CredentialIssuer")
	})
	t.Run("follows a Secret that is renewed while waiting", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		renewed := renewal(t, w)
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
			c.Report(w.Proxy.URL(), w.CA.CertPEM())
			c.TLSSecret.Data["tls.crt"], c.TLSSecret.Data["tls.key"], c.TLSSecret.ResourceVersion = renewed.CertPEM, renewed.KeyPEM, "2"
			w.Proxy.Serve(t, renewed)
		}
		leaf, _ := certs.ParseBundle(renewed.CertPEM)
		runSet(t.Context(), w, nil).
			Check(t, 0, "has changed in the meantime", "certificate: SHA-256 "+certs.Fingerprint(leaf[0].Raw))
	})
	t.Run("stops when somebody changes the configuration while waiting", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
			c.Issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
			c.Bump()
		}
		runSet(t.Context(), w, nil).Check(t, 1, "changed by another client")
		if got := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.SecretName; got != "theirs" {
			t.Errorf("their change was overwritten: %q", got)
		}
	})
}

func TestSetNotConverged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		agent func(*testing.T, *iptlstest.World) func(*iptlstest.Cluster)
		says  string
	}{
		{"says what the agent reports", func(*testing.T, *iptlstest.World) func(*iptlstest.Cluster) {
			return func(c *iptlstest.Cluster) {
				c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
					iptlstest.FailedReport(configv1alpha1.ReasonErrorDuringSetup, "disk full"),
				}
			}
		}, "the agent reports ErrorDuringSetup: disk full"},
		{"says that another bundle is published", func(*testing.T, *iptlstest.World) func(*iptlstest.Cluster) {
			return func(*iptlstest.Cluster) {}
		}, "still publishes another CA bundle"},
		{"says that another certificate is presented", func(_ *testing.T, w *iptlstest.World) func(*iptlstest.Cluster) {
			return func(c *iptlstest.Cluster) { c.Report(w.Proxy.URL(), w.CA.CertPEM()) }
		}, "presents another certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			agent := tt.agent(t, w)
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
				if len(w.Cluster.Applied) == 1 {
					agent(c)
				}
			}
			r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort })
			r.Check(t, 5, tt.says, "did not take effect", "was restored")
			if got := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS; got != nil {
				t.Errorf("the previous configuration was not put back: %+v", got)
			}
		})
	}
	t.Run("says that nobody answers", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		nowhere := "127.0.0.1:1"
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) { c.Report("https://"+nowhere, w.CA.CertPEM()) }
		r := runSet(t.Context(), w,
			func(o *SetOptions) { o.Certificate.ExternalEndpoint, o.Session.Timeout = nowhere, iptlstest.TooShort },
			"external-endpoint")
		r.Check(t, 5, "127.0.0.1:1 cannot be checked", "connection refused")
		if got := w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint; got != w.Proxy.Endpoint() {
			t.Errorf("the previous endpoint was not put back: %q", got)
		}
	})
	t.Run("leaves it in place when asked to", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		r := runSet(t.Context(), w, func(o *SetOptions) {
			o.Session.Timeout, o.Flags.NoRollback, o.Session.Output = iptlstest.TooShort, true, "json"
		})
		r.Check(t, 5, "--no-rollback")
		var result Result
		if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil || result.Outcome != "notConverged" ||
			result.RolledBack || len(result.Problems) == 0 {
			t.Errorf("result %+v, %v", result, err)
		}
		if w.Cluster.Issuer.Spec.ImpersonationProxy.TLS == nil {
			t.Error("it was put back")
		}
	})
	t.Run("does not wait when told so", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runSet(t.Context(), w, func(o *SetOptions) { o.Flags.Wait = false }).Check(t, 0, "configured")
	})
	t.Run("does not wait for a proxy that is switched off", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
			iptlstest.FailedReport(configv1alpha1.ReasonDisabled, "switched off"),
		}
		w.Cluster.Issuer.Spec.ImpersonationProxy.Mode = configv1alpha1.ImpersonationProxyModeAuto
		r := runSet(t.Context(), w, func(o *SetOptions) { o.Session.Output = "json" })
		r.Check(t, ui.ExitSwitchedOff, "nothing to wait for: switched off", "no client can connect", `"switchedOff": true`,
			`mode "auto" disables it`, "pinniped ip-tls set --mode enabled")
		if SpecOf(w).TLS == nil {
			t.Error("it was not configured")
		}
		runSet(t.Context(), w, func(o *SetOptions) { o.Flags.Wait, o.Mode = false, "disabled" }).
			Check(t, ui.ExitSwitchedOff, `mode is "disabled"`)
		w.Obey(t)
		runSet(t.Context(), w, func(o *SetOptions) { o.Mode = "enabled" }).
			Check(t, 0, "configured", "presents the certificate", "mode")
		runSet(t.Context(), w, func(o *SetOptions) { o.Mode = "off" }).Check(t, 2, "--mode")
	})
	t.Run("ends when it is interrupted, and says where things stand", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		w.Cluster.AfterApply = func(*iptlstest.Cluster) { cancel() }
		runSet(ctx, w, nil).Check(t, 130, "the CredentialIssuer has changed")
	})
}

func TestSetErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		code int
		says string
	}{
		{"not permitted", &discovery.ForbiddenError{Verb: "patch"}, 4, "not permitted to patch"},
		{"away", fmt.Errorf("no route: %w", discovery.ErrUnreachable), 1, "no route"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Cluster.ApplyErr = tt.err
			runSet(t.Context(), w, nil).Check(t, tt.code, tt.says)
		})
	}
	t.Run("without a CredentialIssuer", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.Issuer = nil
		runSet(t.Context(), w, nil).Check(t, 1, "no CredentialIssuer in the cluster")
	})
	t.Run("finds the usual namespace when the cluster does not tell", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.NamespaceErr = discovery.ErrForbidden
		runSet(t.Context(), w, nil).Check(t, 0, "configured")
	})
	t.Run("a Secret of another namespace", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.Secret = "elsewhere/a/b" }).
			Check(t, 2, "is not NAMESPACE/NAME")
		w.Obey(t)
		runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.Secret = "pinniped-concierge/proxy-tls" }).
			Check(t, 0, "configured")
	})
	t.Run("a load balancer address without a load balancer", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.LoadBalancerIP = "203.0.113.7" }, "load-balancer-ip").
			Check(t, 2, "type None")
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	type row struct {
		name    string
		change  func(*SetOptions)
		changed []string
		says    string // empty: no error
	}
	rows := []row{
		{name: "takes the least", change: func(*SetOptions) {}},
		{name: "needs a Secret", change: func(o *SetOptions) { o.Certificate.Secret = "" }, says: "--secret is missing"},
		{
			name:   "says what the Secret is for",
			change: func(o *SetOptions) { o.Certificate.Secret, o.Cert, o.Key = "", "x.pem", "y.pem" },
			says:   "write the certificate to",
		},
		{
			name: "knows its formats", change: func(o *SetOptions) { o.Session.Output = "xml" },
			says: `invalid value "xml" for --output`,
		},
		{
			name: "knows its dry runs", change: func(o *SetOptions) { o.Flags.DryRun = "yes" },
			says: `invalid value "yes" for --dry-run`,
		},
		{
			name: "refuses unknown codes", change: func(o *SetOptions) { o.Certificate.Allow = []string{"Nothing"} },
			says: "there is no such code",
		},
		{
			name:   "refuses codes that cannot be allowed",
			change: func(o *SetOptions) { o.Certificate.Allow = []string{"KeyMismatch"} }, says: "this error cannot be accepted",
		},
		{
			name: "refuses a URL", change: func(o *SetOptions) { o.Certificate.ExternalEndpoint = "https://x" },
			says: "EndpointInvalid",
		},
		{
			name: "refuses what is no address", change: func(o *SetOptions) { o.Certificate.LoadBalancerIP = "1.2.3" },
			changed: []string{"load-balancer-ip"}, says: "not an IP address",
		},
		{
			name: "refuses two sources of the bundle", change: func(o *SetOptions) { o.Certificate.CAFromSecret = true },
			changed: []string{"ca-bundle"}, says: "cannot be combined",
		},
		{name: "refuses a bad suffix", change: func(o *SetOptions) { o.Session.Suffix = "x" }, says: "invalid API group " +
			"suffix"},
		{
			name:   "refuses a bundle that is not there",
			change: func(o *SetOptions) { o.Certificate.CABundle = "/nowhere/ca.pem" }, changed: []string{"ca-bundle"},
			says: "no such file",
		},
		{
			name: "refuses an empty bundle", change: func(o *SetOptions) { o.Certificate.CABundle = "-" },
			changed: []string{"ca-bundle"}, says: "is empty",
		},
	}
	for source, says := range map[string]string{
		"company-ca": "--ca-bundle-from", "pod/company-ca": "--ca-bundle-from", "configmap/": "--ca-bundle-from",
		"configmap/a/b": "--ca-bundle-from", "configmap/company-ca#": "--ca-bundle-from",
		"clustertrustbundle/a#b": "--ca-bundle-from",
		"configmap/company-ca":   "", "Secret/company-ca#tls.crt": "", "clustertrustbundle/company-ca": "",
	} {
		change := func(o *SetOptions) { o.Certificate.CABundleFrom = source }
		rows = append(rows, row{"source " + source, change, []string{"ca-bundle-from"}, says})
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := &iptlstest.World{Cluster: &iptlstest.Cluster{}}
			r := &iptlstest.Run{}
			o := optionsFor(w, r, tt.changed...)
			tt.change(o)
			if r.Err = o.Validate(); r.Err == nil {
				r.Err = o.Complete()
			}
			if tt.says == "" {
				r.Check(t, 0)
				return
			}
			r.Check(t, 2, tt.says)
		})
	}
}

func TestSetOfTheAgentsOwnCopy(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.Secret = "pinniped-concierge-impersonation-proxy-last-known-good-certificate"
	}).
		Check(t, 2, "is a backup that only the agent writes", "name the Secret that the certificate comes from")
	if len(w.Cluster.WithoutRecords()) > 0 {
		t.Error("something was applied")
	}
}

// optionsFor returns options for a first certificate, with --allow OldClientsBreak.
func optionsFor(w *iptlstest.World, r *iptlstest.Run, changed ...string) *SetOptions {
	return &SetOptions{
		Session: sessiontest.New(w, r), Flags: Flags{DryRun: session.DryRunNone, Wait: true},
		Certificate: session.CertificateFlags{
			Secret: "proxy-tls", Allow: []string{"OldClientsBreak"}, Changed: iptlstest.Given(changed...),
		},
	}
}

// TestForeignText checks hostile text in a CA's name, the spec and the status.
func TestForeignText(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*iptlstest.World, *SetOptions){
		"a CA": func(w *iptlstest.World, _ *SetOptions) {
			w.CA = iptlstest.NewCA(t, iptlstest.Hostile)
			w.Pair = renewal(t, w)
			w.Cluster.TLSSecret.Data = map[string][]byte{
				"tls.crt": w.Pair.CertPEM, "tls.key": w.Pair.KeyPEM, "ca.crt": w.CA.CertPEM(),
			}
		},
		"a Secret": func(w *iptlstest.World, _ *SetOptions) {
			w.Cluster.TLSSecret.Data["tls.crt"] = []byte(iptlstest.Hostile)
		},
		"the spec before": func(w *iptlstest.World, o *SetOptions) {
			w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{
				SecretName: iptlstest.Hostile, CertificateAuthorityData: iptlstest.Hostile,
			}
			o.Flags.Diff = true
		},
		"the status": func(w *iptlstest.World, _ *SetOptions) {
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
				c.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
					iptlstest.FailedReport(configv1alpha1.StrategyReason(iptlstest.Hostile), iptlstest.Hostile),
				}
				c.Bump()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Obey(t)
			runSet(t.Context(), w, func(o *SetOptions) {
				o.Session.Timeout = iptlstest.TooShort
				change(w, o)
			}).Forges(t)
		})
	}
}

// once returns a function that calls change the first time only.
func once(change func(*iptlstest.Cluster)) func(*iptlstest.Cluster) {
	called := false
	return func(c *iptlstest.Cluster) {
		if !called {
			called = true
			change(c)
		}
	}
}

// runSet runs the command like the command line.
func runSet(ctx context.Context, w *iptlstest.World, change func(*SetOptions), changed ...string) *iptlstest.Run {
	r := &iptlstest.Run{}
	o := optionsFor(w, r, changed...)
	if change != nil {
		change(o)
	}
	return r.Do(ctx, o)
}
