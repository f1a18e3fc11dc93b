package change

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/iptlstest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/session/sessiontest"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// historyOf returns the last changes: who, what, and what came of it.
func historyOf(t *testing.T, w *iptlstest.World) []string {
	t.Helper()
	r := &iptlstest.Run{}
	o := &HistoryOptions{Session: sessiontest.New(w, r)}
	o.Session.Output = "json"
	r.Do(t.Context(), o).Check(t, 0)
	var done result.History
	if err := json.Unmarshal(r.Out.Bytes(), &done); err != nil || done.Kind != "History" {
		t.Fatalf("%v in %s", err, r.Out.String())
	}
	var got []string
	for _, change := range done.Changes {
		secret := "generated"
		if change.Secret != nil {
			secret = change.Secret.Name
		}
		got = append(got, strings.Join([]string{change.By, change.Command, secret, string(change.Outcome)}, ", "))
	}
	return got
}

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
			if got := plan.WasInEffect(w.Cluster.Issuer); got != tt.want {
				t.Errorf("it is %v", got)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	t.Run("tells who, what, and what came of it", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.User = "ann"
		runSet(t.Context(), w, nil).Check(t, 0)
		w.Cluster.User = ""
		typo(t, w)
		w.Cluster.User = "ben"
		w.Cluster.AfterApply = nil
		runUnset(t, w, func(o *UnsetOptions) { o.Session.Timeout = iptlstest.TooShort }).Check(t, 5, "was put back")
		w.Obey(t)
		runUndo(t, w, func(o *UndoOptions) { o.Flags.Wait = false }).Check(t, 0)
		w.Cluster.Issuer.Status.Strategies = nil // nothing tells the outcome of the undo
		w.Cluster.Issuer.Status.ObservedGeneration, w.Cluster.Issuer.Generation = 1, 2
		want := []string{
			"ben, undo, proxy-tls, unknown",
			"ben, unset, generated, putBack",
			", set, typo-tls, notInEffect",
			"ann, set, proxy-tls, inEffect",
		}
		if diff := cmp.Diff(want, historyOf(t, w)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		r := &iptlstest.Run{}
		r.Do(t.Context(), &HistoryOptions{Session: sessiontest.New(w, r)}).
			Check(t, 0, "AT", "BY", "OUTCOME", "(not known)", "putBack")
	})
	t.Run("keeps ten", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		if got := historyOf(t, w); got != nil {
			t.Errorf("at first: %v", got)
		}
		w.Cluster.User = strings.Repeat("x", 10_000)
		for range 6 {
			runSet(t.Context(), w, nil).Check(t, 0)
			runUnset(t, w, nil).Check(t, 0)
		}
		if got := historyOf(t, w); len(got) != 10 || !strings.Contains(got[0], "unset") {
			t.Errorf("%d changes: %v", len(got), got)
		}
		if size := len(w.Cluster.Issuer.Annotations[plan.HistoryAnnotation]); size > 10_000 {
			t.Errorf("the annotation has %d bytes", size)
		}
	})
	t.Run("says what it cannot read", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.Issuer.Annotations = map[string]string{plan.HistoryAnnotation: `{"version":2}`}
		r := &iptlstest.Run{}
		r.Do(t.Context(), &HistoryOptions{Session: sessiontest.New(w, r)}).Check(t, 1, "its version is 2")
		runSet(t.Context(), w, nil).Check(t, 0, "begins anew")
		if got := historyOf(t, w); len(got) != 1 {
			t.Errorf("afterwards: %v", got)
		}
	})
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

// TestTwoUsersAtOnce has a second administrator who changes what the first one is still waiting for, and one who is
// overtaken between reading and writing.
func TestTwoUsersAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("one after the other", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Put("second-tls", w.Pair, w.CA.CertPEM())
		w.Cluster.User = "ann"
		runSet(t.Context(), w, func(o *SetOptions) { o.Flags.Wait = false }).Check(t, 0)
		second := func(o *SetOptions) { o.Certificate.Secret, o.Session.Output = "second-tls", "json" }
		w.Cluster.User = "ben"
		r := runSet(t.Context(), w, func(o *SetOptions) { second(o); o.Flags.DryRun = "server" })
		r.Check(t, 0, `ann changed this with "ip-tls set"`, `(Secret "proxy-tls"`, "that is overwritten",
			`"overwrites": {`, `"by": "ann"`)
		w.Cluster.User = "ann"
		r = runSet(t.Context(), w, func(o *SetOptions) { second(o); o.Flags.DryRun = "server" })
		r.Check(t, 0)
		r.Lacks(t, "overwr")
		w.Cluster.User = "ben"
		r = runSet(t.Context(), w, func(o *SetOptions) {
			second(o)
			o.Session.Now = func() time.Time { return time.Now().Add(time.Hour) }
		})
		r.Check(t, 0)
		r.Lacks(t, "overwr")
	})
	t.Run("at the same moment", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.New(t)
		w.Obey(t)
		w.Cluster.User = "ben"
		w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
			if c.Issuer.Spec.ImpersonationProxy.TLS != nil {
				return
			}
			theirs := *c.Issuer.Spec.ImpersonationProxy
			theirs.TLS = &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: "of-ann"}
			text, _, err := plan.EncodeRecord(plan.History{Version: 1}.With(plan.NewChange("set", "ann", time.Now(), theirs)))
			if err != nil {
				t.Error(err)
			}
			c.Issuer.Spec.ImpersonationProxy.TLS = theirs.TLS
			c.Issuer.Annotations = map[string]string{plan.HistoryAnnotation: text}
			c.Bump()
		}
		runSet(t.Context(), w, nil).Check(t, 3, `ann, with "ip-tls set", has changed`,
			"tls.secretName from (none) to of-ann", "nothing was changed")
		if got := SpecOf(w).TLS.SecretName; got != "of-ann" {
			t.Errorf("it is %s", got)
		}
	})
}
