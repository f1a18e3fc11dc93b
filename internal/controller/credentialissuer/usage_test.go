package credentialissuer

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	configv1alpha1 "github.com/pinniped-toolkit/pinniped/pkg/apis/config/v1alpha1"
)

// TestUsesBeforeTheStatus has clients that read the new status before this replica did, or long before.
func TestUsesBeforeTheStatus(t *testing.T) {
	t.Parallel()
	status := func(revisions ...string) *configv1alpha1.CredentialIssuer {
		issuer := &configv1alpha1.CredentialIssuer{}
		for i, id := range revisions {
			revision := configv1alpha1.RevisionStatus{ID: id}
			if i < len(revisions)-1 {
				revision.Until = &metav1.Time{}
			}
			issuer.Status.Revisions = append(issuer.Status.Revisions, revision)
		}
		return issuer
	}
	for after, counts := range map[time.Duration]bool{time.Second: true, time.Minute: false} {
		clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		u := &Usage{Clock: clock, Changed: func() {}}
		u.publish(status("one"))
		u.Note("", nil)
		clock.Step(after)
		u.publish(status("one", "two"))
		if got := u.report(); !strings.Contains(got, "one@") || strings.Contains(got, "two@") != counts {
			t.Errorf("%s after the use: %s", after, got)
		}
	}
}
