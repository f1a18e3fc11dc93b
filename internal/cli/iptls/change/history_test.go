package change

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
)

// historyOf returns the last changes: who, what, and what came of it.
// typo sets a Secret that the agent refuses, and leaves it there.
func typo(t *testing.T, w *iptlstest.World) {
	t.Helper()
	w.Put("typo-tls", w.Pair, w.CA.CertPEM())
	w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
		c.Issuer.Status.Strategies[0].Status = configv1alpha1.StrategyError
		c.Bump()
	}
	runSet(t.Context(), w, func(o *SetOptions) {
		o.Certificate.Secret, o.Flags.NoRollback, o.Session.Timeout = "typo-tls", true, iptlstest.TooShort
	}).Check(t, 5)
	w.Obey(t)
}

// TestUndoSkipsWhatNeverWasInEffect makes a change after a typo: undo goes back to what was served before the typo.
func TestUndoSkipsWhatNeverWasInEffect(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Obey(t)
	before := SpecOf(w)
	typo(t, w)
	w.Put("right-tls", w.Pair, w.CA.CertPEM())
	runSet(t.Context(), w, func(o *SetOptions) { o.Certificate.Secret = "right-tls" }).Check(t, 0, "configured")
	runUndo(t, w, nil).Check(t, 0, "undone")
	if diff := cmp.Diff(before, SpecOf(w)); diff != "" {
		t.Errorf("after undo (-want +got):\n%s", diff)
	}
	t.Run("also right after it, and not back again", func(t *testing.T) {
		typo(t, w)
		runUndo(t, w, nil).Check(t, 0, "undone")
		runUndo(t, w, nil).Check(t, 0, "unchanged", "is the last one that was in effect already")
		if diff := cmp.Diff(before, SpecOf(w)); diff != "" {
			t.Errorf("after undo (-want +got):\n%s", diff)
		}
	})
}

// TestInEffect judges configurations of which no outcome was noted.
func TestInEffect(t *testing.T) {
	t.Parallel()
	external := &configv1alpha1.ServingCertificateStatus{
		Source: configv1alpha1.ServingCertificateSecret, SecretName: "proxy-tls",
	}
	for _, tt := range []struct {
		name   string
		change func(*configv1alpha1.CredentialIssuer)
		want   bool
	}{
		{"of an agent that does not tell what it serves", func(*configv1alpha1.CredentialIssuer) {}, true},
		{"served", func(i *configv1alpha1.CredentialIssuer) { i.Status.ServingCertificate = external }, true},
		{"another Secret is served", func(i *configv1alpha1.CredentialIssuer) {
			i.Status.ServingCertificate = external.DeepCopy()
			i.Status.ServingCertificate.SecretName = "other"
		}, false},
		{"the agent has not looked yet", func(i *configv1alpha1.CredentialIssuer) {
			i.Generation, i.Status.ObservedGeneration = 3, 2
		}, false},
		{"refused", func(i *configv1alpha1.CredentialIssuer) { i.Status.Strategies[0].Status = "Error" }, false},
		{"switched off", func(i *configv1alpha1.CredentialIssuer) {
			i.Status.Strategies[0].Status, i.Status.Strategies[0].Reason = "Error", configv1alpha1.ReasonDisabled
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := iptlstest.NewExternalWorld(t)
			tt.change(w.Cluster.Issuer)
			if got := plan.InEffect(w.Cluster.Issuer); got != tt.want {
				t.Errorf("it is %v", got)
			}
		})
	}
}

// TestUndoNamesTheSecretsThatWereMade has a Secret of "set --cert", which undo leaves.
func TestUndoNamesTheSecretsThatWereMade(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Served(t)
	w.Cluster.TLSSecret = nil
	setFromFiles(t, w, w.Pair, nil).Check(t, 0, "configured")
	runUndo(t, w, nil).Check(t, 0, "undone", `has made Secret "proxy-tls": that stays`,
		"kubectl delete secret --namespace pinniped-concierge proxy-tls")
}

// TestInterruptNamesTheWayBack interrupts a command while it waits.
func TestInterruptNamesTheWayBack(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.Cluster.AfterApply = func(*iptlstest.Cluster) { cancel() }
	runSet(ctx, w, nil).Check(t, 130, "interrupted: the CredentialIssuer is changed", "pinniped ip-tls undo")
}

// TestOvertaken has another administrator who changes the same between reading and writing.
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
	runSet(
		t.Context(),
		w,
		nil,
	).Check(t, 3, "somebody else has changed CredentialIssuer", "tls.secretName from (none) to theirs",
		"nothing was changed")
	if got := SpecOf(w).TLS.SecretName; got != "theirs" {
		t.Errorf("it is %s", got)
	}
}
