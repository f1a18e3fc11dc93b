package integration

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestIncidents runs the hints of "ip-tls status" after incidents that page somebody. One or two commands fix each, and
// a user's existing kubeconfig works, unless the hint is to reissue it.
func TestIncidents(t *testing.T) {
	w := needsCluster(t)
	const secret = "incident-tls"
	folder := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(folder, name)
		must.Do(t, os.WriteFile(path, content, 0o600))
		return path
	}
	wrong := newCA(t, "Wrong CA", time.Now())
	put := func(ca *certs.CA, lifetime time.Duration, withCA bool) {
		data := pairData(issueAt(t, ca, time.Now(), lifetime, "localhost"))
		if withCA {
			data["ca.crt"] = ca.CertPEM()
		}
		w.putSecret(t, secret, data)
	}
	wrongBundle := func() {
		w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { // as GitOps does
			s.TLS.CertificateAuthorityData = base64.StdEncoding.EncodeToString(wrong.CertPEM())
		})
	}
	next, bundle := w.issue(t, "localhost"), write("ca.pem", w.pki.CertPEM())
	replace := "pinniped ip-tls set --secret " + secret + " --cert FILE --key FILE"
	files := strings.NewReplacer(
		"--cert FILE", "--cert "+write("fullchain.pem", next.CertPEM), "--key FILE", "--key "+write("key.pem", next.KeyPEM),
		"--ca-bundle FILE", "--ca-bundle "+bundle,
	)

	for name, tt := range map[string]struct {
		noCA   bool // the Secret lacks ca.crt
		breaks func()
		says   string
		hint   string
	}{
		"the certificate expired": {
			breaks: func() { put(w.pki, 5*time.Second, true) },
			says:   "USERS: all refused since", hint: replace,
		},
		"a wrong CA bundle, with the right one in the Secret": {
			breaks: wrongBundle, says: `the CA bundle of the CredentialIssuer ("Wrong CA"`,
			hint: "pinniped ip-tls set --secret " + secret + " --ca-from-secret",
		},
		"a wrong CA bundle": {
			noCA: true, breaks: wrongBundle, says: `the CA bundle for clients ("Wrong CA"`, hint: "pinniped ip-tls undo",
		},
		"a wrong issuer": {
			breaks: func() { put(wrong, time.Hour, true) }, says: "waits for clients of",
			hint: replace + " --ca-bundle FILE",
		},
		"a wrong issuer, without ca.crt": {
			noCA: true, breaks: func() { put(wrong, time.Hour, false) }, says: `which "CN=Wrong CA" issued`, hint: replace,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.generatedOnly(t)
			put(w.pki, time.Hour, !tt.noCA)
			set := "pinniped ip-tls set --timeout=60s --allow OldClientsBreak --secret " + secret
			if tt.noCA {
				set += " --ca-bundle " + bundle
			}
			w.types(t, set).ok(t)
			w.onlyNow(t)
			user := w.newUser(t)
			tt.breaks()
			hint := w.hinted(t, tt.says, tt.hint)
			w.types(t, files.Replace(hint)).ok(t)
			w.over(t)
			w.works(t, user)
		})
	}
}

// TestACloudMovesTheLoadBalancer changes the address of the load balancer, as a cloud does: users need new kubeconfigs.
func TestACloudMovesTheLoadBalancer(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	w.onlyNow(t)
	for _, address := range []string{"127.0.0.2", "127.0.0.3"} {
		w.loadBalancer(t, address+":443")
	}
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.ExternalEndpoint, s.Service.Type = "", configv1alpha1.ServiceTypeLoadBalancer
	})
	gets := func(ip string) {
		testkit.Eventually(t, 20*time.Second, func() error {
			objects := w.issuer(t).Status.Objects
			if objects == nil {
				return errors.New("the status names no Service")
			}
			var service corev1.Service
			name := ours(objects.LoadBalancerService)
			if err := w.admin.Get(t.Context(), name, &service); err != nil {
				return err
			}
			service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
			return w.admin.Status().Update(t.Context(), &service)
		})
		w.publishes(t, "https://"+ip)
	}
	gets("127.0.0.2")
	before := w.newUser(t)
	gets("127.0.0.3")
	w.hinted(t, "https://127.0.0.2", "pinniped get kubeconfig")
	if err := w.login(t, before); err == nil {
		t.Error("the old kubeconfig works")
	}
	w.newUser(t) // with a new kubeconfig
	w.generatedOnly(t)
}

// newUser creates a kubeconfig and uses it.
func (w *world) newUser(t *testing.T) string {
	t.Helper()
	path := w.userKubeconfig(t, "pinny:password123")
	w.works(t, path)
	return path
}

// login returns an error if kubectl does not work with a kubeconfig.
func (w *world) login(t *testing.T, path string) error {
	t.Helper()
	if got := w.kubectlAs(t, path, "auth", "whoami"); got.code != 0 {
		return errors.New(got.errOut)
	}
	return nil
}

// hinted waits until the status contains says, and returns the hint, which must be one of the first two.
func (w *world) hinted(t *testing.T, says, hint string) string {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		got := w.types(t, "pinniped ip-tls status")
		if !strings.Contains(got.out, says) {
			return fmt.Errorf("the status does not say %q:\n%s", says, got.out)
		}
		if next := w.status(t).Users.Next; !slices.Contains(next[:min(2, len(next))], hint) {
			return fmt.Errorf("%q is to be typed, want %q:\n%s", next, hint, got.out)
		}
		return nil
	})
	return hint
}

// over waits until the status has no problem.
func (w *world) over(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := w.types(t, "pinniped ip-tls status"); got.code != 0 || !strings.HasPrefix(got.out, "USERS: not affected") {
			return fmt.Errorf("status ended with %d:\n%s%s", got.code, got.out, got.errOut)
		}
		return nil
	})
}

// publishes waits until the status has the endpoint url.
func (w *world) publishes(t *testing.T, url string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if frontend := w.strategy(t).Frontend; frontend == nil || frontend.ImpersonationProxyInfo.Endpoint != url {
			return fmt.Errorf("another endpoint than %s is published: %+v", url, frontend)
		}
		return nil
	})
}
