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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/ui"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// pemFiles writes a certificate and its key to files.
func pemFiles(t *testing.T, pair *certs.KeyPair) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "fullchain.pem"), filepath.Join(dir, "key.pem")
	for path, content := range map[string][]byte{cert: pair.CertPEM, key: pair.KeyPEM} {
		must.Do(t, os.WriteFile(path, content, 0o600))
	}
	return cert, key
}

// renewal returns another certificate for the endpoint.
func renewal(t *testing.T, w *iptlstest.World) *certs.KeyPair {
	t.Helper()
	return iptlstest.Serving(t, w.CA, iptlstest.Loopback())
}

// setFromFiles runs set with a certificate and a CA bundle from files.
func setFromFiles(
	t *testing.T, w *iptlstest.World, pair *certs.KeyPair, change func(*SetOptions), changed ...string,
) *iptlstest.Run {
	t.Helper()
	cert, key := pemFiles(t, pair)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(bundle, w.CA.CertPEM(), 0o600))
	return runSet(t.Context(), w, func(o *SetOptions) {
		o.Cert, o.Key, o.Certificate.CABundle = cert, key, bundle
		if change != nil {
			change(o)
		}
	}, append(changed, "ca-bundle")...)
}

func TestSetFromFiles(t *testing.T) {
	t.Parallel()
	t.Run("makes the Secret, and the second time changes nothing", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.TLSSecret = nil
		w.Served(t)
		r := setFromFiles(t, w, w.Pair, nil)
		r.Check(t, 0, "credentialissuer/pinniped-concierge-config configured",
			`Wrote the certificate and its key into Secret "proxy-tls"`, "secret/proxy-tls tls.key", "(not shown)",
			"presents the certificate at 1 of 1 addresses")
		w.SecretHas(t, w.Pair)
		if got := w.Cluster.TLSSecret.Type; got != corev1.SecretTypeTLS {
			t.Errorf("its type is %q", got)
		}
		if strings.Contains(r.Out.String()+r.ErrOut.String(), "PRIVATE KEY") {
			t.Error("the key is printed")
		}
		version, applied := w.Cluster.TLSSecret.ResourceVersion, len(w.Cluster.Applied)
		setFromFiles(t, w, w.Pair, nil).Check(t, 0, "unchanged")
		if w.Cluster.TLSSecret.ResourceVersion != version || len(w.Cluster.Applied) != applied {
			t.Error("the second run wrote something")
		}
	})
	t.Run("updates the Secret that is in use, with the CredentialIssuer as it is", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		setFromFiles(t, w, w.Pair, nil).Check(t, 0, "configured")
		applied := len(w.Cluster.Applied)
		renewed := renewal(t, w)
		leaf, _ := certs.ParseBundle(renewed.CertPEM)
		setFromFiles(t, w, renewed, nil).Check(t, 0, "configured", "certificate: SHA-256 "+certs.Fingerprint(leaf[0].Raw))
		w.SecretHas(t, renewed)
		if len(w.Cluster.Applied) != applied {
			t.Error("the CredentialIssuer was applied without need")
		}
	})
	t.Run("keeps the type Opaque, and the other keys", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		w.Cluster.TLSSecret.Type = corev1.SecretTypeOpaque
		w.Cluster.TLSSecret.Data["note"] = []byte("mine")
		renewed := renewal(t, w)
		setFromFiles(t, w, renewed, nil).Check(t, 0, "configured")
		w.SecretHas(t, renewed)
		if string(w.Cluster.TLSSecret.Data["note"]) != "mine" || len(w.Cluster.TLSSecret.Data["ca.crt"]) == 0 {
			t.Error("the other keys are gone")
		}
	})
	t.Run("reads the key from stdin", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.TLSSecret = nil
		w.Served(t)
		setFromFiles(
			t, w, w.Pair, func(o *SetOptions) { o.Key, o.Session.In = "-", strings.NewReader(string(w.Pair.KeyPEM)) },
		).Check(t, 0, "configured")
		w.SecretHas(t, w.Pair)
	})
	t.Run("publishes nothing with the system roots, although the Secret had a CA", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		cert, key := pemFiles(t, w.Pair)
		r := runSet(t.Context(), w, func(o *SetOptions) {
			o.Cert, o.Key, o.Certificate.SystemRoots = cert, key, true
			// The Company CA is not in the system roots.
			o.Certificate.Allow, o.Flags.Wait = []string{"BundleDoesNotVerify", "ChainIncomplete", "OldClientsBreak"}, false
		})
		r.Check(t, 0, "configured", "CA bundle: none: clients use their system roots", "secret/proxy-tls ca.crt")
		if got := w.Cluster.TLSSecret.Data["ca.crt"]; len(got) > 0 {
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
		{name: "over a Secret of cert-manager", says: `belongs to cert-manager's Certificate "proxy"`, secret: func(s *corev1.Secret) {
			s.Annotations = map[string]string{"cert-manager.io/certificate-name": "proxy"}
		}},
		{name: "over a Secret with another owner", says: `belongs to ExternalSecret "proxy"`, secret: func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{Kind: "ExternalSecret", Name: "proxy", Controller: &yes}}
		}},
		{name: "over a Secret that is applied by another tool", says: `"argocd" applies this Secret`, secret: func(s *corev1.Secret) {
			s.ManagedFields = []metav1.ManagedFieldsEntry{apply("argocd", metav1.ManagedFieldsOperationApply)}
		}},
		{name: "over a Secret of another type", says: `its type "kubernetes.io/dockercfg" cannot be changed to`, overwrite: true, secret: func(s *corev1.Secret) {
			s.Type = corev1.SecretTypeDockercfg
		}},
		{
			name: "over an immutable Secret", says: "marked immutable", overwrite: true,
			secret: func(s *corev1.Secret) { s.Immutable = &yes },
		},
		{name: "over a Secret that is going", says: "being deleted", overwrite: true, secret: func(s *corev1.Secret) {
			s.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}},
		{name: "over a Secret of the agent", says: "it belongs to the agent", overwrite: true, secret: func(s *corev1.Secret) {
			s.ManagedFields = []metav1.ManagedFieldsEntry{apply("pinniped-agent", metav1.ManagedFieldsOperationUpdate)}
		}},
		{
			name: "over a CA", says: "it belongs to the agent", overwrite: true,
			secret: func(s *corev1.Secret) { s.Data["ca.key"] = []byte("x") },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Served(t)
			tt.secret(w.Cluster.TLSSecret)
			renewed := renewal(t, w)
			setFromFiles(t, w, renewed, nil).Check(t, 3, `Secret "pinniped-concierge/proxy-tls" is not overwritten`, tt.says)
			w.SecretHas(t, w.Pair)
			if len(w.Cluster.Options) > 0 {
				t.Error("the CredentialIssuer was applied")
			}
			r := setFromFiles(t, w, renewed, func(o *SetOptions) { o.OverwriteSecret = true })
			if tt.overwrite {
				r.Check(t, 3, tt.says)
				return
			}
			r.Check(t, 0, "configured")
			w.SecretHas(t, renewed)
		})
	}
	t.Run("over a Secret that kubectl made it does write", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		w.Cluster.TLSSecret.ManagedFields = []metav1.ManagedFieldsEntry{
			apply("kubectl-create", metav1.ManagedFieldsOperationUpdate), apply("kubectl", metav1.ManagedFieldsOperationApply),
		}
		setFromFiles(t, w, renewal(t, w), nil).Check(t, 0, "configured")
	})
	t.Run("when a check refuses the certificate", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		wrong := iptlstest.Serving(t, w.CA, certs.SANs{DNSNames: []string{"other.example.com"}})
		setFromFiles(t, w, wrong, nil).Check(t, 3, "NameNotCovered", "nothing was changed")
		w.SecretHas(t, w.Pair)
	})
	t.Run("and names the flags, not the fields of objects", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		cert, _ := pemFiles(t, iptlstest.Serving(t, w.CA, certs.SANs{DNSNames: []string{"other.example.com"}}))
		_, key := pemFiles(t, renewal(t, w))
		r := setFromFiles(t, w, w.Pair, func(o *SetOptions) {
			o.Cert, o.Key, o.Certificate.ExternalEndpoint = cert, key, "third.example.com"
		}, "external-endpoint")
		r.Check(t, 3, "KeyMismatch", "--key", "block 1 of --cert", `"third.example.com" (--external-endpoint)`)
		for _, field := range []string{"tls.crt", "tls.key", "spec.impersonationProxy"} {
			if strings.Contains(r.ErrOut.String()+r.Err.Error()+ui.HintOf(r.Err), field) {
				t.Errorf("it speaks of %s", field)
			}
		}
	})
	t.Run("when the files do not match, and the cluster is away", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Cluster.NamespaceErr = fmt.Errorf("%w: connection refused", discovery.ErrUnreachable)
		pair := &certs.KeyPair{CertPEM: w.Pair.CertPEM, KeyPEM: renewal(t, w).KeyPEM}
		away := func(o *SetOptions) { o.Session.Namespace = "" } // the namespace is read from the cluster
		r := setFromFiles(t, w, pair, func(o *SetOptions) { away(o); o.Session.Output = "json" })
		r.Check(t, 3, "KeyMismatch", "nothing was changed", `"outcome": "refused"`)
		if strings.Contains(r.Err.Error(), "connection refused") {
			t.Errorf("it has asked the cluster: %v", r.Err)
		}
		setFromFiles(t, w, w.Pair, away).Check(t, 1, "connection refused") // these files match
	})
	for _, kind := range []string{"client", "server"} {
		t.Run("in a "+kind+" dry run", func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			renewed := renewal(t, w)
			setFromFiles(t, w, renewed, func(o *SetOptions) { o.Flags.DryRun = kind }).
				Check(t, 0, "configured ("+kind+" dry run)", "secret/proxy-tls tls.crt")
			w.SecretHas(t, w.Pair)
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
			w := iptlstest.New(t)
			if !tt.present {
				w.Cluster.TLSSecret = nil
			}
			r := setFromFiles(t, w, renewal(t, w), func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort })
			r.Check(t, 5, "did not take effect", "Restored the previous configuration")
			if w.Cluster.Issuer.Spec.ImpersonationProxy.TLS != nil {
				t.Error("the CredentialIssuer was not put back")
			}
			if tt.present {
				w.SecretHas(t, w.Pair)
			} else if w.Cluster.TLSSecret != nil {
				t.Error("the Secret was not removed")
			}
		})
		t.Run("when the CredentialIssuer cannot be changed, "+tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			if !tt.present {
				w.Cluster.TLSSecret = nil
			}
			w.Cluster.ApplyErr = &discovery.ForbiddenError{Verb: "patch"}
			setFromFiles(t, w, renewal(t, w), nil).Check(t, 4, "changing CredentialIssuer", "not permitted to patch")
			if tt.present {
				w.SecretHas(t, w.Pair)
			} else if w.Cluster.TLSSecret != nil {
				t.Error("the Secret was not removed")
			}
		})
	}
	t.Run("with --no-rollback it does not", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		renewed := renewal(t, w)
		setFromFiles(t, w, renewed, func(o *SetOptions) { o.Session.Timeout, o.Flags.NoRollback = iptlstest.TooShort, true }).
			Check(t, 5, "--no-rollback")
		w.SecretHas(t, renewed)
	})
	t.Run("unless somebody has changed it meanwhile", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		theirs := renewal(t, w)
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
			c.TLSSecret.Data["tls.crt"], c.TLSSecret.Data["tls.key"] = theirs.CertPEM, theirs.KeyPEM
			c.BumpSecret()
		}
		setFromFiles(t, w, renewal(t, w), func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort }).
			Check(t, 5, "it was changed in the meantime")
		w.SecretHas(t, theirs)
	})
}

