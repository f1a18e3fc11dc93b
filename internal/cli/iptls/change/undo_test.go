package change

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
	"github.com/pinniped-toolkit/pinniped/test/testkit/same"
)

func runUndo(t *testing.T, w *iptlstest.World, change func(*UndoOptions)) *iptlstest.Run {
	t.Helper()
	r := &iptlstest.Run{}
	o := &UndoOptions{
		Session: sessiontest.New(w, r), Flags: Flags{DryRun: session.DryRunNone, Wait: true},
		Allow: []string{"OldClientsBreak"},
	}
	if change != nil {
		change(o)
	}
	return r.Do(t.Context(), o)
}

// SpecOf returns the part of the configuration that the commands change.
func SpecOf(w *iptlstest.World) configv1alpha1.ImpersonationProxySpec {
	spec := *w.Cluster.Issuer.Spec.ImpersonationProxy.DeepCopy()
	if spec.TLS != nil {
		spec.TLS.CATransition = "" // not part of the result
	}
	return spec
}

func TestUndo(t *testing.T) {
	t.Parallel()
	t.Run("takes set back, does it again, and takes it back again", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		before := SpecOf(w)
		runSet(t.Context(), w, nil).Check(t, 0, "configured")
		after := SpecOf(w)
		for i, want := range []configv1alpha1.ImpersonationProxySpec{before, after, before} {
			runUndo(t, w, nil).
				Check(t, 0, "credentialissuer/pinniped-concierge-config undone", "presents the certificate at 1 of 1 addresses")
			if diff := cmp.Diff(want, SpecOf(w)); diff != "" {
				t.Errorf("after undo %d (-want +got):\n%s", i+1, diff)
			}
		}
	})
	t.Run("takes unset back", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Record(t)
		before := SpecOf(w)
		runUnset(t, w, nil).Check(t, 0, "unset")
		runUndo(t, w, nil).Check(t, 0, "undone", "tls.secretName")
		same.Values(t, "after undo", before, SpecOf(w))
	})
	t.Run("takes the endpoint back with the certificate", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		endpoint := strings.Replace(w.Proxy.Endpoint(), "127.0.0.1", "[::ffff:127.0.0.1]", 1)
		w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = endpoint
		w.Cluster.Bump()
		w.Cluster.AfterApply(w.Cluster)
		runSet(
			t.Context(), w, func(o *SetOptions) { o.Certificate.ExternalEndpoint = w.Proxy.Endpoint() }, "external-endpoint",
		).Check(t, 0)
		runUndo(t, w, nil).Check(t, 0, "undone", "externalEndpoint")
		if got := SpecOf(w); got.ExternalEndpoint != endpoint || got.TLS != nil {
			t.Errorf("the configuration is %+v", got)
		}
	})
	t.Run("changes nothing in a dry run", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		after := SpecOf(w)
		runUndo(t, w, func(o *UndoOptions) { o.Flags.DryRun, o.Flags.Diff = session.DryRunServer, true }).
			Check(t, 0, "undone (server dry run)", "- spec.impersonationProxy.tls.secretName: proxy-tls")
		same.Values(t, "after a dry run", after, SpecOf(w))
	})
	t.Run("checks what it goes back to", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Record(t)
		other := iptlstest.NewCA(t, "Other CA")
		w.Put("other-tls", iptlstest.Serving(t, other, iptlstest.Loopback()), other.CertPEM())
		runSet(t.Context(), w, func(o *SetOptions) {
			o.Certificate.Secret, o.Certificate.Allow = "other-tls", []string{"OldClientsBreak"}
		}).Check(t, 0)
		w.Cluster.TLSSecret = nil
		runUndo(t, w, nil).Check(t, 3, "SecretNotFound")
	})
	t.Run("puts back what does not take effect", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		after := SpecOf(w)
		w.Cluster.AfterApply = nil
		runUndo(t, w, func(o *UndoOptions) { o.Session.Timeout = iptlstest.TooShort }).Check(t, 5, "was restored")
		same.Values(t, "after going back", after, SpecOf(w))
	})
	t.Run("goes back to a revision, past what never was in effect", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		before := SpecOf(w)
		w.Put("typo-tls", w.Pair, w.CA.CertPEM())
		obey := w.Cluster.AfterApply
		w.Cluster.AfterApply = func(c *iptlstest.Cluster) {
			c.Issuer.Status.Strategies[0].Status = configv1alpha1.StrategyError
			w.Outcome = serving.OutcomeRefused
			w.RecordSince(t, time.Now())
		}
		runSet(t.Context(), w, func(o *SetOptions) {
			o.Certificate.Secret, o.Flags.NoRollback, o.Session.Timeout = "typo-tls", true, iptlstest.TooShort
		}).Check(t, 5)
		w.Cluster.AfterApply, w.Outcome = obey, ""
		runSet(t.Context(), w, nil).Check(t, 0)
		after := SpecOf(w)
		runUndo(t, w, nil).Check(t, 0, "undone")
		same.Values(t, "after undo", before, SpecOf(w))
		history := must.Get(serving.Read(w.Cluster.Revisions.Data))(t)
		to := plan.Previous(history, w.Cluster.Issuer.Spec.ImpersonationProxy)
		runUndo(t, w, func(o *UndoOptions) { o.ToRevision = to.ID[:6] }).Check(t, 0, "undone", to.ID)
		same.Values(t, "after undo to a revision", after, SpecOf(w))
	})
	t.Run("takes back what others have changed, and says who may put it back", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		before := SpecOf(w)
		w.Cluster.Issuer.Spec.ImpersonationProxy.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "proxy-tls"}
		w.Cluster.Issuer.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "gitops", Operation: metav1.ManagedFieldsOperationApply,
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:impersonationProxy":{"f:tls":{}}}}`),
		}}
		w.Cluster.Bump()
		w.Cluster.AfterApply(w.Cluster)
		runUndo(t, w, nil).Check(t, 0, "undone", `"gitops" also manages fields`)
		same.Values(t, "after undo", before, SpecOf(w))
	})
}

