package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	cliresult "github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/devcluster"
	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestCertManagerRenewsTheCA gives cert-manager's Issuer another CA with another key, and has cert-manager reissue the
// certificate in service, under load. Clients that trust only the old CA keep working. When none are left, the new
// certificate becomes active, under load of clients with a refreshed trust bundle.
func TestCertManagerRenewsTheCA(t *testing.T) {
	w := needsCluster(t)
	m := w.installCertManager(t)
	w.generatedOnly(t)
	const secret = "by-cert-manager"
	w.removeAfterwards(t, &corev1.Secret{ObjectMeta: ourMeta(secret)})
	m.start(t)
	m.apply(t, w.asAdmin(t, "ip-tls", "manifest", "--issuer=Issuer/company-ca", "--secret="+secret).out)
	// ip-tls set waits until cert-manager has issued the certificate.
	w.asAdmin(t, "ip-tls", "set", "--secret="+secret, "--timeout=60s", "--allow=OldClientsBreak").ok(t)
	w.onlyNow(t)
	first, err := presented(w.agents[0].ProxyAddress())
	if err != nil || first.CheckSignatureFrom(m.pki.Certificate()) != nil {
		t.Fatalf("presented is a certificate of %v, %v", first.Issuer, err)
	}
	everywhere := func(not, want []byte) {
		t.Helper()
		w.everyReplica(t, 30*time.Second, func(agent *devinstall.Agent) error { return differs(agent, not, want) })
	}
	everywhere(nil, first.Raw)
	before := w.load(t, trusting(m.pki.CertPEM()))

	next := newCA(t, "Company CA, renewed", time.Now())
	key := must.Get(next.KeyPEM())(t)
	w.putSecret(t, "company-ca", map[string][]byte{"tls.crt": next.CertPEM(), "tls.key": key})
	m.renew(t, secret)
	var issued corev1.Secret
	testkit.Eventually(t, 30*time.Second, func() error {
		err := w.admin.Get(t.Context(), ours(secret), &issued)
		if err == nil && !certs.SameBundle(issued.Data["ca.crt"], next.CertPEM()) {
			err = fmt.Errorf("cert-manager has issued with this CA: %s", issued.Data["ca.crt"])
		}
		return err
	})
	chain, _ := certs.ParseBundle(issued.Data[corev1.TLSCertKey])
	waits := w.waitForStatus(t, "Listening", certs.Fingerprint(chain[0].Raw))
	if len(waits.Findings) != 1 || waits.Findings[0].Code != configv1alpha1.CodeTransitionPrepared {
		t.Errorf("the findings are %+v", waits.Findings)
	}
	both := certs.UnionBundle(m.pki.CertPEM(), next.CertPEM())
	w.waitForBundle(t, both)
	before.enough(t, 200)
	everywhere(nil, first.Raw)
	status := w.status(t)
	if status.Users.State != cliresult.UsersNotAffected ||
		!strings.Contains(status.Users.Message, " waits for clients of ") {
		t.Errorf("line one is %q", status.Users.Message)
	}
	before.stop(t)

	// Clients with a refreshed trust bundle keep working while the other revisions are retired and the new certificate
	// becomes active.
	after := w.load(t, trusting(w.publishedBundle(t)))
	after.enough(t, 100)
	testkit.Eventually(t, 20*time.Second, func() error {
		left := 0
		for _, state := range w.status(t).Clients {
			if state.Until != nil && state.Outcome != cliresult.ClientsRetired {
				left++
				if got := w.asAdmin(t, "ip-tls", "history", "--retire="+state.ID); got.code != 0 {
					return fmt.Errorf("history --retire ended with %d: %s", got.code, got.errOut)
				}
			}
		}
		if left > 0 { // a revision is not retired within the second of its last publication
			return fmt.Errorf("%d states were not retired yet", left)
		}
		return nil
	})
	everywhere(first.Raw, chain[0].Raw)
	after.enough(t, 200)
	after.stop(t)
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := w.publishedBundle(t); !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(next.CertPEM())) {
			return fmt.Errorf("published is %s", got)
		}
		return nil
	})
	w.waitForStatus(t, "Listening", "ready to accept client connections")
	hint := "kubectl describe certificate " + secret + " --namespace=" + devinstall.Namespace
	w.types(t, hint).ok(t)
}

const certManagerIssuer = `apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: company-ca, namespace: pinniped-concierge}
spec: {ca: {secretName: company-ca}}
`

// certManager is cert-manager on the cluster of the tests: its API, and its controllers once they are started.
type certManager struct{ *world }

// installCertManager installs cert-manager's API until the end of the test.
func (w *world) installCertManager(t *testing.T) *certManager {
	t.Helper()
	w.needsController(t, "certmanager")
	for _, kind := range []string{"certificates", "certificaterequests", "issuers", "clusterissuers"} {
		w.installCRD(t, "github.com/cert-manager/cert-manager", "cert-manager.io_"+kind+".yaml")
	}
	return &certManager{w}
}

// start starts cert-manager's controllers, and creates an Issuer of the corporate CA.
func (m *certManager) start(t *testing.T) {
	t.Helper()
	key := must.Get(m.pki.KeyPEM())(t)
	m.putSecret(t, "company-ca", map[string][]byte{"tls.crt": m.pki.CertPEM(), "tls.key": key})
	m.apply(t, certManagerIssuer)
	m.startController(t, "certmanager")
}

// needsController returns the path of a program of hack/cluster, and skips the test if it is not built.
func (*world) needsController(t *testing.T, name string) string {
	t.Helper()
	program := must.Get(filepath.Abs("../../bin/" + name))(t)
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		t.Skipf("there is no bin/%s: run make bin/%s", name, name)
	}
	return program
}

