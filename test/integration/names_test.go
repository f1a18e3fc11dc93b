package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// otherNames are settings of the agent that rename every object.
var otherNames = []string{
	"appName=own",
	"names.servingCertificateSecret=own-api-certificate",
	"names.credentialIssuer=own",
	"names.apiService=own-api",
	"names.impersonationLoadBalancerService=own-balancer",
	"names.impersonationClusterIPService=own-inside",
	"names.impersonationTLSCertificateSecret=own-leaf",
	"names.impersonationCACertificateSecret=own-ca",
	"names.impersonationSignerSecret=own-signer",
	"names.impersonationProxyServiceAccount=own-impersonator",
}

// renamed returns its own world, in which no object of the agent has its default name.
func renamed(t *testing.T) *world {
	t.Helper()
	w := ownWorld(t, devcluster.Options{})
	must.Do(t, w.Install(t.Context()))
	w.issuerName = "own"
	w.ownPermissions = true // the shipped ones have the default names
	bind := func(name, role, account string) client.Object {
		return &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{
				Name: name,
			},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: devinstall.Namespace, Name: account}},
		}
	}
	for _, object := range []client.Object{
		bind("own-agent", "cluster-admin", devinstall.AgentAccount),
		&corev1.ServiceAccount{ObjectMeta: ourMeta("own-impersonator")},
		bind("own-impersonator", "pinniped-concierge-impersonation-proxy", "own-impersonator"),
		&configv1alpha1.CredentialIssuer{
			ObjectMeta: metav1.ObjectMeta{Name: "own"},
			Spec: configv1alpha1.CredentialIssuerSpec{ImpersonationProxy: &configv1alpha1.ImpersonationProxySpec{
				Mode: configv1alpha1.ImpersonationProxyModeDisabled, Service: configv1alpha1.ImpersonationProxyServiceSpec{
					Type: configv1alpha1.ServiceTypeLoadBalancer,
				},
			}},
		},
	} {
		must.Do(t, w.admin.Create(t.Context(), object))
	}
	must.Do(t, w.admin.Delete(
		t.Context(),
		&configv1alpha1.CredentialIssuer{ObjectMeta: metav1.ObjectMeta{Name: devinstall.CredentialIssuer}},
	))
	w.APIService = "own-api"
	for _, name := range []string{"v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"} {
		w.kubectlDoes(t, "patch", "apiservice", name,
			"--type=merge", `--patch={"spec":{"service":{"name":"own-api"}}}`)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must.Do(t, w.startAll(ctx, otherNames, "agent-own"))
	return w
}

// balance simulates the cloud: it gives the agent's Service a host name.
func (w *world) balance(t *testing.T, hostname string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		var service corev1.Service
		if err := w.admin.Get(t.Context(), ours("own-balancer"), &service); err != nil {
			return err
		}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: hostname}}
		return w.admin.Status().Update(t.Context(), &service)
	})
}

// TestOtherNames shows that the CLI works with an agent whose objects have no default names: it reads the names.
func TestOtherNames(t *testing.T) {
	t.Parallel() // has its own world
	w := renamed(t)
	w.configure(t, func(s *configv1alpha1.ImpersonationProxySpec) {
		s.Mode, s.ExternalEndpoint = configv1alpha1.ImpersonationProxyModeEnabled, w.endpoint()
	})
	w.balance(t, "lb.cloud.example.com")
	testkit.Eventually(t, 30*time.Second, func() error {
		issuer := w.issuer(t)
		want := configv1alpha1.ObjectNames{
			Namespace:                      devinstall.Namespace,
			LoadBalancerService:            "own-balancer",
			ClusterIPService:               "own-inside",
			GeneratedCertificateSecret:     "own-leaf",
			GeneratedCASecret:              "own-ca",
			LastKnownGoodCertificateSecret: "own-impersonation-proxy-last-known-good-certificate",
			RevisionsConfigMap:             "own-revisions",
			ServiceAccount:                 devinstall.AgentAccount,
		}
		if issuer.Status.Objects == nil || *issuer.Status.Objects != want {
			return fmt.Errorf("the status names %+v", issuer.Status.Objects)
		}
		if serving := issuer.Status.ServingCertificate; serving == nil ||
			serving.Source != configv1alpha1.ServingCertificateGenerated {
			return fmt.Errorf("the status says %+v", serving)
		}
		return nil
	})
	expect := func(got result, code int, texts ...string) {
		t.Helper()
		if got.code != code {
			t.Fatalf("it ended with %d, want %d\nstdout: %s\nstderr: %s", got.code, code, got.out, got.errOut)
		}
		for _, text := range texts {
			if !strings.Contains(got.out+got.errOut, text) {
				t.Errorf("nothing says %q\nstdout: %s\nstderr: %s", text, got.out, got.errOut)
			}
		}
		if strings.Contains(got.out+got.errOut, "there is no Service") {
			t.Errorf("a Service was not found\nstdout: %s\nstderr: %s", got.out, got.errOut)
		}
	}
	folder := t.TempDir()
	bundle := filepath.Join(folder, "ca.pem")
	must.Do(t, os.WriteFile(bundle, w.pki.CertPEM(), 0o600))
	w.putSecret(t, "corporate", pairData(w.issue(t, "localhost")))
	var status result
	testkit.Eventually(t, 20*time.Second, func() error { // reissued for the load balancer's name
		if status = w.asAdmin(t, "ip-tls", "status"); status.code != 0 {
			return errors.New(status.out + status.errOut)
		}
		return nil
	})
	expect(status, 0, "localhost")

	// From the generated certificate, whose Secret has another name, and with the load balancer's name, which only the
	// Service has.
	expect(w.asAdmin(t, "ip-tls", "set", "--secret=corporate", "--ca-bundle="+bundle, "--timeout=60s",
		"--allow=OldClientsBreak"), 0)
	expect(w.asAdmin(t, "ip-tls", "check"), 0, "lb.cloud.example.com")
	user := w.userKubeconfig(t, "pinny:password123")
	w.works(t, user)

	// Back to the generated one, whose CA is in a Secret with another name. The user's kubeconfig is rotated afterwards.
	expect(w.asAdmin(t, "ip-tls", "unset", "--timeout=60s", "--allow=OldClientsBreak"), 0)
	expect(w.asAdmin(t, "kubeconfig", "rotate", user), 0, "rotated")
	w.works(t, user)

	// The names of the backup and of the Service are known again.
	expect(
		w.asAdmin(t, "ip-tls", "set", "--secret=corporate", "--ca-bundle="+bundle, "--allow=OldClientsBreak",
			"--timeout=60s"),
		0,
		"lb.cloud.example.com",
	)
	expect(
		w.asAdmin(t, "ip-tls", "set", "--secret=own-impersonation-proxy-last-known-good-certificate"),
		2,
		"a backup that only the agent",
	)
	expect(w.asAdmin(t, "ip-tls", "status", "--kubeconfigs="+user), 8, user, "broken") // allowed above
}

// works logs in with a kubeconfig, and checks the user.
func (w *world) works(t *testing.T, path string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := w.run(t, w.cli, "whoami", "--kubeconfig="+path); got.code != 0 || !strings.Contains(got.out, "pinny") {
			return errors.New(got.out + got.errOut)
		}
		return nil
	})
}
