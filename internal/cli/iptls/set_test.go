package iptls

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

func (r *run) check(t *testing.T, code int, parts ...string) {
	t.Helper()
	if got := ui.ExitCodeOf(r.err); got != code {
		t.Errorf("exit code %d (%v), want %d", got, r.err, code)
	}
	all := r.errOut.String() + r.out.String()
	if r.err != nil {
		all += r.err.Error() + "\n" + ui.HintOf(r.err)
	}
	for _, part := range parts {
		if !strings.Contains(all, part) {
			t.Errorf("nothing says %q", part)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s\nerror: %v\nhint: %s", r.out.String(), r.errOut.String(), r.err, ui.HintOf(r.err))
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.obey(t)
	first := w.set(t.Context(), nil)
	first.check(t, 0, "credentialissuer/pinniped-concierge-config configured", "OldClientsBreak", "presents the certificate at 1 of 1 addresses",
		"tls.secretName", w.proxy.url())
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": "1"},
		"spec":     map[string]any{"impersonationProxy": map[string]any{"tls": map[string]any{"secretName": "proxy-tls", "verification": "Enforce"}}},
	}}
	if diff := cmp.Diff(want, w.cluster.withoutRecords()); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]discovery.ApplyOptions{{FieldManager: "pinniped-cli", Force: true}}, w.cluster.options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}

	second := w.set(t.Context(), nil)
	second.check(t, 0, "credentialissuer/pinniped-concierge-config unchanged")
	if len(w.cluster.applied) != 1 || strings.Contains(second.errOut.String(), "OldClientsBreak") {
		t.Errorf("the second run applied %d times:\n%s", len(w.cluster.applied)-1, second.errOut.String())
	}
}

func TestSetJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.obey(t)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, w.ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	r := w.set(t.Context(), func(o *SetOptions) { o.Output, o.CABundle = "json", bundle }, "ca-bundle")
	r.check(t, 0)
	var result Result
	if err := json.Unmarshal(r.out.Bytes(), &result); err != nil {
		t.Fatalf("%v in %s", err, r.out.String())
	}
	leaf, _ := certs.ParseBundle(w.pair.CertPEM)
	if result.Action != "configured" || result.Certificate.SHA256 != certs.Fingerprint(leaf[0].Raw) || len(result.Changes) != 3 ||
		len(result.Addresses) != 1 || result.Addresses[0].Problem != "" || !strings.Contains(result.CABundle, "Company CA") {
		t.Errorf("got %+v", result)
	}
	if strings.Contains(r.out.String()+r.errOut.String(), "PRIVATE KEY") {
		t.Error("a private key is printed")
	}
}

func TestSetBundleFromStdin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.obey(t)
	delete(w.cluster.secret.Data, "ca.crt")
	r := w.set(t.Context(), func(o *SetOptions) {
		o.CABundle, o.In = "-", strings.NewReader(string(w.ca.CertPEM()))
	}, "ca-bundle")
	r.check(t, 0, "configured")
	if got := w.cluster.issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData; !sameBase64(got, w.ca.CertPEM()) {
		t.Errorf("certificateAuthorityData is %q", got)
	}
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	other := func(t *testing.T, w *world) *certs.KeyPair { t.Helper(); return serving(t, w.ca, loopback()) }
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *world)
		code   string
	}{
		{"a Secret that does not exist", func(_ *testing.T, w *world) { w.cluster.secret = nil }, "SecretNotFound"},
		{"a half-made Secret", func(_ *testing.T, w *world) { w.cluster.secret.Data["tls.crt"] = nil }, "SecretIncomplete"},
		{"a Secret of another type", func(_ *testing.T, w *world) { w.cluster.secret.Type = "example.com/other" }, "SecretIncomplete"},
		{"another certificate's key", func(t *testing.T, w *world) { t.Helper(); w.cluster.secret.Data["tls.key"] = other(t, w).KeyPEM }, "KeyMismatch"},
		{"a wrong name", func(t *testing.T, w *world) {
			t.Helper()
			pair := serving(t, w.ca, certs.SANs{DNSNames: []string{"other.example.com"}})
			w.cluster.secret.Data["tls.crt"], w.cluster.secret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "NameNotCovered"},
		{"an expired certificate", func(t *testing.T, w *world) {
			t.Helper()
			pair, err := w.ca.IssueServing(loopback(), time.Now().Add(-time.Hour), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			w.cluster.secret.Data["tls.crt"], w.cluster.secret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "Expired"},
		{"a certificate that is not valid yet", func(t *testing.T, w *world) {
			t.Helper()
			pair, err := w.ca.IssueServing(loopback(), time.Now().Add(time.Hour), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			w.cluster.secret.Data["tls.crt"], w.cluster.secret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
		}, "NotYetValid"},
		{"a CA that does not verify it", func(t *testing.T, w *world) {
			t.Helper()
			w.cluster.secret.Data["ca.crt"] = newCA(t, "Other CA").CertPEM()
		}, "BundleDoesNotVerify"},
		{"a private key in the CA bundle", func(_ *testing.T, w *world) {
			w.cluster.secret.Data["ca.crt"] = append(w.cluster.secret.Data["ca.crt"], w.pair.KeyPEM...)
		}, "NotACertificate"},
		{"a bundle in the spec that is not base64", func(_ *testing.T, w *world) {
			w.cluster.issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "x", CertificateAuthorityData: "*"}
		}, "NotACertificate"},
		{"breaking old clients of an external certificate", func(t *testing.T, w *world) {
			t.Helper()
			w.cluster.issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "old"}
			w.cluster.report(w.proxy.url(), newCA(t, "Old CA").CertPEM())
		}, "OldClientsBreak"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.change(t, w)
			r := w.set(t.Context(), func(o *SetOptions) { o.Output = "json" })
			r.check(t, 3, tt.code+":", "nothing was changed")
			var result Result
			if err := json.Unmarshal(r.out.Bytes(), &result); err != nil || result.Action != "refused" || !result.Certificate.Has(certs.Code(tt.code)) {
				t.Errorf("result %+v, %v", result, err)
			}
			if len(w.cluster.options) > 0 {
				t.Error("something was applied")
			}
			if strings.Contains(r.out.String()+r.errOut.String(), "PRIVATE KEY-----") {
				t.Error("a private key is printed")
			}
		})
	}
}