// startController runs a program of hack/cluster until the end of the test.
func (w *world) startController(t *testing.T, name string, args ...string) {
	t.Helper()
	controllers := must.Get(w.Cluster.StartProgram(t.Context(), devcluster.ProgramOptions{
		Name: name, Path: w.needsController(t, name), Args: append(args, "--kubeconfig="+w.Cluster.AdminKubeconfig()),
		Ready: func(context.Context) error { return nil },
	}))(t)
	t.Cleanup(func() {
		if t.Failed() {
			showTail(controllers.Log())
		}
		if err := controllers.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// installCRD installs a CRD of a module of hack/cluster until the end of the test.
func (w *world) installCRD(t *testing.T, module, file string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module)
	command.Dir = "../../hack/cluster"
	folder, err := command.Output()
	if err != nil {
		t.Fatalf("finding module %s: %v", module, err)
	}
	crd := filepath.Join(strings.TrimSpace(string(folder)), "deploy", "crds", file)
	must.Do(t, w.Cluster.Install(t.Context(), crd))
	t.Cleanup(func() {
		remove := exec.CommandContext(context.WithoutCancel(t.Context()), w.kubectl,
			"--kubeconfig="+w.Cluster.AdminKubeconfig(), "delete", "-f", crd)
		if output, err := remove.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, output)
		}
	})
}

func (m *certManager) apply(t *testing.T, manifest string) {
	t.Helper()
	m.runWith(t, nil, strings.NewReader(manifest), m.kubectl, "--kubeconfig="+m.Cluster.AdminKubeconfig(),
		"apply", "--server-side", "-f", "-").ok(t)
}

// renew has cert-manager reissue a Certificate now, as cmctl does.
func (m *certManager) renew(t *testing.T, name string) {
	t.Helper()
	certificate := &unstructured.Unstructured{}
	certificate.SetAPIVersion("cert-manager.io/v1")
	certificate.SetKind("Certificate")
	testkit.Eventually(t, 10*time.Second, func() error {
		key := ours(name)
		if err := m.admin.Get(t.Context(), key, certificate); err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(certificate.Object, "status", "conditions")
		conditions = append(conditions, map[string]any{
			"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by the test",
			"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339), "observedGeneration": certificate.GetGeneration(),
		})
		if err := unstructured.SetNestedSlice(certificate.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		return m.admin.Status().Update(t.Context(), certificate)
	})
}

// TestCertManager follows a certificate from "ip-tls manifest" to a renewal under load. cert-manager's own controllers
// issue it.
func TestCertManager(t *testing.T) {
	w := needsCluster(t)
	m := w.installCertManager(t)
	w.generatedOnly(t)
	const secret = "by-cert-manager"
	set := []string{
		"ip-tls", "set", "--secret=" + secret, "--timeout=60s", "--allow=OldClientsBreak",
		"--kubeconfig=" + w.Cluster.AdminKubeconfig(),
	}
	w.run(t, w.cli, set...).exits(t, 3, "SecretNotFound")
	w.removeAfterwards(t, &corev1.Secret{ObjectMeta: ourMeta(secret)})

	m.apply(t, w.asAdmin(t, "ip-tls", "manifest", "--issuer=Issuer/company-ca", "--secret="+secret).out)
	var out, errOut testkit.Buffer
	running := exec.CommandContext(t.Context(), w.cli, set...)
	running.Env = []string{"HOME=" + t.TempDir()}
	running.Stdout, running.Stderr = &out, &errOut
	must.Do(t, running.Start())
	const waits = `cert-manager's Certificate "by-cert-manager" (not issued yet) to fill`
	testkit.Eventually(t, 30*time.Second, func() error {
		if said := errOut.String(); !strings.Contains(said, waits) {
			return fmt.Errorf("ip-tls set says %q, not %q", said, waits)
		}
		return nil
	})
	m.start(t)
	if err := running.Wait(); err != nil {
		t.Fatalf("ip-tls set: %v\nstdout: %s\nstderr: %s", err, out.String(), errOut.String())
	}
	first, err := presented(w.agents[0].ProxyAddress())
	if err != nil || first.CheckSignatureFrom(w.pki.Certificate()) != nil {
		t.Fatalf("presented is a certificate of %v, %v", first.Issuer, err)
	}

	roots := trusting(w.pki.CertPEM())
	// every replica, before the load begins
	w.everyReplica(t, 20*time.Second, func(agent *devinstall.Agent) error { return differs(agent, nil, first.Raw) })
	load := w.load(t, roots)
	m.renew(t, secret)
	w.everyReplica(t, 30*time.Second, func(agent *devinstall.Agent) error { return differs(agent, first.Raw, nil) })
	// Also on connections with the new certificate.
	before := load.requests.Load()
	testkit.Eventually(t, 30*time.Second, func() error {
		if done := load.requests.Load() - before; done < 200 {
			return fmt.Errorf("%d requests since the renewal", done)
		}
		return nil
	})
	load.stop(t)
}

// differs checks that a replica presents the certificate want or, if that is nil, one other than not.
func differs(agent *devinstall.Agent, not, want []byte) error {
	certificate, err := presented(agent.ProxyAddress())
	switch {
	case err != nil:
		return err
	case want != nil && !bytes.Equal(certificate.Raw, want), not != nil && bytes.Equal(certificate.Raw, not):
		return fmt.Errorf("it presents the certificate with serial number %s", certificate.SerialNumber)
	}
	return nil
}
