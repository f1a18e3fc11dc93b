package iptls

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
)

// pemFiles writes a certificate and its key into files.
func pemFiles(t *testing.T, pair *certs.KeyPair) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "fullchain.pem"), filepath.Join(dir, "key.pem")
	for path, content := range map[string][]byte{cert: pair.CertPEM, key: pair.KeyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// fromFiles runs set with a certificate from files, and a CA bundle from a file.
func (w *world) fromFiles(t *testing.T, pair *certs.KeyPair, change func(*SetOptions), changed ...string) *run {
	t.Helper()
	cert, key := pemFiles(t, pair)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, w.ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return w.set(t.Context(), func(o *SetOptions) {
		o.Cert, o.Key, o.CABundle = cert, key, bundle
		if change != nil {
			change(o)
		}
	}, append(changed, "ca-bundle")...)
}

// served makes the agent follow the Secret as well.
func (w *world) served(t *testing.T) {
	t.Helper()
	w.obey(t)
	w.cluster.afterSecret = w.cluster.afterApply
}

func (w *world) secretHas(t *testing.T, pair *certs.KeyPair) {
	t.Helper()
	if w.cluster.secret == nil {
		t.Error("there is no Secret")
		return
	}
	want := map[string]string{"tls.crt": string(pair.CertPEM), "tls.key": string(pair.KeyPEM)}
	got := map[string]string{}
	for _, key := range []string{"tls.crt", "tls.key"} {
		got[key] = string(w.cluster.secret.Data[key])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the Secret (-want +got):\n%s", diff)
	}
}

func TestSetFromFiles(t *testing.T) {
	t.Parallel()
	t.Run("makes the Secret, and the second time changes nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cluster.secret = nil
		w.served(t)
		r := w.fromFiles(t, w.pair, nil)
		r.check(t, 0, "credentialissuer/pinniped-concierge-config configured", `Wrote the certificate and its key into Secret "proxy-tls"`,
			"secret/proxy-tls tls.key", "(not shown)", "presents the certificate at 1 of 1 addresses")
		w.secretHas(t, w.pair)
		if got := w.cluster.secret.Type; got != corev1.SecretTypeTLS {
			t.Errorf("its type is %q", got)
		}
		if strings.Contains(r.out.String()+r.errOut.String(), "PRIVATE KEY") {
			t.Error("the key is printed")
		}
		version, applied := w.cluster.secret.ResourceVersion, len(w.cluster.applied)
		w.fromFiles(t, w.pair, nil).check(t, 0, "unchanged")
		if w.cluster.secret.ResourceVersion != version || len(w.cluster.applied) != applied {
			t.Error("the second run wrote something")
		}
	})
	t.Run("updates the Secret that is in use, with the CredentialIssuer as it is", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		w.fromFiles(t, w.pair, nil).check(t, 0, "configured")
		applied := len(w.cluster.applied)
		renewed := serving(t, w.ca, loopback())
		leaf, _ := certs.ParseBundle(renewed.CertPEM)
		w.fromFiles(t, renewed, nil).check(t, 0, "configured", "certificate: SHA-256 "+certs.Fingerprint(leaf[0].Raw))
		w.secretHas(t, renewed)
		if len(w.cluster.applied) != applied {
			t.Error("the CredentialIssuer was applied without need")
		}
	})
	t.Run("keeps the type Opaque, and the other keys", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		w.cluster.secret.Type = corev1.SecretTypeOpaque
		w.cluster.secret.Data["note"] = []byte("mine")
		renewed := serving(t, w.ca, loopback())
		w.fromFiles(t, renewed, nil).check(t, 0, "configured")
		w.secretHas(t, renewed)
		if string(w.cluster.secret.Data["note"]) != "mine" || len(w.cluster.secret.Data["ca.crt"]) == 0 {
			t.Error("the other keys are gone")
		}
	})
	t.Run("reads the key from stdin", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cluster.secret = nil
		w.served(t)
		w.fromFiles(t, w.pair, func(o *SetOptions) { o.Key, o.In = "-", strings.NewReader(string(w.pair.KeyPEM)) }).check(t, 0, "configured")
		w.secretHas(t, w.pair)
	})
	t.Run("advertises nothing with the system roots, although the Secret had a CA", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cert, key := pemFiles(t, w.pair)
		r := w.set(t.Context(), func(o *SetOptions) {
			o.Cert, o.Key, o.SystemRoots = cert, key, true
			o.Allow, o.Wait = []string{"BundleDoesNotVerify", "ChainIncomplete"}, false // no system knows the Company CA
		})
		r.check(t, 0, "configured", "CA bundle: none: clients use their system roots", "secret/proxy-tls ca.crt")
		if got := w.cluster.secret.Data["ca.crt"]; len(got) > 0 {
			t.Errorf("ca.crt is still there: %s", got)
		}
	})
}

