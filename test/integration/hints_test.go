package integration

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/status"
	cliresult "github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// types runs a line in a shell, as an administrator would, with an editor that changes nothing.
func (w *world) types(t *testing.T, line string) result {
	t.Helper()
	path := strings.Join([]string{filepath.Dir(w.cli), filepath.Dir(w.kubectl), os.Getenv("PATH")}, ":")
	return w.runWith(t, []string{
		"PATH=" + path, "KUBECONFIG=" + w.Cluster.AdminKubeconfig(), "EDITOR=true",
	}, nil, "/bin/sh", "-c", line)
}

// status returns the output of `ip-tls status`.
func (w *world) status(t *testing.T) (found cliresult.Status) {
	t.Helper()
	got := w.asAdmin(t, "ip-tls", "status", "-o", "json")
	decoded(t, got, got.code, &found)
	return found
}

// TestHintsAreTyped runs the first hint of `ip-tls status`, unchanged, in states that occur on real clusters.
// Afterwards, a user's existing kubeconfig works.
func TestHintsAreTyped(t *testing.T) {
	w := needsCluster(t)
	var old *certs.CA // the CA that the user trusts
	of := func(ca *certs.CA) map[string][]byte {
		return withCA(issueAt(t, ca, time.Now(), 90*24*time.Hour, "localhost"), ca.CertPEM())
	}
	spec := func(change func(*configv1alpha1.ImpersonationProxySpec)) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			w.configure(t, change)
		}
	}
	share := func(t *testing.T) {
		t.Helper()
		w.owners(t)
		must.Do(t, w.Cluster.Install(t.Context(), filepath.Join(w.Deploy, "tlscertificatedelegation")))
		w.putSharedData(t, of(old))
		testkit.Eventually(t, 20*time.Second, func() error { return w.types(t, "pinniped ip-tls delegate "+sharedTLS).err() })
	}
	revoke := func(t *testing.T) {
		t.Helper()
		w.types(t, "pinniped ip-tls delegate "+sharedTLS+" --revoke --allow OldClientsBreak").ok(t)
	}
	const secret = "hints-tls"
	for _, tt := range []struct {
		name   string
		secret string // "" is hints-tls
		before func(*testing.T)
		breaks func(*testing.T)
		code   string // for users
		hint   string
		// instead replaces the hint: what users run if the owner of the Secret keeps it.
		instead string
	}{
		{
			name: "the proxy is switched off", code: configv1alpha1.CodeDisabledBySpec, hint: "pinniped ip-tls set --mode enabled",
			breaks: spec(func(s *configv1alpha1.ImpersonationProxySpec) { s.Mode = configv1alpha1.ImpersonationProxyModeDisabled }),
		},
		{
			name: "somebody removed spec.tls", code: "BundleDoesNotVerify", hint: "pinniped ip-tls undo",
			breaks: spec(func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS = nil }),
		},
		{
			name: "the Secret was renewed by another CA, which serves", code: "BundleDoesNotVerify",
			hint: "pinniped kubeconfig rotate FILE",
			breaks: func(t *testing.T) {
				t.Helper()
				w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
					s.TLS.CATransition = configv1alpha1.CATransitionImmediate
				})
				w.putSecret(t, secret, of(newCA(t, "Another CA", time.Now())))
			},
		},
		{
			name: "a delegation was revoked", secret: sharedTLS, before: share, code: "BundleDoesNotVerify",
			hint:   "pinniped ip-tls delegate " + sharedTLS,
			breaks: revoke,
		},
		{
			name: "a delegation was revoked, and stays so", secret: sharedTLS, before: share, code: "BundleDoesNotVerify",
			hint: "pinniped ip-tls delegate " + sharedTLS, instead: "pinniped kubeconfig rotate FILE", breaks: revoke,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.generatedOnly(t)
			old = newCA(t, "The CA while "+tt.name, time.Now())
			if tt.before != nil {
				tt.before(t)
			}
			if tt.secret == "" {
				tt.secret = secret
				w.putSecret(t, secret, of(old))
			}
			set := "pinniped ip-tls set --ca-from-secret --timeout=60s --allow OldClientsBreak --secret " + tt.secret
			w.types(t, set).ok(t)
			w.onlyNow(t)
			file := w.userKubeconfig(t, "pinny:password123")
			works := func() error { return w.kubectlAs(t, file, "auth", "whoami").err() }
			must.Do(t, works())
			tt.breaks(t)
			var seen cliresult.Status
			testkit.Eventually(t, 30*time.Second, func() error {
				if seen = w.status(t); seen.Users.Code != tt.code {
					return fmt.Errorf("the status says %+v", seen.Users)
				}
				return nil
			})
			testkit.Eventually(t, 20*time.Second, func() error { // on every replica
				if works() == nil {
					return errors.New("she still works")
				}
				return nil
			})
			seen = w.status(t)
			if len(seen.Users.Next) == 0 || !strings.HasPrefix(seen.Users.Next[0], tt.hint) {
				t.Fatalf("%q is to be typed, want %q: %+v", seen.Users.Next, tt.hint, seen)
			}
			line := strings.Replace(cmp.Or(tt.instead, seen.Users.Next[0]), "FILE", file, 1)
			w.types(t, line).ok(t)
			testkit.Eventually(t, 20*time.Second, works)
		})
	}
}

// TestKubectlHints runs every kubectl command that the status can suggest, for every code, unchanged. kubectl and the
// API server must accept it.
func TestKubectlHints(t *testing.T) {
	w := needsCluster(t)
	w.generatedOnly(t)
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) { // a Service to describe
		s.Service.Type = configv1alpha1.ServiceTypeClusterIP
	})
	issuer := w.issuer(t)
	testkit.Eventually(t, 20*time.Second, func() error {
		var service corev1.Service
		return w.admin.Get(t.Context(), ours(issuer.Status.Objects.ClusterIPService), &service)
	})
	findings := must.Get(os.ReadFile("../../pkg/apis/config/v1alpha1/findings.go"))(t)
	codes := []string{"", "AgentNotRunning", "NoAnswer", "GeneratedServes"}
	for _, found := range regexp.MustCompile(`Code\w+ = "(\w+)"`).FindAllSubmatch(findings, -1) {
		codes = append(codes, string(found[1]))
	}
	for _, code := range certs.Codes() {
		codes = append(codes, string(code))
	}
	typed := map[string]bool{}
	for _, code := range codes {
		for _, line := range status.NextCommands(code, status.Place{
			Namespace: devinstall.Namespace, Issuer: discovery.KubectlName(issuer), Secret: "hints-tls",
			Service: issuer.Status.Objects.ClusterIPService, Endpoint: w.endpoint(),
		}) {
			if !strings.HasPrefix(line, "kubectl ") || typed[line] {
				continue
			}
			typed[line] = true
			if got := w.types(t, line); got.code != 0 {
				t.Errorf("for %s: %s", code, got)
			}
		}
	}
	if len(typed) < 6 {
		t.Errorf("only these were typed: %v", typed)
	}
	w.generatedOnly(t)
}
