package serving_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pinniped-toolkit/pinniped/internal/serving"
	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
	"github.com/pinniped-toolkit/pinniped/test/testkit/must"
)

// TestHistoryKeepsSpecs: the history records which spec caused a revision, so that undo can restore it byte for byte.
func TestHistoryKeepsSpecs(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	data := base64.StdEncoding.EncodeToString(append([]byte("# our CA\n"), p.bundle("a")...))
	change := func(secret string, at time.Time, outcome serving.RevisionOutcome) serving.Change {
		return serving.Change{
			By: "kubectl", ChangedAt: at, Outcome: outcome,
			Spec: &serving.RevisionSpec{
				ExternalEndpoint: "proxy.example.com",
				TLS:              &configv1alpha1.ImpersonationProxyTLSSpec{SecretName: secret, CertificateAuthorityData: data},
			},
		}
	}
	var h serving.History
	publish := func(after time.Duration, change serving.Change) {
		t.Helper()
		next := must.Get(h.Append(serving.Published{
			Endpoint: endpoint, Bundle: p.bundle("a"), Chain: p.chain("a"), Change: change,
		}, noon.Add(after), serving.DefaultRetention))(t)
		h = next
	}
	first, second := change("one", noon, serving.OutcomeInService), change("two", noon.Add(day), serving.OutcomeRefused)
	publish(0, first)
	publish(day, second)
	if len(h.Revisions) != 2 {
		t.Fatalf("another Secret of the same CA is a revision of its own, as undo goes back to the first: %+v", h.Revisions)
	}
	second.Outcome = serving.OutcomeInService
	publish(2*day, second)
	second.Outcome = serving.OutcomeRefused
	publish(3*day, second) // its Secret broke later
	second.Outcome = serving.OutcomeInService
	content := h.Encode()
	again := must.Get(serving.Decode(content))(t)
	got := []serving.Change{again.Revisions[0].Change, again.Revisions[1].Change}
	if diff := cmp.Diff([]serving.Change{first, second}, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if count := strings.Count(string(content), data); count != 1 {
		t.Errorf("certificateAuthorityData is kept %d times", count)
	}
	if first.Spec.TLS.CertificateAuthorityData != data {
		t.Error("encoding a history has changed a spec")
	}
}
