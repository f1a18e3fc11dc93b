package iptls

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

func (w *world) undo(t *testing.T, change func(*UndoOptions)) *run {
	t.Helper()
	r := &run{}
	o := &UndoOptions{Changing: Changing{Connection: w.connection(r), DryRun: dryRunNone, Wait: true}}
	if change != nil {
		change(o)
	}
	return r.do(t.Context(), o)
}

// spec is the part of the configuration that the commands change.
func (w *world) spec() target { return targetOf(w.cluster.issuer.Spec.ImpersonationProxy) }

func TestUndo(t *testing.T) {
	t.Parallel()
	t.Run("takes set back, does it again, and takes it back again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		before := w.spec()
		w.set(t.Context(), nil).check(t, 0, "configured")
		after := w.spec()
		for i, want := range []target{before, after, before} {
			w.undo(t, nil).check(t, 0, "credentialissuer/pinniped-concierge-config undone", "presents the certificate at 1 of 1 addresses")
			if diff := cmp.Diff(want, w.spec()); diff != "" {
				t.Errorf("after undo %d (-want +got):\n%s", i+1, diff)
			}
		}
	})
	t.Run("takes unset back", func(t *testing.T) {
		t.Parallel()
		w := newExternalWorld(t)
		w.obey(t)
		before := w.spec()
		w.unset(t, nil).check(t, 0, "unset")
		w.undo(t, nil).check(t, 0, "undone", `"ip-tls unset"`, "tls.secretName")
		if diff := cmp.Diff(before, w.spec()); diff != "" {
			t.Errorf("after undo (-want +got):\n%s", diff)
		}
	})
	t.Run("takes the endpoint back with the certificate", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		w.cluster.issuer.Spec.ImpersonationProxy.ExternalEndpoint = ""
		w.cluster.bump()
		w.set(t.Context(), func(o *SetOptions) { o.ExternalEndpoint = w.proxy.endpoint() }, "external-endpoint").check(t, 0)
		w.undo(t, nil).check(t, 0, "undone", "externalEndpoint")
		if got := w.spec(); got.ExternalEndpoint != "" || got.TLS != nil {
			t.Errorf("the configuration is %+v", got)
		}
	})
	t.Run("changes nothing in a dry run", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		w.set(t.Context(), nil).check(t, 0)
		after := w.spec()
		w.undo(t, func(o *UndoOptions) { o.DryRun, o.Diff = dryRunServer, true }).check(t, 0, "undone (server dry run)", "- spec.impersonationProxy.tls.secretName: proxy-tls")
		if diff := cmp.Diff(after, w.spec()); diff != "" {
			t.Errorf("after a dry run (-want +got):\n%s", diff)
		}
	})
	t.Run("checks what it goes back to", func(t *testing.T) {
		t.Parallel()
		w := newExternalWorld(t)
		w.obey(t)
		other := newCA(t, "Other CA")
		w.put("other-tls", serving(t, other, loopback()), other.CertPEM())
		w.set(t.Context(), func(o *SetOptions) { o.Secret, o.Allow = "other-tls", []string{"OldClientsBreak"} }).check(t, 0)
		after := w.spec()
		w.undo(t, nil).check(t, 3, "OldClientsBreak", "nothing was changed")
		if diff := cmp.Diff(after, w.spec()); diff != "" {
			t.Errorf("after a refusal (-want +got):\n%s", diff)
		}
		w.undo(t, func(o *UndoOptions) { o.Allow = []string{"OldClientsBreak"} }).check(t, 0, "undone")
		w.cluster.secret = nil
		w.undo(t, func(o *UndoOptions) { o.Allow = []string{"OldClientsBreak"} }).check(t, 0, "undone")
		w.undo(t, nil).check(t, 3, "SecretNotFound")
	})
	t.Run("puts back what does not take effect, with the record", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		w.set(t.Context(), nil).check(t, 0)
		after, record := w.spec(), w.cluster.issuer.Annotations[undoAnnotation]
		w.cluster.afterApply = nil
		w.undo(t, func(o *UndoOptions) { o.Timeout = tooShort }).check(t, 5, "was put back")
		if diff := cmp.Diff(after, w.spec()); diff != "" {
			t.Errorf("after going back (-want +got):\n%s", diff)
		}
		if got := w.cluster.issuer.Annotations[undoAnnotation]; got != record {
			t.Errorf("the record is %s, want %s", got, record)
		}
	})
}

