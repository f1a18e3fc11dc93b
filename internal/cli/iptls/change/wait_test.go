package change

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/pkg/certs"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

func TestWaitForReplicas(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	obeyed := w.Cluster.AfterApply
	leaf, _ := certs.ParseBundle(w.Pair.CertPEM)
	serving := &configv1alpha1.ServingCertificateStatus{
		Source:          configv1alpha1.ServingCertificateSecret,
		SHA256:          certs.Fingerprint(leaf[0].Raw),
		Replicas:        2,
		ServingReplicas: 1,
		OtherReplicas:   []configv1alpha1.OtherReplica{{Name: "agent-x", Message: "it has not seen the Secret yet"}},
	}
	w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
		obeyed(c)
		c.Issuer.Status.ServingCertificate = serving
	}
	runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout, o.Flags.NoRollback = iptlstest.TooShort, true }).
		Check(t, 5, "1 of 2 replicas of the agent serve the certificate; agent-x does not: it has not seen the Secret yet")
	serving.ServingReplicas, serving.OtherReplicas = 2, nil
	runSet(t.Context(), w, nil).Check(t, 0, "presents the certificate")
	serving.SHA256 = strings.Repeat("0", 64)
	runSet(t.Context(), w, func(o *SetOptions) { o.Session.Timeout = iptlstest.TooShort }).
		Check(t, 5, "the agent reports that it serves another certificate, SHA-256 0000000000000000")
}

// TestSetWithoutAnAgent checks that the command does not wait while no agent runs.
func TestSetWithoutAnAgent(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.Leases = []discovery.ReplicaLease{{
		Renewed: time.Date(2026, 1, 2, 4, 1, 22, 0, time.UTC), Lasts: 40 * time.Second,
	}}
	runSet(t.Context(), w, nil).Check(t, 3,
		"the agent is not running: the last report is from 2026-01-02T04:01:22Z; nothing was changed",
		"kubectl get pods --namespace=pinniped-concierge", "--wait=false")
	if len(w.Cluster.Applied) > 0 {
		t.Errorf("applied %v", w.Cluster.Applied)
	}
	runSet(t.Context(), w, func(o *SetOptions) { o.Flags.DryRun = session.DryRunClient }).Check(t, 0, "Checked")
	runSet(t.Context(), w, func(o *SetOptions) { o.Flags.Wait = false }).Check(t, 0, "Changed CredentialIssuer")
}

// TestSetWaitsForAProxyThatItSwitchesOn checks that a status from before the change is ignored.
func TestSetWaitsForAProxyThatItSwitchesOn(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Cluster.Issuer.Status.Strategies = []configv1alpha1.CredentialIssuerStrategy{
		iptlstest.FailedReport(configv1alpha1.ReasonDisabled, "explicitly disabled"),
	}
	w.Cluster.Issuer.Spec.ImpersonationProxy.Mode = configv1alpha1.ImpersonationProxyModeDisabled
	runSet(t.Context(), w, func(o *SetOptions) {
		o.Mode, o.Session.Timeout, o.Flags.NoRollback = "enabled", iptlstest.TooShort, true
	}).Check(t, 5, "the agent still reports that the proxy is switched off: explicitly disabled")
}

// TestSetPrintsTheAgentsFindings checks that findings are printed with their codes, and the whole message of an agent
// without findings.
func TestSetPrintsTheAgentsFindings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		report    func(*configv1alpha1.CredentialIssuer)
		says, not string
	}{
		{
			name: "tells findings, and not the sentence",
			report: func(i *configv1alpha1.CredentialIssuer) {
				i.Status.Objects = &configv1alpha1.ObjectNames{}
				i.Status.Strategies[0].Message = "ready, but: not quite"
				i.Status.Strategies[0].Findings = []configv1alpha1.StrategyFinding{
					{Code: "ExpiresSoon", Severity: configv1alpha1.FindingWarning, Message: "in a week"},
				}
			},
			says: "the agent reports: ExpiresSoon: in a week", not: "not quite",
		},
		{
			name: "tells the sentence of an agent without findings",
			report: func(i *configv1alpha1.CredentialIssuer) {
				i.Status.Objects = nil
				i.Status.Strategies[0].Message = "ready, but: not quite"
			},
			says: "the agent reports: ready, but: not quite", not: "ExpiresSoon",
		},
		{
			name:   "tells nothing of an agent that has found nothing",
			report: func(i *configv1alpha1.CredentialIssuer) { i.Status.Objects = &configv1alpha1.ObjectNames{} },
			says:   "presents the certificate at 1 of 1 addresses", not: "the agent reports",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.New(t)
			w.Obey(t)
			obeyed := w.Cluster.AfterApply
			w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
				obeyed(c)
				tt.report(c.Issuer)
			}
			r := runSet(t.Context(), w, nil)
			r.Check(t, 0, tt.says)
			if strings.Contains(r.ErrOut.String(), tt.not) {
				t.Errorf("it says %q", tt.not)
			}
		})
	}
}

// TestInterruptNamesUndo interrupts a command while it waits, and checks that the message names undo.
func TestInterruptNamesUndo(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.Cluster.AfterApply = func(*iptlstest.Cluster) { cancel() }
	runSet(ctx, w, nil).Check(t, 130, "interrupted: the CredentialIssuer has changed", "pinniped ip-tls undo")
}

// TestOvertaken checks a concurrent change of the same fields by another administrator.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Obey(t)
	w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
		if c.Issuer.Spec.ImpersonationProxy.TLS == nil {
			c.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "theirs"}
			c.Bump()
		}
	}
	runSet(t.Context(), w, nil).Check(t, 3, "was changed in the meantime", "tls.secretName from (none) to theirs",
		"nothing was changed")
	if got := SpecOf(w).TLS.SecretName; got != "theirs" {
		t.Errorf("it is %s", got)
	}
}
