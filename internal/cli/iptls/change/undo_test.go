package change

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
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

// SpecOf is the part of the configuration that the commands change.
func SpecOf(w *iptlstest.World) plan.Target {
	spec := plan.TargetOf(w.Cluster.Issuer.Spec.ImpersonationProxy)
	if spec.TLS != nil {
		spec.TLS.CATransition = "" // how it got there
	}
	return spec
}

func TestUndo(t *testing.T) {
	t.Parallel()
	t.Run("takes set back, does it again, and takes it back again", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		before := SpecOf(w)
		runSet(t.Context(), w, nil).Check(t, 0, "configured")
		after := SpecOf(w)
		for i, want := range []plan.Target{before, after, before} {
			runUndo(
				t,
				w,
				nil,
			).Check(t, 0, "credentialissuer/pinniped-concierge-config undone", "presents the certificate at 1 of 1 addresses")
			if diff := cmp.Diff(want, SpecOf(w)); diff != "" {
				t.Errorf("after undo %d (-want +got):\n%s", i+1, diff)
			}
		}
	})
	t.Run("takes unset back", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Obey(t)
		before := SpecOf(w)
		runUnset(t, w, nil).Check(t, 0, "unset")
		runUndo(t, w, nil).Check(t, 0, "undone", `"ip-tls unset"`, "tls.secretName")
		if diff := cmp.Diff(before, SpecOf(w)); diff != "" {
			t.Errorf("after undo (-want +got):\n%s", diff)
		}
	})
	t.Run("takes the endpoint back with the certificate", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = ""
		w.Cluster.Bump()
		runSet(
			t.Context(),
			w,
			func(o *SetOptions) { o.Certificate.ExternalEndpoint = w.Proxy.Endpoint() },
			"external-endpoint",
		).Check(t, 0)
		runUndo(t, w, nil).Check(t, 0, "undone", "externalEndpoint")
		if got := SpecOf(w); got.ExternalEndpoint != "" || got.TLS != nil {
			t.Errorf("the configuration is %+v", got)
		}
	})
	t.Run("changes nothing in a dry run", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		after := SpecOf(w)
		runUndo(
			t,
			w,
			func(o *UndoOptions) { o.Flags.DryRun, o.Flags.Diff = session.DryRunServer, true },
		).Check(t, 0, "undone (server dry run)", "- spec.impersonationProxy.tls.secretName: proxy-tls")
		if diff := cmp.Diff(after, SpecOf(w)); diff != "" {
			t.Errorf("after a dry run (-want +got):\n%s", diff)
		}
	})
	t.Run("checks what it goes back to", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		w.Obey(t)
		other := iptlstest.NewCA(t, "Other CA")
		w.Put("other-tls", iptlstest.Serving(t, other, iptlstest.Loopback()), other.CertPEM())
		runSet(t.Context(), w, func(o *SetOptions) {
			o.Certificate.Secret, o.Certificate.Allow = "other-tls", []string{"OldClientsBreak"}
		}).Check(t, 0)
		after := SpecOf(w)
		runUndo(t, w, func(o *UndoOptions) { o.Allow = nil }).Check(t, 3, "OldClientsBreak", "nothing was changed")
		if diff := cmp.Diff(after, SpecOf(w)); diff != "" {
			t.Errorf("after a refusal (-want +got):\n%s", diff)
		}
		runUndo(t, w, func(o *UndoOptions) { o.Allow = []string{"OldClientsBreak"} }).Check(t, 0, "undone")
		w.Cluster.TLSSecret = nil
		runUndo(t, w, func(o *UndoOptions) { o.Allow = []string{"OldClientsBreak"} }).Check(t, 0, "undone")
		runUndo(t, w, nil).Check(t, 3, "SecretNotFound")
	})
	t.Run("puts back what does not take effect, with the record", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		after, record := SpecOf(w), w.Cluster.Issuer.Annotations[plan.UndoAnnotation]
		w.Cluster.AfterApply = nil
		runUndo(t, w, func(o *UndoOptions) { o.Session.Timeout = iptlstest.TooShort }).Check(t, 5, "was put back")
		if diff := cmp.Diff(after, SpecOf(w)); diff != "" {
			t.Errorf("after going back (-want +got):\n%s", diff)
		}
		if got := w.Cluster.Issuer.Annotations[plan.UndoAnnotation]; got != record {
			t.Errorf("the record is %s, want %s", got, record)
		}
	})
}