func TestSetAllow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.obey(t)
	pair := serving(t, w.ca, certs.SANs{DNSNames: []string{"other.example.com"}})
	w.cluster.secret.Data["tls.crt"], w.cluster.secret.Data["tls.key"] = pair.CertPEM, pair.KeyPEM
	r := w.set(t.Context(), func(o *SetOptions) { o.Allow = []string{"NameNotCovered"} })
	r.check(t, 0, "configured", "allowed: NameNotCovered")
	if got := w.cluster.issuer.Spec.ImpersonationProxy.TLS.Verification; got != configv1alpha1.VerificationWarn {
		t.Errorf("verification is %q, so the agent would refuse what was allowed", got)
	}
}

func TestSetDryRun(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"client", "server"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.set(t.Context(), func(o *SetOptions) { o.DryRun, o.Diff = kind, true })
			r.check(t, 0, "configured ("+kind+" dry run)", "- spec.impersonationProxy.tls.secretName: (none)\n+ spec.impersonationProxy.tls.secretName: proxy-tls")
			if len(w.cluster.applied) > 0 {
				t.Error("something was stored")
			}
			if got := len(w.cluster.options); kind == "client" && got != 0 || kind == "server" && (got != 1 || !w.cluster.options[0].DryRun) {
				t.Errorf("asked the API server %d times: %+v", got, w.cluster.options)
			}
		})
	}
}

func TestSetNoticesChanges(t *testing.T) {
	t.Parallel()
	t.Run("checks again when the CredentialIssuer changes between reading and applying", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		once := false
		w.cluster.beforeApply = func(c *fakeCluster) {
			if !once {
				once = true
				c.issuer.Spec.ImpersonationProxy.ExternalEndpoint = "elsewhere.example.com"
				c.bump()
			}
		}
		w.set(t.Context(), nil).check(t, 3, "has changed meanwhile", "NameNotCovered", "elsewhere.example.com")
	})
	t.Run("goes on when only the status has changed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		times := 0
		w.cluster.beforeApply = func(c *fakeCluster) {
			if times++; times < 4 {
				c.bump()
			}
		}
		w.set(t.Context(), nil).check(t, 0, "configured")
	})
	t.Run("gives up when it changes all the time", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cluster.beforeApply = (*fakeCluster).bump
		w.set(t.Context(), nil).check(t, 1, "changing CredentialIssuer")
	})
	t.Run("follows a Secret that is renewed while waiting", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		renewed := serving(t, w.ca, loopback())
		w.cluster.afterApply = func(c *fakeCluster) {
			c.report(w.proxy.url(), w.ca.CertPEM())
			c.secret.Data["tls.crt"], c.secret.Data["tls.key"], c.secret.ResourceVersion = renewed.CertPEM, renewed.KeyPEM, "2"
			w.proxy.serve(t, renewed)
		}
		leaf, _ := certs.ParseBundle(renewed.CertPEM)
		w.set(t.Context(), nil).check(t, 0, "has changed meanwhile", "certificate: SHA-256 "+certs.Fingerprint(leaf[0].Raw))
	})
	t.Run("stops when somebody changes the configuration while waiting", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cluster.afterApply = func(c *fakeCluster) {
			c.issuer.Spec.ImpersonationProxy.TLS.SecretName = "theirs"
			c.bump()
		}
		w.set(t.Context(), nil).check(t, 1, "changed by somebody else")
		if got := w.cluster.issuer.Spec.ImpersonationProxy.TLS.SecretName; got != "theirs" {
			t.Errorf("their change was overwritten: %q", got)
		}
	})
}