func TestUndoRefuses(t *testing.T) {
	t.Parallel()
	t.Run("when there is nothing to undo", func(t *testing.T) {
		t.Parallel()
		newWorld(t).undo(t, nil).check(t, 1, "there is nothing to undo", "ip-tls set")
	})
	t.Run("when somebody else has changed the same", func(t *testing.T) {
		t.Parallel()
		for field, change := range map[string]func(*configv1alpha1.ImpersonationProxySpec){
			fieldSecret: func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS.SecretName = "theirs" },
			fieldBundle: func(s *configv1alpha1.ImpersonationProxySpec) { s.TLS.CertificateAuthorityData = "QQ==" },
		} {
			w := newWorld(t)
			w.obey(t)
			w.set(t.Context(), nil).check(t, 0)
			change(w.cluster.issuer.Spec.ImpersonationProxy)
			w.cluster.bump()
			theirs := w.spec()
			w.undo(t, nil).check(t, 3, "somebody else has changed the configuration since", field, "--force")
			if diff := cmp.Diff(theirs, w.spec()); diff != "" {
				t.Errorf("their change was overwritten (-want +got):\n%s", diff)
			}
			w.undo(t, func(o *UndoOptions) { o.Force = true }).check(t, 0, "undone")
			if w.spec().TLS != nil {
				t.Errorf("the configuration is %+v", w.spec())
			}
		}
	})
	t.Run("not when somebody has changed something else, which stays", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.obey(t)
		w.set(t.Context(), nil).check(t, 0)
		w.cluster.issuer.Spec.ImpersonationProxy.ExternalEndpoint = strings.Replace(w.proxy.endpoint(), "127.0.0.1", "[::ffff:127.0.0.1]", 1)
		w.cluster.bump()
		theirs := w.spec().ExternalEndpoint
		w.undo(t, nil).check(t, 0, "undone")
		if got := w.spec(); got.TLS != nil || got.ExternalEndpoint != theirs {
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
			w := newWorld(t)
			w.cluster.issuer.Annotations = map[string]string{undoAnnotation: text}
			w.undo(t, nil).check(t, 1, says, "nothing was changed")
		}
	})
	t.Run("wrong usage", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.undo(t, func(o *UndoOptions) { o.Allow = []string{"Nothing"} }).check(t, 2, "there is no such code")
		w.undo(t, func(o *UndoOptions) { o.DryRun = "maybe" }).check(t, 2, "--dry-run")
	})
}

// TestRecordHoldsNoKey looks for keys in what is kept, and that a configuration that is too large is said to be lost.
func TestRecordHoldsNoKey(t *testing.T) {
	t.Parallel()
	w := newExternalWorld(t)
	w.obey(t)
	huge := strings.Repeat("A", maxRecord)
	w.cluster.issuer.Spec.ImpersonationProxy.TLS.CertificateAuthorityData = huge
	w.unset(t, nil).check(t, 0, "too large to be kept")
	if _, there := w.cluster.issuer.Annotations[undoAnnotation]; there {
		t.Error("it was kept")
	}
	w.undo(t, nil).check(t, 1, "nothing to undo")
	w.set(t.Context(), nil).check(t, 0, "configured")
	all, err := json.Marshal(w.cluster.issuer.Annotations)
	if err != nil || !strings.Contains(string(all), "previous") || strings.Contains(string(all), "PRIVATE") {
		t.Errorf("%v, %s", err, all)
	}
}

// TestUndoOfFiles says that a key which was overwritten is gone.
func TestUndoOfFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.served(t)
	renewed := serving(t, w.ca, loopback())
	w.fromFiles(t, renewed, nil).check(t, 0, "configured", `what is in Secret "proxy-tls" now is replaced`)
	w.undo(t, nil).check(t, 0, "undone", `has also replaced what was in Secret "proxy-tls"`)
	w.secretHas(t, renewed)
	if strings.Contains(w.cluster.issuer.Annotations[undoAnnotation], "PRIVATE") {
		t.Error("a key is kept")
	}
}