func TestUndoRefuses(t *testing.T) {
	t.Parallel()
	t.Run("when nothing else was in effect", func(t *testing.T) {
		t.Parallel()
		runUndo(t, undoWorld(t), nil).Check(t, 1, "there is nothing to undo", "ip-tls set")
	})
	t.Run("when the agent keeps no history", func(t *testing.T) {
		t.Parallel()
		runUndo(t, iptlstest.New(t), nil).Check(t, 1, "keeps none",
			"kubectl edit credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config")
	})
	t.Run("when the history does not tell the configuration", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		history := must.Get(serving.Read(w.Cluster.Revisions.Data))(t)
		history.Revisions[0].Spec, history.Revisions[0].Until = nil, time.Now()
		w.Cluster.Revisions.Data[serving.RevisionsKey] = string(history.Encode())
		runUndo(t, w, nil).Check(t, 1, "has no configuration", "kubectl edit")
	})
	t.Run("wrong usage", func(t *testing.T) {
		t.Parallel()
		w := undoWorld(t)
		runUndo(t, w, func(o *UndoOptions) { o.Allow = []string{"Nothing"} }).Check(t, 2, "there is no such code")
		runUndo(t, w, func(o *UndoOptions) { o.Flags.DryRun = "maybe" }).Check(t, 2, "--dry-run")
		runUndo(t, w, func(o *UndoOptions) { o.ToRevision = "unknown" }).Check(t, 2, "--to-revision", "ip-tls history")
	})
}

// TestUndoOfFiles checks the message that an overwritten key is lost.
func TestUndoOfFiles(t *testing.T) {
	t.Parallel()
	w := undoWorld(t)
	w.Cluster.AfterSecret = w.Cluster.AfterApply
	renewed := renewal(t, w)
	setFromFiles(t, w, renewed, nil).Check(t, 0, "configured", `the content of Secret "proxy-tls" is overwritten`)
	runUndo(t, w, nil).Check(t, 0, "undone")
	w.SecretHas(t, renewed)
	if content := w.Cluster.Revisions.Data[serving.RevisionsKey]; strings.Contains(content, "PRIVATE") {
		t.Error("a key is kept")
	}
}

// undoWorld returns a world with an agent that applies changes and keeps a history.
func undoWorld(t *testing.T) *iptlstest.World {
	t.Helper()
	w := iptlstest.New(t)
	w.Record(t)
	return w
}