func TestSetNotConverged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		agent func(*testing.T, *world) func(*fakeCluster)
		says  string
	}{
		{"says what the agent reports", func(*testing.T, *world) func(*fakeCluster) {
			return func(c *fakeCluster) {
				c.issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{failedReport(configv1alpha1.ReasonErrorDuringSetup, "disk full")}
			}
		}, "the agent reports ErrorDuringSetup: disk full"},
		{"says that another bundle is advertised", func(*testing.T, *world) func(*fakeCluster) {
			return func(*fakeCluster) {}
		}, "still advertises another CA bundle"},
		{"says that another certificate is presented", func(_ *testing.T, w *world) func(*fakeCluster) {
			return func(c *fakeCluster) { c.report(w.proxy.url(), w.ca.CertPEM()) }
		}, "presents another certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			agent := tt.agent(t, w)
			w.cluster.afterApply = func(c *fakeCluster) {
				if len(w.cluster.applied) == 1 {
					agent(c)
				}
			}
			r := w.set(t.Context(), func(o *SetOptions) { o.Timeout = tooShort })
			r.check(t, 5, tt.says, "did not take effect", "was put back")
			if got := w.cluster.issuer.Spec.ImpersonationProxy.TLS; got != nil {
				t.Errorf("the previous configuration was not put back: %+v", got)
			}
		})
	}
	t.Run("says that nobody answers", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		nowhere := "127.0.0.1:1"
		w.cluster.afterApply = func(c *fakeCluster) { c.report("https://"+nowhere, w.ca.CertPEM()) }
		r := w.set(t.Context(), func(o *SetOptions) { o.ExternalEndpoint, o.Timeout = nowhere, tooShort }, "external-endpoint")
		r.check(t, 5, "127.0.0.1:1 could not be asked", "connection refused")
		if got := w.cluster.issuer.Spec.ImpersonationProxy.ExternalEndpoint; got != w.proxy.endpoint() {
			t.Errorf("the previous endpoint was not put back: %q", got)
		}
	})
	t.Run("leaves it in place when asked to", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		r := w.set(t.Context(), func(o *SetOptions) { o.Timeout, o.NoRollback, o.Output = tooShort, true, "json" })
		r.check(t, 5, "--no-rollback")
		var result Result
		if err := json.Unmarshal(r.out.Bytes(), &result); err != nil || result.Action != "not converged" || result.RolledBack || len(result.Problems) == 0 {
			t.Errorf("result %+v, %v", result, err)
		}
		if w.cluster.issuer.Spec.ImpersonationProxy.TLS == nil {
			t.Error("it was put back")
		}
	})
	t.Run("does not wait when told so", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.set(t.Context(), func(o *SetOptions) { o.Wait = false }).check(t, 0, "configured")
	})
	t.Run("does not wait for a proxy that is switched off", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cluster.issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{failedReport(configv1alpha1.ReasonDisabled, "switched off")}
		w.set(t.Context(), nil).check(t, 0, "configured", "nothing to wait for: switched off")
	})
	t.Run("ends when it is interrupted, and says where things stand", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		w.cluster.afterApply = func(*fakeCluster) { cancel() }
		w.set(ctx, nil).check(t, 130, "the CredentialIssuer is changed")
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
			w := newWorld(t)
			w.cluster.applyErr = tt.err
			w.set(t.Context(), nil).check(t, tt.code, tt.says)
		})
	}
	t.Run("without a CredentialIssuer", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cluster.issuer = nil
		w.set(t.Context(), nil).check(t, 1, "no CredentialIssuer in the cluster")
	})
	t.Run("finds the usual namespace when the cluster does not tell", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		w.cluster.namespaceErr = discovery.ErrForbidden
		w.set(t.Context(), nil).check(t, 0, "configured")
	})
	t.Run("a Secret of another namespace", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.set(t.Context(), func(o *SetOptions) { o.Secret = "elsewhere/a/b" }).check(t, 2, "is not NAMESPACE/NAME")
		w.obey(t)
		w.set(t.Context(), func(o *SetOptions) { o.Secret = "pinniped-concierge/proxy-tls" }).check(t, 0, "configured")
	})
	t.Run("a load balancer address without a load balancer", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.set(t.Context(), func(o *SetOptions) { o.LoadBalancerIP = "203.0.113.7" }, "load-balancer-ip").check(t, 2, "type None")
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		change  func(*SetOptions)
		changed []string
		says    string // empty: fine
	}{
		{name: "takes the least", change: func(*SetOptions) {}},
		{name: "needs a Secret", change: func(o *SetOptions) { o.Secret = "" }, says: "--secret is missing"},
		{name: "says what the Secret is for", change: func(o *SetOptions) { o.Secret, o.Cert, o.Key = "", "x.pem", "y.pem" }, says: "write the certificate into"},
		{name: "knows its formats", change: func(o *SetOptions) { o.Output = "xml" }, says: `invalid value "xml" for --output`},
		{name: "knows its dry runs", change: func(o *SetOptions) { o.DryRun = "yes" }, says: `invalid value "yes" for --dry-run`},
		{name: "refuses unknown codes", change: func(o *SetOptions) { o.Allow = []string{"Nothing"} }, says: "there is no such code"},
		{name: "refuses codes that cannot be allowed", change: func(o *SetOptions) { o.Allow = []string{"KeyMismatch"} }, says: "cannot be let through"},
		{name: "refuses a URL", change: func(o *SetOptions) { o.ExternalEndpoint = "https://x" }, says: "EndpointInvalid"},
		{name: "refuses what is no address", change: func(o *SetOptions) { o.LoadBalancerIP = "1.2.3" }, changed: []string{"load-balancer-ip"}, says: "not an IP address"},
		{name: "refuses two sources of the bundle", change: func(o *SetOptions) { o.CAFromSecret = true }, changed: []string{"ca-bundle"}, says: "exclude each other"},
		{name: "refuses a bad suffix", change: func(o *SetOptions) { o.Suffix = "x" }, says: "invalid API group suffix"},
		{name: "refuses a bundle that is not there", change: func(o *SetOptions) { o.CABundle = "/nowhere/ca.pem" }, changed: []string{"ca-bundle"}, says: "no such file"},
		{name: "refuses an empty bundle", change: func(o *SetOptions) { o.CABundle = "-" }, changed: []string{"ca-bundle"}, says: "is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := &world{cluster: &fakeCluster{}}
			r := &run{}
			o := w.options(r, tt.changed...)
			tt.change(o)
			if r.err = o.Validate(); r.err == nil {
				r.err = o.Complete()
			}
			if tt.says == "" {
				r.check(t, 0)
				return
			}
			r.check(t, 2, tt.says)
		})
	}
}