func TestSetFromFilesWritesNothing(t *testing.T) {
	t.Parallel()
	apply := func(manager string, operation metav1.ManagedFieldsOperationType) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: operation,
			FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:tls.crt":{},"f:tls.key":{}}}`),
		}
	}
	yes := true
	for _, tt := range []struct {
		name      string
		secret    func(*corev1.Secret)
		says      string
		overwrite bool // even with --overwrite-secret
	}{
		{name: "over a Secret of cert-manager", says: `of cert-manager's Certificate "proxy"`, secret: func(s *corev1.Secret) {
			s.Annotations = map[string]string{"cert-manager.io/certificate-name": "proxy"}
		}},
		{name: "over a Secret with another owner", says: `of ExternalSecret "proxy"`, secret: func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{Kind: "ExternalSecret", Name: "proxy", Controller: &yes}}
		}},
		{name: "over a Secret that is applied by another tool", says: `"argocd" applies it`, secret: func(s *corev1.Secret) {
			s.ManagedFields = []metav1.ManagedFieldsEntry{apply("argocd", metav1.ManagedFieldsOperationApply)}
		}},
		{name: "over a Secret of another type", says: `of type "kubernetes.io/dockercfg", which never changes`, overwrite: true, secret: func(s *corev1.Secret) {
			s.Type = corev1.SecretTypeDockercfg
		}},
		{name: "over an immutable Secret", says: "marked immutable", overwrite: true, secret: func(s *corev1.Secret) { s.Immutable = &yes }},
		{name: "over a Secret that is going", says: "being deleted", overwrite: true, secret: func(s *corev1.Secret) {
			s.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}},
		{name: "over a Secret of the agent", says: "it is the agent's own", overwrite: true, secret: func(s *corev1.Secret) {
			s.ManagedFields = []metav1.ManagedFieldsEntry{apply("pinniped-agent", metav1.ManagedFieldsOperationUpdate)}
		}},
		{name: "over a CA", says: "it is the agent's own", overwrite: true, secret: func(s *corev1.Secret) { s.Data["ca.key"] = []byte("x") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.served(t)
			tt.secret(w.cluster.secret)
			renewed := serving(t, w.ca, loopback())
			w.fromFiles(t, renewed, nil).check(t, 3, `Secret "pinniped-concierge/proxy-tls" is not overwritten`, tt.says)
			w.secretHas(t, w.pair)
			if len(w.cluster.options) > 0 {
				t.Error("the CredentialIssuer was applied")
			}
			r := w.fromFiles(t, renewed, func(o *SetOptions) { o.OverwriteSecret = true })
			if tt.overwrite {
				r.check(t, 3, tt.says)
				return
			}
			r.check(t, 0, "configured")
			w.secretHas(t, renewed)
		})
	}
	t.Run("over a Secret that kubectl made it does write", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		w.cluster.secret.ManagedFields = []metav1.ManagedFieldsEntry{
			apply("kubectl-create", metav1.ManagedFieldsOperationUpdate), apply("kubectl", metav1.ManagedFieldsOperationApply),
		}
		w.fromFiles(t, serving(t, w.ca, loopback()), nil).check(t, 0, "configured")
	})
	t.Run("when a check refuses the certificate", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		wrong := serving(t, w.ca, certs.SANs{DNSNames: []string{"other.example.com"}})
		w.fromFiles(t, wrong, nil).check(t, 3, "NameNotCovered", "nothing was changed")
		w.secretHas(t, w.pair)
	})
	for _, kind := range []string{"client", "server"} {
		t.Run("in a "+kind+" dry run", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			renewed := serving(t, w.ca, loopback())
			w.fromFiles(t, renewed, func(o *SetOptions) { o.DryRun = kind }).check(t, 0, "configured ("+kind+" dry run)", "secret/proxy-tls tls.crt")
			w.secretHas(t, w.pair)
		})
	}
}

func TestSetFromFilesPutsTheSecretBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		present bool
	}{{"as it was", true}, {"and removes one that was not there", false}} {
		t.Run("when the change does not take effect, "+tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if !tt.present {
				w.cluster.secret = nil
			}
			r := w.fromFiles(t, serving(t, w.ca, loopback()), func(o *SetOptions) { o.Timeout = tooShort })
			r.check(t, 5, "did not take effect", "Put the previous configuration back")
			if w.cluster.issuer.Spec.ImpersonationProxy.TLS != nil {
				t.Error("the CredentialIssuer was not put back")
			}
			if tt.present {
				w.secretHas(t, w.pair)
			} else if w.cluster.secret != nil {
				t.Error("the Secret was not removed")
			}
		})
		t.Run("when the CredentialIssuer cannot be changed, "+tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if !tt.present {
				w.cluster.secret = nil
			}
			w.cluster.applyErr = &discovery.ForbiddenError{Verb: "patch"}
			w.fromFiles(t, serving(t, w.ca, loopback()), nil).check(t, 4, "changing CredentialIssuer", "not permitted to patch")
			if tt.present {
				w.secretHas(t, w.pair)
			} else if w.cluster.secret != nil {
				t.Error("the Secret was not removed")
			}
		})
	}
	t.Run("with --no-rollback it does not", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		renewed := serving(t, w.ca, loopback())
		w.fromFiles(t, renewed, func(o *SetOptions) { o.Timeout, o.NoRollback = tooShort, true }).check(t, 5, "--no-rollback")
		w.secretHas(t, renewed)
	})
	t.Run("unless somebody has changed it meanwhile", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		theirs := serving(t, w.ca, loopback())
		w.cluster.afterApply = func(c *fakeCluster) {
			c.secret.Data["tls.crt"], c.secret.Data["tls.key"] = theirs.CertPEM, theirs.KeyPEM
			c.bumpSecret()
		}
		w.fromFiles(t, serving(t, w.ca, loopback()), func(o *SetOptions) { o.Timeout = tooShort }).check(t, 5, "somebody else has changed it meanwhile")
		w.secretHas(t, theirs)
	})
}

func TestSetFromFilesNoticesChanges(t *testing.T) {
	t.Parallel()
	t.Run("in a Secret between reading and writing, and checks who owns it now", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		once := false
		w.cluster.beforeSecret = func(c *fakeCluster) {
			if !once {
				once = true
				c.secret.Annotations = map[string]string{"cert-manager.io/certificate-name": "proxy"}
				c.bumpSecret()
			}
		}
		w.fromFiles(t, serving(t, w.ca, loopback()), nil).check(t, 3, `Secret "pinniped-concierge/proxy-tls" has changed meanwhile`, "cert-manager")
		w.secretHas(t, w.pair)
	})
	t.Run("a Secret that somebody makes while it is being made", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		theirs := w.cluster.secret
		theirs.Type = "example.com/other"
		w.cluster.secret = nil
		w.cluster.beforeSecret = func(c *fakeCluster) { c.secret = theirs }
		w.fromFiles(t, serving(t, w.ca, loopback()), nil).check(t, 3, "has changed meanwhile", "example.com/other")
		w.secretHas(t, w.pair)
	})
	t.Run("in the CredentialIssuer after the Secret is written, and takes that back when a check refuses", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		once := false
		w.cluster.beforeApply = func(c *fakeCluster) {
			if !once {
				once = true
				c.issuer.Spec.ImpersonationProxy.ExternalEndpoint = "elsewhere.example.com"
				c.bump()
			}
		}
		w.fromFiles(t, serving(t, w.ca, loopback()), nil).check(t, 3, "NameNotCovered", `Put Secret "proxy-tls" back`)
		w.secretHas(t, w.pair)
	})
	t.Run("and writes the Secret once when only the status has changed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		times := 0
		w.cluster.beforeApply = func(c *fakeCluster) {
			if times++; times < 3 {
				c.bump()
			}
		}
		renewed := serving(t, w.ca, loopback())
		r := w.fromFiles(t, renewed, nil)
		r.check(t, 0, "configured")
		if n := strings.Count(r.errOut.String(), "Wrote the certificate"); n != 1 {
			t.Errorf("the Secret was written %d times", n)
		}
		w.secretHas(t, renewed)
	})
	t.Run("an interrupt after nothing but the Secret was to be written, and says so", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.served(t)
		w.fromFiles(t, w.pair, nil).check(t, 0)
		ctx, cancel := context.WithCancel(t.Context())
		w.cluster.afterSecret = func(*fakeCluster) { cancel() }
		renewed := serving(t, w.ca, loopback())
		cert, key := pemFiles(t, renewed)
		r := w.set(ctx, func(o *SetOptions) { o.Cert, o.Key = cert, key })
		r.check(t, 130, `interrupted: Secret "proxy-tls" is changed`)
		w.secretHas(t, renewed)
	})
	t.Run("an interrupt while the Secret is written, and goes on to the end", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		w.cluster.afterSecret = func(*fakeCluster) { cancel() }
		cert, key := pemFiles(t, w.pair)
		w.cluster.secret = nil
		w.set(ctx, func(o *SetOptions) {
			o.Cert, o.Key, o.Allow = cert, key, []string{"BundleDoesNotVerify", "ChainIncomplete"}
		}).check(t, 130, `Secret "proxy-tls" and the CredentialIssuer are changed`)
		w.secretHas(t, w.pair)
		if tls := w.cluster.issuer.Spec.ImpersonationProxy.TLS; tls == nil || tls.SecretName != "proxy-tls" {
			t.Errorf("the CredentialIssuer was not changed: %+v", tls)
		}
	})
}

