package history

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pinniped-toolkit/pinniped/internal/cli/iptls/plan"
	"github.com/pinniped-toolkit/pinniped/internal/cli/result"
	"github.com/pinniped-toolkit/pinniped/internal/discovery"
	"github.com/pinniped-toolkit/pinniped/internal/serving"
	"github.com/pinniped-toolkit/pinniped/test/iptlstest"
	"github.com/pinniped-toolkit/pinniped/test/sessiontest"
)

func runHistory(t *testing.T, w *iptlstest.World, change func(*Options)) *iptlstest.Run {
	t.Helper()
	r := &iptlstest.Run{}
	o := &Options{Session: sessiontest.New(w, r)}
	if change != nil {
		change(o)
	}
	return r.Do(t.Context(), o)
}

func asJSON(o *Options) { o.Session.Output = "json" }

func retire(id string) func(*Options) { return func(o *Options) { o.Retire = id } }

func listed(t *testing.T, w *iptlstest.World) []result.ClientState {
	t.Helper()
	r := runHistory(t, w, asJSON)
	r.Check(t, 0)
	var list result.History
	if err := json.Unmarshal(r.Out.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Revisions
}

// renewedTwice returns a world in which three CAs have issued the certificate, one after the other.
func renewedTwice(t *testing.T) *iptlstest.World {
	t.Helper()
	w := iptlstest.NewExternalWorld(t)
	w.RecordSince(t, time.Now().Add(-72*time.Hour))
	for _, since := range []time.Duration{48 * time.Hour, 24 * time.Hour} {
		ca := iptlstest.NewCA(t, "Next CA")
		w.Proxy.Serve(t, iptlstest.Serving(t, ca, iptlstest.Loopback()))
		w.Cluster.Report(w.Proxy.URL(), ca.CertPEM())
		w.RecordSince(t, time.Now().Add(-since))
	}
	return w
}

func TestHistory(t *testing.T) {
	t.Parallel()
	w := renewedTwice(t)
	runHistory(t, w, nil).Check(t, 0, "CLIENTS", `"Company CA"`, "✗ refused: BundleDoesNotVerify", "✓ work")
	states := listed(t, w)
	if len(states) != 3 || states[0].Outcome != result.ClientsRefused || states[2].Outcome != result.ClientsWork {
		t.Fatalf("the states are %+v", states)
	}
	if states[0].RefusedSince == nil || !states[0].RefusedSince.Equal(*states[0].Until) {
		t.Errorf("refused since %v, told until %v", states[0].RefusedSince, states[0].Until)
	}
	t.Run("of Pinniped's agent", func(t *testing.T) {
		t.Parallel()
		w := iptlstest.NewExternalWorld(t)
		runHistory(t, w, nil).Check(t, 0, "✓ work", "not known:", "the agent keeps no revision history")
		runHistory(t, w, retire("abc")).Check(t, 1, "the agent keeps no revision history")
	})
	t.Run("while nothing answers", func(t *testing.T) {
		t.Parallel()
		w := renewedTwice(t)
		w.Cluster.Report("https://127.0.0.1:1", w.CA.CertPEM())
		runHistory(t, w, nil).Check(t, 0, "• notKnown", "connection refused")
	})
	t.Run("by a user who may not read that", func(t *testing.T) {
		t.Parallel()
		w := renewedTwice(t)
		w.Cluster.RevisionsErr = &discovery.ForbiddenError{Verb: "get"}
		runHistory(t, w, nil).Check(t, 4, "reading the revision history")
		runHistory(t, w, retire("abc")).Check(t, 4, "reading the revision history")
	})
}

func TestRetire(t *testing.T) {
	t.Parallel()
	w := renewedTwice(t)
	states := listed(t, w)
	first, second, current := states[0].ID, states[1].ID, states[2].ID
	for id, says := range map[string]string{
		"nothing": "that matches no revision", current: "is published now",
	} {
		code := 2
		if id == current {
			code = 3
		}
		r := runHistory(t, w, retire(id))
		r.Check(t, code, says)
		if code == 2 {
			r.Check(t, code, first+", "+second+", "+current)
		}
	}
	if len(w.Cluster.Options) > 0 {
		t.Fatal("something was written")
	}
	// The agent publishes something else in between, once.
	w.Cluster.BeforeApply = func(c *iptlstest.Cluster) {
		c.BeforeApply = nil
		c.Revisions.ResourceVersion = "other"
	}
	runHistory(t, w, retire(first[:6])).Check(t, 0, "Retired revision "+first, "• retired")
	runHistory(t, w, retire(second)).Check(t, 0, "Retired revision "+second)
	runHistory(t, w, retire(second)).Check(t, 0, "is already retired")
	for i, state := range listed(t, w) {
		if want := i < 2; (state.Outcome == result.ClientsRetired) != want || (state.Retired != nil) != want {
			t.Errorf("state %d: %+v", i, state)
		}
	}
	for _, options := range w.Cluster.Options {
		if options.FieldManager != plan.FieldManager {
			t.Errorf("written by %q", options.FieldManager)
		}
	}
	if keys := len(w.Cluster.Revisions.Data); keys != 3 || w.Cluster.Revisions.Data[serving.RevisionsKey] == "" {
		t.Errorf("%d keys: %v", keys, w.Cluster.Revisions.Data)
	}
}

// TestRetireNeedsMoreOfTheID checks an ambiguous prefix of an ID.
func TestRetireNeedsMoreOfTheID(t *testing.T) {
	t.Parallel()
	w := renewedTwice(t)
	data := w.Cluster.Revisions.Data
	w.Cluster.Issuer.Status.Revisions = nil
	for i, state := range listed(t, w) {
		data[serving.RevisionsKey] = strings.ReplaceAll(data[serving.RevisionsKey], state.ID, "abc"+string(rune('0'+i)))
	}
	runHistory(t, w, retire("abc")).Check(t, 2, "that matches several revisions", "abc0, abc1, abc2")
}