// fakeNetwork answers from memory.
type fakeNetwork struct {
	addresses []netip.Addr
	chains    map[string][]*x509.Certificate
	errs      map[string]error
}

func (n fakeNetwork) Resolve(context.Context, string) ([]netip.Addr, error) { return n.addresses, nil }

func (n fakeNetwork) Presented(_ context.Context, at, _ string) ([]*x509.Certificate, error) {
	return n.chains[at], n.errs[at]
}

func TestLook(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")
	chain := []*x509.Certificate{{Raw: []byte("x")}}
	unreachable := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	at := endpoint{host: "proxy.example.com", port: "8443"}
	n := fakeNetwork{
		addresses: []netip.Addr{four, six},
		chains:    map[string][]*x509.Certificate{"203.0.113.7:8443": chain},
		errs:      map[string]error{"[2001:db8::7]:8443": unreachable},
	}
	seen, skipped, err := look(t.Context(), n, at)
	if err != nil || len(seen) != 1 || seen[0].Address != "203.0.113.7:8443" || len(skipped) != 1 || skipped[0] != "[2001:db8::7]:8443" {
		t.Errorf("without a route to one family: %v, %v, %v", seen, skipped, err)
	}
	n.chains, n.errs["203.0.113.7:8443"] = nil, errors.New("refused")
	if seen, skipped, _ = look(t.Context(), n, at); len(seen) != 1 || len(skipped) != 1 {
		t.Errorf("with the other one refusing: %v, %v", seen, skipped)
	}
	n.errs["203.0.113.7:8443"] = unreachable
	if seen, skipped, _ = look(t.Context(), n, at); len(seen) != 2 || len(skipped) != 0 {
		t.Errorf("without any route: %v, %v", seen, skipped)
	}
}

func TestSetOfTheAgentsOwnCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(t.Context(), func(o *SetOptions) { o.Secret = "pinniped-concierge-impersonation-proxy-last-good-certificate" }).
		check(t, 2, "is the copy that the agent itself keeps", "name the Secret that the certificate comes from")
	if len(w.cluster.withoutRecords()) > 0 {
		t.Error("something was applied")
	}
}