func TestSetFromFilesNoticesChanges(t *testing.T) {
	t.Parallel()
	t.Run("in a Secret between reading and writing, and checks who owns it now", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		once := false
		w.Cluster.BeforeSecret = func(c *iptlstest.Cluster) {
			if !once {
				once = true
				c.TLSSecret.Annotations = map[string]string{"cert-manager.io/certificate-name": "proxy"}
				c.BumpSecret()
			}
		}
		setFromFiles(t, w, renewal(t, w), nil).
			Check(t, 3, `Secret "pinniped-concierge/proxy-tls" has changed in the meantime`, "cert-manager")
		w.SecretHas(t, w.Pair)
	})
	t.Run("a Secret that somebody makes while it is being made", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		theirs := w.Cluster.TLSSecret
		theirs.Type = "example.com/other"
		w.Cluster.TLSSecret = nil
		w.Cluster.BeforeSecret = func(c *iptlstest.Cluster) { c.TLSSecret = theirs }
		setFromFiles(t, w, renewal(t, w), nil).Check(t, 3, "has changed in the meantime", "example.com/other")
		w.SecretHas(t, w.Pair)
	})
	t.Run(
		"in the CredentialIssuer after the Secret is written, and takes that back when a check refuses", func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Cluster.BeforeApply = once(func(c *iptlstest.Cluster) {
				c.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = "elsewhere.example.com"
				c.Bump()
			})
			setFromFiles(t, w, renewal(t, w), nil).Check(t, 3, "NameNotCovered", `Restored Secret "proxy-tls"`)
			w.SecretHas(t, w.Pair)
		},
	)
	t.Run("and writes the Secret once when only the status has changed", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		times := 0
		w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
			if times++; times < 3 {
				c.Bump()
			}
		}
		renewed := renewal(t, w)
		r := setFromFiles(t, w, renewed, nil)
		r.Check(t, 0, "configured")
		if n := strings.Count(r.ErrOut.String(), "Wrote the certificate"); n != 1 {
			t.Errorf("the Secret was written %d times", n)
		}
		w.SecretHas(t, renewed)
	})
	t.Run("an interrupt after nothing but the Secret was to be written, and says so", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Served(t)
		setFromFiles(t, w, w.Pair, nil).Check(t, 0)
		ctx, cancel := context.WithCancel(t.Context())
		w.Cluster.AfterSecret = func(*iptlstest.Cluster) { cancel() }
		renewed := renewal(t, w)
		cert, key := pemFiles(t, renewed)
		r := runSet(ctx, w, func(o *SetOptions) { o.Cert, o.Key = cert, key })
		r.Check(t, 130, `interrupted: Secret "proxy-tls" has changed`)
		w.SecretHas(t, renewed)
	})
	t.Run("an interrupt while the Secret is written, and goes on to the end", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		w.Cluster.AfterSecret = func(*iptlstest.Cluster) { cancel() }
		cert, key := pemFiles(t, w.Pair)
		w.Cluster.TLSSecret = nil
		runSet(ctx, w, func(o *SetOptions) {
			o.Cert, o.Key, o.Certificate.Allow = cert, key, []string{"BundleDoesNotVerify", "ChainIncomplete", "OldClientsBreak"}
		}).Check(t, 130, `Secret "proxy-tls" and the CredentialIssuer have changed`)
		w.SecretHas(t, w.Pair)
		if tls := w.Cluster.Issuer.Spec.ImpersonationProxy.TLS; tls == nil || tls.SecretName != "proxy-tls" {
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
		{"consent without a certificate", func(o *SetOptions) { o.OverwriteSecret = true }, nil, 2, "--overwrite-secret " +
			"needs --cert"},
		{
			"a file and the system roots", func(o *SetOptions) { o.Certificate.SystemRoots = true },
			[]string{"ca-bundle"},
			2,
			"--ca-bundle and --system-roots cannot be combined",
		},
		{
			"the Secret's CA and the system roots",
			func(o *SetOptions) { o.Certificate.SystemRoots, o.Certificate.CAFromSecret = true, true }, nil, 2,
			"--ca-from-secret and --system-roots cannot be combined",
		},
		{"two files from stdin", func(o *SetOptions) { o.Cert, o.Key = "-", "-" }, nil, 2, "only one of --cert and --key " +
			"can be read from stdin"},
		{"a file that is not there", func(o *SetOptions) { o.Cert, o.Key = "/nowhere/x", "-" }, nil, 2, "reading the " +
			"certificate: open /nowhere/x"},
		{
			"the system roots while the Secret has a CA", func(o *SetOptions) { o.Certificate.SystemRoots = true }, nil, 3,
			`"op":"remove","path":"/data/ca.crt"`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			runSet(t.Context(), w, tt.change, tt.changed...).Check(t, tt.code, tt.says)
			if len(w.Cluster.Options) > 0 {
				t.Error("something was applied")
			}
		})
	}
	t.Run("the Secret's CA when it has none", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		delete(w.Cluster.TLSSecret.Data, "ca.crt")
		runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.CAFromSecret = true }).
			Check(t, 3, "has no ca.crt", "--system-roots")
	})
	t.Run("the system roots after a CA bundle in the spec", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		delete(w.Cluster.TLSSecret.Data, "ca.crt")
		r := runSet(t.Context(), w, func(o *SetOptions) {
			o.Certificate.SystemRoots, o.Certificate.Allow, o.Flags.Wait, o.Session.Output = true, []string{
				"OldClientsBreak",
				"BundleDoesNotVerify",
				"ChainIncomplete",
			}, false, "json"
		})
		r.Check(t, 0)
		var result Result
		if err := json.Unmarshal(r.Out.Bytes(), &result); err != nil || result.CABundle == nil || len(result.CABundle) > 0 {
			t.Errorf("%v, CA bundle %v", err, result.CABundle)
		}
	})
}
