package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pinniped-toolkit/pinniped/internal/devinstall"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/testkit"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestSetIsKilled kills "ip-tls set" in each phase of a change that breaks clients, as it is allowed. The same command
// again ends the change, and leaves nothing of the attempt before.
func TestSetIsKilled(t *testing.T) {
	w := newTurn(t, false)
	allowed := []string{
		"ip-tls", "set", "--secret=rotate-new", "--ca-bundle=" + w.newBundle, "--timeout=40s", "--allow=OldClientsBreak",
	}
	status := func() *configv1alpha1.CredentialIssuerStatus { return &w.issuer(t).Status }
	for phase, reached := range map[string]func() bool{
		"nothing is changed": func() bool { return true },
		"the spec is changed": func() bool {
			return w.issuer(t).Spec.ImpersonationProxy.TLS.SecretName == "rotate-new"
		},
		"the certificate is in service": func() bool {
			return status().ServingCertificate.SHA256 == fingerprint(t, w.newPair)
		},
		"the CA bundle is published": func() bool {
			return string(w.publishedBundle(t)) == string(w.newCA.CertPEM())
		},
		"the revision is retired": nil,
	} {
		t.Run(phase, func(t *testing.T) {
			w.external(t, "rotate-old", pairData(w.oldPair))
			before := w.client(t, "before")
			before.works(t)
			w.leadsThrough(t, before) // it is used
			if known := w.retirements(t); reached == nil {
				reached = func() bool { return !maps.Equal(w.retirements(t), known) }
			}
			w.kill(t, allowed, reached)
			w.asAdmin(t, allowed...).ok(t)
			before.breaks(t)
			if tls := w.issuer(t).Spec.ImpersonationProxy.TLS; tls.CATransition != configv1alpha1.CATransitionDualTrust {
				t.Errorf("caTransition is %q", tls.CATransition)
			}
			w.asAdmin(t, "ip-tls", "status").ok(t)
		})
	}
}

// kill starts the CLI as the administrator, and kills it as soon as reached.
func (w *world) kill(t *testing.T, args []string, reached func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, w.cli, append(args, "--kubeconfig="+w.Cluster.AdminKubeconfig())...)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	must.Do(t, command.Start())
	until(t, reached)
	_ = command.Process.Kill()
	_ = command.Wait()
}

// until waits until reached.
func until(t *testing.T, reached func() bool) {
	t.Helper()
	testkit.Eventually(t, 40*time.Second, func() error {
		if !reached() {
			return errors.New("it is not as far")
		}
		return nil
	})
}

// retirements returns when which revision was retired.
func (w *world) retirements(t *testing.T) map[string]string {
	t.Helper()
	var kept corev1.ConfigMap
	must.Do(t, w.admin.Get(t.Context(), ours("pinniped-concierge-revisions"), &kept))
	maps.DeleteFunc(kept.Data, func(key, _ string) bool { return !strings.HasPrefix(key, serving.RetiredPrefix) })
	return kept.Data
}

// TestAgentIsKilled kills all replicas in each phase of a transition to another CA. After each restart, the clients in
// use verify the certificate that is served, and the transition goes on.
func TestAgentIsKilled(t *testing.T) {
	w := newTurn(t, false)
	before := w.client(t, "before")
	before.works(t)
	w.leadsThrough(t, before) // it is used
	before.stop()             // it does not survive the absence of all replicas
	fleet := kubeconfigOf(t, before)
	restart := func(phase string, client *caller, serves *certs.KeyPair) {
		t.Helper()
		kill(t, w.agents...)
		w.everyReplica(t, 40*time.Second, func(agent *devinstall.Agent) error {
			if err := agent.Ready(t.Context()); err != nil {
				return fmt.Errorf("killed when %s: %w", phase, err)
			}
			return presents(agent.ProxyAddress(), serves)
		})
		must.Do(t, w.WaitAvailable(t.Context()))
		w.leadsThrough(t, client)
	}
	prepared := func() bool {
		transition := w.issuer(t).Status.Transition
		return transition != nil && transition.Phase == configv1alpha1.TransitionPrepared
	}

	w.set(t, 0, "--wait=false")
	restart("the spec is changed", before, w.oldPair)
	until(t, prepared)
	restart("both CAs are published", before, w.oldPair)
	until(t, prepared)
	w.set(t, 6)

	after := &caller{name: "the fleet", path: fleet}
	w.asAdmin(t, "kubeconfig", "rotate", fleet).ok(t)
	known := w.retirements(t)
	w.kill(t, []string{
		"ip-tls", "set", "--secret=rotate-new", "--ca-bundle=" + w.newBundle, "--kubeconfigs=" + fleet,
	}, func() bool { return !maps.Equal(w.retirements(t), known) })
	restart("the last revision is retired", after, w.newPair)
	until(t, func() bool { return string(w.publishedBundle(t)) == string(w.newCA.CertPEM()) })
	restart("the new certificate is active", after, w.newPair)
	w.set(t, 0)
	w.asAdmin(t, "ip-tls", "status").ok(t)
}

func decoded(t *testing.T, got result, code int, into any) {
	t.Helper()
	if got.code != code {
		t.Fatalf("it ended with %d, want %d\nstdout: %s\nstderr: %s", got.code, code, got.out, got.errOut)
	}
	if err := json.Unmarshal([]byte(got.out), into); err != nil {
		t.Fatalf("%v in %s", err, got.out)
	}
}

// TestCheck checks a certificate in the cluster, at the endpoint and at another time. Nothing changes.
func TestCheck(t *testing.T) {
	w := needsCluster(t)
	w.external(t, "checked-cert", pairData(w.issue(t, "localhost")))
	before := w.issuer(t)
	bundle := fileWith(t, "ca.pem", w.pki.CertPEM())
	type checked struct {
		OK           bool
		Certificates []struct {
			BreaksAt    string
			Certificate struct{ SHA256 string }
		}
	}
	var inCluster, atEndpoint, later checked
	decoded(t, w.asAdmin(t, "ip-tls", "check", "--timeline", "-o", "json"), 0, &inCluster)
	decoded(t, w.run(t, w.cli, "ip-tls", "check", "--endpoint", w.endpoint(), "--ca-bundle", bundle, "-o", "json"), 0,
		&atEndpoint)
	if !inCluster.OK || !atEndpoint.OK || inCluster.Certificates[0].BreaksAt == "" ||
		inCluster.Certificates[0].Certificate.SHA256 != atEndpoint.Certificates[0].Certificate.SHA256 {
		t.Errorf("in the cluster %+v, at the endpoint %+v", inCluster, atEndpoint)
	}
	decoded(t, w.asAdmin(t, "ip-tls", "check", "--at", "2099-01-01", "-o", "json"), 3, &later)
	if got := w.asAdmin(t, "ip-tls", "check", "--secret", "nowhere"); got.code != 3 ||
		!strings.Contains(got.out, "SecretNotFound") {
		t.Errorf("with a Secret that does not exist it ended with %d: %s%s", got.code, got.out, got.errOut)
	}
	if after := w.issuer(t); later.OK || after.Generation != before.Generation {
		t.Errorf("something was changed, or 2099 is fine: %+v", later)
	}
}