func TestUndoRefuses(t *testing.T) {
	t.Parallel()
	t.Run("when there is nothing to undo", func(t *testing.T) {
		t.Parallel()
		runUndo(t, iptlstest.New(t), nil).Check(t, 1, "there is nothing to undo", "ip-tls set")
	})
	t.Run("when somebody else has changed the same", func(t *testing.T) {
		t.Parallel()
		for field, change := range map[string]func(*configv1alpha1.ImpersonationProxySpec){
			plan.FieldSecret: func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS.SecretName = "theirs" },
			plan.FieldBundle: func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS.CertificateAuthorityData = "QQ==" },
		} {
			w := iptlstest.New(t)
			w.Obey(t)
			runSet(t.Context(), w, nil).Check(t, 0)
			change(w.Cluster.Issuer.Spec.ImpersonationProxy)
			w.Cluster.Bump()
			theirs := SpecOf(w)
			runUndo(t, w, nil).Check(t, 3, "somebody else has changed the configuration since", field, "--force")
			if diff := cmp.Diff(theirs, SpecOf(w)); diff != "" {
				t.Errorf("their change was overwritten (-want +got):\n%s", diff)
			}
			runUndo(t, w, func(o *UndoOptions) { o.Force = true }).Check(t, 0, "undone")
			if SpecOf(w).TLS != nil {
				t.Errorf("the configuration is %+v", SpecOf(w))
			}
		}
	})
	t.Run("not when somebody has changed something else, which stays", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		runSet(t.Context(), w, nil).Check(t, 0)
		w.Cluster.Issuer.Spec.ImpersonationProxy.ExternalEndpoint = strings.Replace(
			w.Proxy.Endpoint(),
			"127.0.0.1",
			"[::ffff:127.0.0.1]",
			1,
		)
		w.Cluster.Bump()
		theirs := SpecOf(w).ExternalEndpoint
		runUndo(t, w, nil).Check(t, 0, "undone")
		if got := SpecOf(w); got.TLS != nil || got.ExternalEndpoint != theirs {
			t.Errorf("the configuration is %+v", got)
		}
	})
	t.Run("a record that it does not know", func(t *testing.T) {
		t.Parallel()
		for text, says := range map[string]string{
			`{"version":2}`:             "its version is 2",
			`{"version":1,"more":true}`: "unknown field",
			`{"version":1} {}`:          "more after the record",
			`nonsense`:                  "invalid character",
		} {
			w := iptlstest.New(t)
			w.Cluster.Issuer.Annotations = map[string]string{plan.UndoAnnotation: text}
			runUndo(t, w, nil).Check(t, 1, says, "nothing was changed")
		}
	})
	t.Run("wrong usage", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		runUndo(t, w, func(o *UndoOptions) { o.Allow = []string{"Nothing"} }).Check(t, 2, "there is no such code")
		runUndo(t, w, func(o *UndoOptions) { o.Flags.DryRun = "maybe" }).Check(t, 2, "--dry-run")
	})
}

// TestRecordHoldsNoKey looks for keys in what is kept, and that a configuration that is too large is said to be lost.
func TestRecordHoldsNoKey(t *testing.T) {
	t.Parallel()
	w := iptlstest.NewExternalWorld(t)
	w.Obey(t)
	huge := strings.Repeat("A", plan.MaxRecord)
	w.Cluster.Issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData = huge
	runUnset(t, w, nil).Check(t, 0, "too large to be kept")
	if _, there := w.Cluster.Issuer.Annotations[plan.UndoAnnotation]; there {
		t.Error("it was kept")
	}
	runUndo(t, w, nil).Check(t, 1, "nothing to undo")
	runSet(t.Context(), w, nil).Check(t, 0, "configured")
	all, err := json.Marshal(w.Cluster.Issuer.Annotations)
	if err != nil || !strings.Contains(string(all), "previous") || strings.Contains(string(all), "PRIVATE") {
		t.Errorf("%v, %s", err, all)
	}
}

// TestUndoOfFiles says that a key which was overwritten is gone.
func TestUndoOfFiles(t *testing.T) {
	t.Parallel()
	w := iptlstest.New(t)
	w.Served(t)
	renewed := iptlstest.Serving(t, w.CA, iptlstest.Loopback())
	setFromFiles(t, w, renewed, nil).Check(t, 0, "configured", `what is in Secret "proxy-tls" now is replaced`)
	runUndo(t, w, nil).Check(t, 0, "undone", `has also replaced what was in Secret "proxy-tls"`)
	w.SecretHas(t, renewed)
	if strings.Contains(w.Cluster.Issuer.Annotations[plan.UndoAnnotation], "PRIVATE") {
		t.Error("a key is kept")
	}
}