func TestSetSources(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		change  func(*SetOptions)
		changed []string
		code    int
		says    string
	}{
		{"a certificate without a key", func(o *SetOptions) { o.Cert = "x.pem" }, nil, 2, "--cert needs --key"},
		{"a key without a certificate", func(o *SetOptions) { o.Key = "x.pem" }, nil, 2, "--key needs --cert"},
		{"consent without a certificate", func(o *SetOptions) { o.OverwriteSecret = true }, nil, 2, "--overwrite-secret needs --cert"},
		{"a file and the system roots", func(o *SetOptions) { o.SystemRoots = true }, []string{"ca-bundle"}, 2, "--ca-bundle and --system-roots exclude each other"},
		{"the Secret's CA and the system roots", func(o *SetOptions) { o.SystemRoots, o.CAFromSecret = true, true }, nil, 2, "--ca-from-secret and --system-roots exclude each other"},
		{"two files from stdin", func(o *SetOptions) { o.Cert, o.Key = "-", "-" }, nil, 2, "only one of --cert and --key can be read from stdin"},
		{"a file that is not there", func(o *SetOptions) { o.Cert, o.Key = "/nowhere/x", "-" }, nil, 2, "reading the certificate: open /nowhere/x"},
		{"the system roots while the Secret has a CA", func(o *SetOptions) { o.SystemRoots = true }, nil, 3, `"op":"remove","path":"/data/ca.crt"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set(t.Context(), tt.change, tt.changed...).check(t, tt.code, tt.says)
			if len(w.cluster.options) > 0 {
				t.Error("something was applied")
			}
		})
	}
	t.Run("the Secret's CA when it has none", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		delete(w.cluster.secret.Data, "ca.crt")
		w.set(t.Context(), func(o *SetOptions) { o.CAFromSecret = true }).check(t, 3, "has no ca.crt", "--system-roots")
	})
	t.Run("the system roots after a CA bundle in the spec", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		delete(w.cluster.secret.Data, "ca.crt")
		r := w.set(t.Context(), func(o *SetOptions) {
			o.SystemRoots, o.Allow, o.Wait, o.Output = true, []string{"BundleDoesNotVerify", "ChainIncomplete"}, false, "json"
		})
		r.check(t, 0)
		var result Result
		if err := json.Unmarshal(r.out.Bytes(), &result); err != nil || result.CABundle != "" {
			t.Errorf("%v, CA bundle %q", err, result.CABundle)
		}
	})
}
